"""Rows of a manifest to pixels and labels, with what to do about pictures that cannot be read."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from iddpm_ray import storage
from iddpm_ray.data.changes import check_decoding
from iddpm_ray.data.image import FIX, BadPicture, Decoding, decode
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.data.shards import read_rows
from iddpm_ray.data.tables import read_pictures
from iddpm_ray.errors import DataError

_In = TypeVar("_In")
_Out = TypeVar("_Out")
OnError = Literal["fail", "substitute"]
Outcome = NDArray[np.uint8] | BadPicture

_THREADS = 8


@dataclass(frozen=True, eq=False)
class Pixels:
    """Loaded rows.

    Attributes:
        pixels: [N, C, H, W] uint8.
        labels: [N] int64, those of the pictures shown.
        substituted: [N] bool, where another row's picture stands in.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    substituted: NDArray[np.bool_]


def load(manifest: Manifest, rows: NDArray[np.int64], *, decoding: Decoding, on_error: OnError = "fail", threads: int = _THREADS) -> Pixels:
    """Reads and decodes rows, several at a time, in the order asked for.

    Args:
        rows: int64 [N] rows of the manifest.
        on_error: `fail` raises the error of the first bad picture; `substitute` shows the next good row in manifest order on the same side
            of the validation split, wrapping round.
        threads: pictures read at a time.

    Raises:
        DataError: naming path and row and what would do.
        OSError: the store does not answer, which is no fault of a picture.
    """
    shown = rows.astype(np.int64, copy=True)
    pixels = np.empty((len(rows), *decoding.shape), dtype=np.uint8)
    for i, outcome in enumerate(read_outcomes(manifest, rows, decoding=decoding, threads=threads)):
        if not isinstance(outcome, BadPicture):
            pixels[i] = outcome
        elif on_error == "fail":
            raise outcome
        else:
            shown[i], pixels[i] = _next_good(manifest, int(rows[i]), decoding=decoding, first=outcome)
    return Pixels(pixels, manifest.labels[shown].astype(np.int64), shown != rows)


def read_outcomes(manifest: Manifest, rows: NDArray[np.int64], *, decoding: Decoding, threads: int = _THREADS) -> list[Outcome]:
    """Each row's pixels [C, H, W], or why its picture cannot be shown."""
    check_decoding(manifest, decoding)
    if not len(rows):
        return []
    match manifest.kind:
        case "packed":
            return _packed(manifest, rows, decoding=decoding)
        case "parquet":
            inner = np.array(manifest.column("row", rows), dtype=np.int64)
            paths = manifest.column("path", rows)
            versions = list(zip(manifest.column("size", rows), manifest.column("tag", rows), strict=True))
            files = read_pictures(manifest.root, paths, inner, versions=versions, image_column=manifest.image_column)
            named = (
                BadPicture(f"{manifest.name(int(row))} {data.what}", fix=FIX) if isinstance(data, BadPicture) else data
                for row, data in zip(rows, files, strict=True)
            )
            return _all_decoded(manifest, rows, decoding, named)
        case "folder":
            read = partial(_read, manifest, _reader(manifest.root))
            files = _ahead(read, list(zip(rows.tolist(), manifest.column("path", rows), strict=True)), threads=threads)
            return _all_decoded(manifest, rows, decoding, files)


def _ahead(call: Callable[[_In], _Out], given: Sequence[_In], *, threads: int) -> Iterator[_Out]:
    """The results in order; threads wait for the store, a few results ahead, and the caller's own one decodes: more would only fight
    for the interpreter."""
    if threads == 1 or len(given) == 1:
        yield from map(call, given)
        return
    with ThreadPoolExecutor(min(threads, len(given))) as pool:
        coming = deque(pool.submit(call, one) for one in given[: 2 * threads])
        for one in given[2 * threads :]:
            yield coming.popleft().result()
            coming.append(pool.submit(call, one))
        while coming:
            yield coming.popleft().result()


def _reader(root: str) -> Callable[[str], bytes]:
    """Reads files below `root`; on a local disk without asking for the file system each time."""
    if not storage.is_local(root):
        return lambda path: storage.read_bytes(storage.join(root, path))
    folder = Path(storage.filesystem(root)[1])

    @storage.patiently
    def read_bytes(path: str) -> bytes:
        return (folder / path).read_bytes()

    return read_bytes


def _read(manifest: Manifest, read: Callable[[str], bytes], which: tuple[int, str]) -> bytes | BadPicture:
    row, path = which
    try:
        return read(path)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        return BadPicture(f"{manifest.name(row)} cannot be read: {storage.reason(error)}", fix=FIX)
    except Exception as error:  # a store may raise anything; it says nothing about this picture
        raise OSError(f"{manifest.name(row)} could not be read: {storage.reason(error)}") from error


def _all_decoded(manifest: Manifest, rows: NDArray[np.int64], decoding: Decoding, files: Iterable[bytes | BadPicture]) -> list[Outcome]:
    pairs = zip(rows.tolist(), files, strict=True)
    return [data if isinstance(data, BadPicture) else _decoded(manifest, row, decoding, data) for row, data in pairs]


def _decoded(manifest: Manifest, row: int, decoding: Decoding, data: bytes) -> Outcome:
    try:
        return decode(data, decoding, name=manifest.name(row))
    except BadPicture as error:
        return error


def _packed(manifest: Manifest, rows: NDArray[np.int64], *, decoding: Decoding) -> list[Outcome]:
    inner = np.array(manifest.column("row", rows), dtype=np.int64)
    paths, tags = manifest.column("path", rows), manifest.column("tag", rows)
    pixels = read_rows(manifest.root, paths, inner, tags=tags, shape=decoding.shape)
    outcomes: list[Outcome] = list(pixels)
    for i, why in enumerate(manifest.column("bad", rows)):
        if why is not None:
            outcomes[i] = BadPicture(f"{manifest.name(int(rows[i]))} could not be packed, it {why}", fix=FIX)
    return outcomes


def _next_good(manifest: Manifest, row: int, *, decoding: Decoding, first: BadPicture) -> tuple[int, NDArray[np.uint8]]:
    """The next row, in manifest order on the same side of the split, whose picture can be shown; and its pixels.

    Raises:
        DataError: there is none.
    """
    side = manifest.validation_rows if manifest.is_validation[row] else manifest.training_rows
    place = int(np.searchsorted(side, row))
    for step in range(1, len(side)):
        candidate = int(side[(place + step) % len(side)])
        outcome = read_outcomes(manifest, np.array([candidate]), decoding=decoding, threads=1)[0]
        if not isinstance(outcome, BadPicture):
            return candidate, outcome
    raise DataError(f"{first.what}, and no other row can stand in for it", fix="mend the data set")
