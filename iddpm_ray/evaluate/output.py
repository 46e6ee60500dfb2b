"""What a finished sampling job leaves for people and programs: an npz, a folder of PNG files, Parquet, and a picture of the first ones.

Chunks are read one after another, so no process ever holds all pictures.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.errors import SpecError
from iddpm_ray.evaluate import npz
from iddpm_ray.evaluate.chunks import Chunks
from iddpm_ray.evaluate.generate import LOW_RES, Job
from iddpm_ray.sinks.pictures import sheet, to_png

Format = Literal["npz", "png", "parquet"]
FOLDER, TABLE, GRID, DONE = "samples", "samples.parquet", "grid.png", "done.json"
GRID_COLUMNS = 10
_GRID_SIDE = 32  # pixels; smaller pictures are enlarged for the grid
_FILES_AT_ONCE = 8
_PLAIN = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")


@dataclass(frozen=True, eq=False)
class Part:
    """The pictures of one chunk, [n, H, W, C] uint8, the number of the first, their classes [n] and what they were enlarged from."""

    first: int
    pictures: NDArray[np.uint8]
    labels: NDArray[np.int64] | None
    low_res: NDArray[np.uint8] | None


def parts(chunks: Chunks) -> Iterator[Part]:
    """Every chunk in order.

    Raises:
        DataError: one is missing or damaged.
    """
    for chunk, data in enumerate(chunks.read_all()):
        arrays = npz.decode(data, name=storage.name(chunks.url_of(chunk)))
        yield Part(chunks.items(chunk).start, arrays["arr_0"], arrays.get("arr_1"), arrays.get(LOW_RES))


def output_url(job: Job, url: str, *, form: Format) -> str:
    """Where a form of the job's pictures lies."""
    if form == "npz":
        return storage.join(url, f"samples_{'x'.join(map(str, job.shape))}.npz")
    return storage.join(url, TABLE if form == "parquet" else FOLDER)


def default_url(job: Job) -> str:
    """A folder of the job's own, in the directory of its run.

    Raises:
        SpecError: the weights lie in no run.
    """
    source = job.drawing.source
    folder = storage.parent(source.url)
    if storage.name(folder) != "checkpoints":
        raise SpecError("there is no run to put the pictures into", fix="say where with --out")
    known = json.dumps({**job.settings(), "count": job.count, "batch": job.batch}, sort_keys=True).encode()
    name = f"{source.name}-{hashlib.sha256(known).hexdigest()[:8]}"
    return storage.join(storage.parent(folder), "generated", name)


def is_done(job: Job, chunks: Chunks, *, form: Format, grid: int | None) -> bool:
    """Whether the wanted form has been made and is there, and so is the grid if one is wanted."""
    try:
        done = json.loads(storage.read_bytes(storage.join(chunks.url, DONE)))
    except (FileNotFoundError, ValueError):
        return False
    if form not in done["forms"] or not storage.exists(output_url(job, chunks.url, form=form)):
        return False
    return grid is None or (grid in done["grids"] and storage.exists(storage.join(chunks.url, GRID)))


def write_all(job: Job, chunks: Chunks, *, form: Format, grid: int | None, keep_chunks: bool, progress: Callable[[int, int], None]) -> None:
    """Makes everything wanted of a finished job, notes that it is made, and only then deletes the chunks."""
    url = storage.join(chunks.url, DONE)
    write_output(job, chunks, form=form, progress=progress)
    if grid is not None:
        write_grid(chunks, count=min(grid, job.count))
    done = json.loads(storage.read_bytes(url)) if storage.exists(url) else {"forms": [], "grids": []}
    forms = sorted({*done["forms"], form})
    grids = done["grids"] if grid is None else [grid]  # one file, of the last number wanted
    storage.write_whole(url, json.dumps({"forms": forms, "grids": grids}).encode())
    if not keep_chunks:
        chunks.clear()


