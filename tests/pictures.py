"""Small picture files for tests."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def noise(seed: int, *, height: int = 20, width: int = 24, channels: int = 3) -> np.ndarray:
    """Random pixels [H, W, C] uint8, or [H, W] for one channel."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return pixels[:, :, 0] if channels == 1 else pixels


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """A picture as a file's bytes."""
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return sink.getvalue()


def make_folder(folder: Path, count: int, *, classes: int = 3) -> list[str]:
    """`count` different PNG files in one folder a class, their paths sorted."""
    paths = [f"class{i % classes}/kind{i % 2}_{i:04d}.png" for i in range(count)]
    for i, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(file_of(Image.fromarray(noise(i))))
    return sorted(paths)


def make_parquet(folder: Path, pictures: list[bytes], labels: list[Any], *, files: int = 2, group: int = 3, struct: bool = False) -> None:
    """The pictures in their order in Parquet files with the columns `image` and `label`, in small row groups."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, places in enumerate(np.array_split(np.arange(len(pictures)), files)):
        data = [pictures[i] for i in places]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())]) if struct else pa.binary()
        images = pa.array([{"bytes": one, "path": None} for one in data] if struct else data, kind)
        table = pa.table({"image": images, "label": pa.array([labels[i] for i in places])})
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=group)
