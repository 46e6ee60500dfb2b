"""Rows of packed shards: fixed strides, so a row is a slice of a file."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from iddpm_ray import storage
from iddpm_ray.errors import DataError


def read_rows(
    root: str, paths: Sequence[str], rows: NDArray[np.int64], *, tags: Sequence[str], shape: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """Pixels [N, C, H, W] at (shard, row within it), in the order asked for; local shards are mapped, others read by ranges.

    Args:
        tags: each shard's tag, so that a shard written anew is mapped anew.

    Raises:
        DataError: a shard is gone or shorter than it should be.
        OSError: the store does not answer.
    """
    if storage.is_local(root):
        return _from_disk(root, paths, rows, tags=tags, shape=shape)
    stride = math.prod(shape)
    fs, _ = storage.filesystem(root)
    places = [storage.filesystem(storage.join(root, path))[1] for path in paths]
    starts = [int(row) * stride for row in rows]
    out = np.empty((len(paths), *shape), dtype=np.uint8)
    for i, part in enumerate(fs.cat_ranges(places, starts, [start + stride for start in starts], on_error="return")):
        if isinstance(part, Exception) and storage.is_transient(part):
            part = _again(storage.join(root, paths[i]), start=starts[i], end=starts[i] + stride)
        if isinstance(part, FileNotFoundError) or (isinstance(part, bytes) and len(part) != stride):
            raise _short(root, paths[i])
        if isinstance(part, BaseException):
            raise OSError(f"{storage.shown(storage.join(root, paths[i]))} could not be read: {storage.reason(part)}") from part
        out[i] = np.frombuffer(part, dtype=np.uint8).reshape(shape)
    return out


def _again(url: str, *, start: int, end: int) -> bytes | Exception:
    """A range that failed in a moment that may have passed, asked for by itself and patiently."""
    try:
        return storage.read_bytes(url, start=start, end=end)
    except Exception as error:  # told where the row is known
        return error


def _from_disk(
    root: str, paths: Sequence[str], rows: NDArray[np.int64], *, tags: Sequence[str], shape: tuple[int, int, int]
) -> NDArray[np.uint8]:
    out = np.empty((len(paths), *shape), dtype=np.uint8)
    stride = math.prod(shape)
    places: dict[tuple[str, str], list[int]] = {}
    for i, key in enumerate(zip(paths, tags, strict=True)):
        places.setdefault(key, []).append(i)
    for (path, tag), chosen in places.items():
        try:
            shard = _mapped(storage.filesystem(storage.join(root, path))[1], tag)
        except FileNotFoundError as error:
            raise _short(root, path) from error
        if int(rows[chosen].max() + 1) * stride > shard.size:
            raise _short(root, path)
        out[chosen] = shard[: shard.size // stride * stride].reshape(-1, *shape)[rows[chosen]]
    return out


@lru_cache(maxsize=512)
@storage.patiently
def _mapped(path: str, tag: str) -> NDArray[np.uint8]:
    """A shard as memory; the tag only keys the cache."""
    return np.memmap(path, dtype=np.uint8, mode="r")


def _short(root: str, path: str) -> DataError:
    what = f"packed set {storage.shown(root)}: {path} is gone or shorter than its manifest says"
    return DataError(what, fix="run jobs/prepare.py with the same arguments again")