def write_output(job: Job, chunks: Chunks, *, form: Format, progress: Callable[[int, int], None] = lambda done, total: None) -> str:
    """Makes the wanted form of a finished job; what is there already is written again, equal.

    Returns:
        The URL of the file or folder.
    """
    url = output_url(job, chunks.url, form=form)
    told = _telling(parts(chunks), progress, total=job.count)
    match form:
        case "npz":
            labels = None if job.labels is None else job.labels.at(torch.arange(job.count)).numpy()
            npz.write_pictures(url, (part.pictures for part in told), shape=job.shape, labels=labels)
        case "png":
            _write_folder(url, told, names=_folder_names(job))
        case "parquet":
            _write_table(url, told, labelled=job.labels is not None)
    return url


def write_grid(chunks: Chunks, *, count: int) -> str:
    """A picture of the first `count` ones, ten a row; what a cascade enlarged stands left of each, at its own pixels.

    Returns:
        The URL of the picture.
    """
    tiles: list[Tensor] = []
    for part in parts(chunks):
        tiles += [_tile(part, number) for number in range(min(len(part.pictures), count - len(tiles)))]
        if len(tiles) >= count:
            break
    url = storage.join(chunks.url, GRID)
    storage.write_whole(url, to_png(sheet(torch.stack(tiles), columns=min(GRID_COLUMNS, count))))
    return url


def _tile(part: Part, number: int) -> Tensor:
    """[C, H, W], enlarged by whole pixels where it is small."""
    large = torch.from_numpy(part.pictures[number].copy()).permute(2, 0, 1)
    if part.low_res is not None:
        small = torch.from_numpy(part.low_res[number].copy()).permute(2, 0, 1)
        factor = large.shape[1] // small.shape[1]
        large = torch.cat([_repeated(small, factor), large], dim=2)
    return _repeated(large, max(1, _GRID_SIDE // large.shape[1]))


def _repeated(picture: Tensor, factor: int) -> Tensor:
    return picture.repeat_interleave(factor, dim=1).repeat_interleave(factor, dim=2)


def _telling(found: Iterator[Part], progress: Callable[[int, int], None], *, total: int) -> Iterator[Part]:
    progress(0, total)
    for part in found:
        yield part
        progress(part.first + len(part.pictures), total)


def _folder_names(job: Job) -> list[str] | None:
    """Each class's folder: its name where that is a plain one and nobody else's, else its index."""
    source = job.labelled_by
    if source is None:
        return None
    num_classes, classes = source.num_classes or 0, source.classes
    plain = len(classes) == num_classes == len(set(classes)) and all(_PLAIN.fullmatch(name) for name in classes)
    return list(classes) if plain else [str(index) for index in range(num_classes)]


def _write_folder(url: str, found: Iterator[Part], *, names: list[str] | None) -> None:
    """`00000012.png`, in a folder a class where there are classes, as training reads them with `data.labels: folder`."""

    def write(number: int, picture: NDArray[np.uint8], folder: str) -> None:
        data = to_png(torch.from_numpy(picture.copy()).permute(2, 0, 1))
        storage.write_whole(storage.join(url, folder, f"{number:08d}.png"), data)

    with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        for part in found:
            labels = [0] * len(part.pictures) if part.labels is None else part.labels.tolist()
            folders = ["" if names is None else names[label] for label in labels]
            pending = [threads.submit(write, part.first + place, part.pictures[place], folder) for place, folder in enumerate(folders)]
            for one in pending:
                one.result()


def _write_table(url: str, found: Iterator[Part], *, labelled: bool) -> None:
    """Columns `image` (bytes of a PNG, and a name) and `label`, as training reads them with `data.labels: column`; a row group a chunk."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), *([("label", pa.int64())] if labelled else [])])
    with storage.writing(url) as file, pq.ParquetWriter(file, schema) as writer:
        for part in found:
            pngs = [to_png(torch.from_numpy(picture.copy()).permute(2, 0, 1)) for picture in part.pictures]
            rows = [{"bytes": data, "path": f"{part.first + place:08d}.png"} for place, data in enumerate(pngs)]
            columns: dict[str, object] = {"image": pa.array(rows, type=image)}
            if labelled and part.labels is not None:
                columns["label"] = pa.array(part.labels.tolist(), type=pa.int64())
            writer.write_table(pa.table(columns, schema=schema))
