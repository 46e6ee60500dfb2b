"""Parquet files of pictures: which rows they hold, their label column, and the bytes of single rows through a bounded cache."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from iddpm_ray import storage
from iddpm_ray.data.image import FIX, BadPicture
from iddpm_ray.errors import DataError

_CACHE_BYTES = 256 << 20
_GROUP_BYTES = 4 << 30  # of one row group, which is read whole
_FIX = "write it again or remove it; this job must have the right to read it"

Version = tuple[int, str]  # size and tag of a file


@dataclass(frozen=True)
class TableRows:
    """What a manifest needs of one Parquet file: its row count, and its label column if one is wanted."""

    num_rows: int
    labels: pa.ChunkedArray | None


@storage.patiently
def read_table_rows(url: str, *, image_column: str, label_column: str | None) -> TableRows:
    """Reads the footer and the label column, no pictures.

    Raises:
        DataError: not Parquet, damaged or not to be read; a column is missing (the others are named), or the image column holds no bytes.
    """
    shown = storage.shown(url)
    file = _open(url)
    schema = file.schema_arrow
    for field, column in (("data.image_column", image_column), ("data.label_column", label_column)):
        if column is not None and column not in schema.names:
            raise DataError(f"{field} = {column}: {shown} has no such column", fix=f"it has {', '.join(schema.names)}")
    if _byte_column(schema, image_column) is None:
        kind = schema.field(image_column).type
        raise DataError(
            f"data.image_column = {image_column}: the column of {shown} holds {kind}, not picture files as bytes",
            fix="name a binary column",
        )
    return TableRows(file.metadata.num_rows, None if label_column is None else _label_column(file, label_column, url))


def _label_column(file: pq.ParquetFile, name: str, url: str) -> pa.ChunkedArray:
    parts = []
    for group in range(file.num_row_groups):
        try:
            column = file.read_row_group(group, columns=[name]).column(name)
            column.validate(full=True)  # text that is not UTF-8 is damage too
        except Exception as error:
            if not _is_damage(error):
                raise
            what = f"{storage.shown(url)}: column {name} of its row group {group} cannot be read: {storage.reason(error)}"
            raise DataError(what, fix=_FIX) from error
        parts.append(column)
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=file.schema_arrow.field(name).type)


def read_pictures(
    root: str, paths: Sequence[str], rows: NDArray[np.int64], *, versions: Sequence[Version], image_column: str
) -> list[bytes | BadPicture]:
    """The picture files at (path, row within it), in the order asked for; b"" where the table holds none, and what is the matter with the
    row group where it is damaged.

    Every row group is read at most once a call. A row group is the least that Parquet gives: for training from large row groups in shuffled
    order, pack the set first.

    Args:
        versions: each file's, so that a file written anew is read anew.

    Raises:
        DataError: a file has no such row or column any more.
    """
    out: list[bytes | BadPicture] = [b""] * len(paths)
    wanted: dict[tuple[str, Version, int], list[int]] = {}
    offsets: dict[tuple[str, Version], NDArray[np.int64]] = {}
    for i, (path, version) in enumerate(zip(paths, versions, strict=True)):
        url = storage.join(root, path)
        if (url, version) not in offsets:
            offsets[url, version] = _group_offsets(url, version)
        group = int(np.searchsorted(offsets[url, version], rows[i], side="right")) - 1
        wanted.setdefault((url, version, group), []).append(i)
    for (url, version, group), places in wanted.items():
        column = _groups.get(url, version, group, image_column)
        if isinstance(column, BadPicture):
            for i in places:
                out[i] = column
            continue
        within = rows[places] - offsets[url, version][group]
        if within.max() >= len(column):
            raise _rewritten(url)
        for i, row in zip(places, within.tolist(), strict=True):
            out[i] = column[row].as_py() or b""
    return out


def _byte_column(schema: pa.Schema, name: str) -> str | None:
    """Where the bytes of a picture are: the column itself, or the field `bytes` of a struct, as Hugging Face data sets have it."""
    kind = schema.field(name).type
    if _holds_bytes(kind):
        return name
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and _holds_bytes(kind.field("bytes").type):
        return f"{name}.bytes"
    return None


def _holds_bytes(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(
        test(kind) for test in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    )


def _open(url: str) -> pq.ParquetFile:
    fs, path = storage.filesystem(url)
    try:
        file = pq.ParquetFile(fs.open(path, "rb"))
        file.schema_arrow  # noqa: B018 names that are not UTF-8 are found here
        return file
    except Exception as error:
        if not _is_damage(error):
            raise
        raise DataError(f"{storage.shown(url)} is not a readable Parquet file: {storage.reason(error)}", fix=_FIX) from error


def _is_damage(error: Exception) -> bool:
    """Whether a file is at fault, not a store that does not answer: of damage too Arrow says that it is an OSError, without a number."""
    if storage.is_transient(error):
        return False
    gone = (FileNotFoundError, PermissionError, IsADirectoryError)
    return isinstance(error, (pa.ArrowException, UnicodeError, *gone)) or (type(error) is OSError and error.errno is None)


@lru_cache(maxsize=1024)
@storage.patiently
def _group_offsets(url: str, version: Version) -> NDArray[np.int64]:
    """First row of every row group; the version only keys the cache."""
    metadata = _open(url).metadata
    counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)[:-1]


class _Groups:
    """Image columns of the row groups last read, up to `_CACHE_BYTES` a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: OrderedDict[tuple[str, Version, int, str], pa.ChunkedArray | BadPicture] = OrderedDict()
        self._bytes = 0

    def get(self, url: str, version: Version, group: int, image_column: str) -> pa.ChunkedArray | BadPicture:
        """The bytes of every picture of a row group, or that it cannot be read, which is kept too: a neighbour may be asked for next."""
        key = (url, version, group, image_column)
        with self._lock:
            if key in self._columns:
                self._columns.move_to_end(key)
                return self._columns[key]
        column = _read_group(url, group, image_column)
        with self._lock:
            if key not in self._columns:
                self._columns[key] = column
                self._bytes += _bytes_of(column)
            while self._bytes > _CACHE_BYTES and len(self._columns) > 1:
                self._bytes -= _bytes_of(self._columns.popitem(last=False)[1])
        return column


def _bytes_of(column: pa.ChunkedArray | BadPicture) -> int:
    return 0 if isinstance(column, BadPicture) else column.nbytes


_groups = _Groups()


@storage.patiently
def _read_group(url: str, group: int, image_column: str) -> pa.ChunkedArray | BadPicture:
    file = _open(url)
    found = _byte_column(file.schema_arrow, image_column) if image_column in file.schema_arrow.names else None
    if found is None or not 0 <= group < file.num_row_groups:
        raise _rewritten(url)
    group_of = file.metadata.row_group(group)
    columns = (group_of.column(index) for index in range(group_of.num_columns))
    claimed = sum(column.total_uncompressed_size for column in columns if column.path_in_schema.startswith(found))
    if claimed > _GROUP_BYTES:
        what = f"{storage.shown(url)}: row group {group} claims {claimed} bytes of pictures, more than {_GROUP_BYTES}"
        raise DataError(what, fix="write the file with smaller row groups")
    try:
        column = file.read_row_group(group, columns=[found]).column(image_column)
        return column.flatten()[column.type.get_field_index("bytes")] if pa.types.is_struct(column.type) else column
    except Exception as error:
        if not _is_damage(error):
            raise
        return BadPicture(f"lies in row group {group}, which cannot be read: {storage.reason(error)}", fix=FIX)


def _rewritten(url: str) -> DataError:
    what = f"{storage.shown(url)} has fewer rows than the data set was listed with, or other columns: it was written anew"
    return DataError(what, fix="restore it, or start again, which lists the data set anew")
