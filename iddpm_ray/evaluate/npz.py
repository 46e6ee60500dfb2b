"""Pictures in npz files as the programs of Improved DDPM write them, read and written a few rows at a time.

`arr_0` is uint8 [N, H, W, C], `arr_1` the class of each, if there are classes. Nothing of a file is ever unpickled.
"""

import io
import struct
import zipfile
from collections.abc import Iterable, Mapping
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from iddpm_ray import storage
from iddpm_ray.errors import DataError

PICTURES, LABELS = "arr_0", "arr_1"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0, (3, 0): npy.read_array_header_2_0}
_LOCAL_HEADER = 30  # bytes of a member's own header before its name
_FIX = "give an npz with arr_0, uint8 [N, H, W, C], and perhaps arr_1, whole numbers [N], as jobs/sample.py writes it"


class PictureFile:
    """An npz of pictures, whose rows are read as they are asked for.

    Attributes:
        shape: (N, H, W, C).
        labels: whole numbers [N] of the file's own type, or None.
    """

    def __init__(self, url: str) -> None:
        """Raises:
        DataError: no such file, no npz, other arrays, another type or shape.
        """
        self._name = storage.shown(url)
        try:
            fs, path = storage.filesystem(url)
            self._file: BinaryIO = fs.open(path, "rb")
        except Exception as error:  # every store raises its own kinds
            raise DataError(f"cannot read {self._name} ({storage.reason(error)})", fix="name an npz file") from None
        try:
            self._archive = zipfile.ZipFile(self._file)
        except Exception:  # a damaged archive raises whatever it happens to hit
            raise DataError(f"{self._name} is no npz file", fix=_FIX) from None
        names = sorted(self._archive.namelist())
        if names not in ([f"{PICTURES}.npy"], [f"{PICTURES}.npy", f"{LABELS}.npy"]):
            held = ", ".join(name.removesuffix(".npy") if name.endswith(".npy") else f"{name} without .npy" for name in names)
            raise DataError(f"{self._name} holds {held or 'nothing'}", fix=_FIX)
        self._member, self._offset, self.shape = self._open_pictures()
        self.labels = self._read_labels() if len(names) > 1 else None

    @property
    def fingerprint(self) -> dict[str, int]:
        """Bytes and CRC-32 of each array, as the file's own directory has them."""
        return {
            f"{info.filename}:{what}": number
            for info in self._archive.infolist()
            for what, number in (("bytes", info.file_size), ("crc32", info.CRC))
        }

    def check(self) -> None:
        """Reads the whole file once, a little at a time, and holds it against its own checksums, which `rows` does not.

        Raises:
            DataError: it is cut short or damaged.
        """
        try:
            damaged = self._archive.testzip() is not None
        except Exception:  # as above
            damaged = True
        if damaged:
            raise self._damaged()

    def close(self) -> None:
        """Closes the file."""
        self._archive.close()
        self._file.close()

    def rows(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Rows [begin, end), uint8 [n, C, H, W].

        Raises:
            DataError: the file is cut short or damaged.
        """
        _, height, width, channels = self.shape
        each = height * width * channels
        wanted = (end - begin) * each
        try:
            data = self._read(self._offset + begin * each, wanted)
        except Exception:  # as above
            data = b""
        if len(data) != wanted:
            raise self._damaged()
        rows = np.frombuffer(data, dtype=np.uint8).reshape(end - begin, height, width, channels)
        return np.ascontiguousarray(rows.transpose(0, 3, 1, 2))

    def _read(self, start: int, length: int) -> bytes:
        """Bytes of the member; where it is stored as it is they are found in the file without reading what lies before them."""
        info = self._member
        if info.compress_type != zipfile.ZIP_STORED:
            with self._archive.open(info) as member:
                member.seek(start)
                return member.read(length)
        self._file.seek(info.header_offset)
        name, extra = struct.unpack("<26xHH", self._file.read(_LOCAL_HEADER))
        self._file.seek(info.header_offset + _LOCAL_HEADER + name + extra + start)
        return self._file.read(length)

    def _open_pictures(self) -> tuple[zipfile.ZipInfo, int, tuple[int, int, int, int]]:
        info = self._archive.getinfo(f"{PICTURES}.npy")
        with self._opened(info) as member:
            shape, by_column, dtype = self._header(member, PICTURES)
            offset = member.tell()
        if dtype != np.uint8 or len(shape) != 4 or by_column or shape[3] not in (1, 3) or min(shape) < 1:
            raise DataError(f"{PICTURES} of {self._name} holds {dtype} {list(shape)}", fix=_FIX)
        if info.file_size != offset + int(np.prod(shape, dtype=object)):
            raise DataError(f"{self._name} is damaged: {PICTURES} has not the bytes of its shape", fix="make or copy it again")
        return info, offset, shape

    def _read_labels(self) -> NDArray[np.integer]:
        with self._opened(self._archive.getinfo(f"{LABELS}.npy")) as member:
            shape, _, dtype = self._header(member, LABELS)
            if dtype.kind not in "iu" or shape != self.shape[:1]:
                raise DataError(f"{LABELS} of {self._name} holds {dtype} {list(shape)}", fix=_FIX)
            try:
                data = member.read(shape[0] * dtype.itemsize)
            except Exception:  # as above
                data = b""
        if len(data) != shape[0] * dtype.itemsize:
            raise self._damaged()
        return np.frombuffer(data, dtype=dtype)

    def _opened(self, info: zipfile.ZipInfo) -> IO[bytes]:
        try:
            return self._archive.open(info)
        except RuntimeError:
            what = f"{info.filename} of {self._name} is encrypted, or packed in a way that is not read here"
            raise DataError(what, fix="save it with numpy.savez") from None
        except Exception:  # as above
            raise self._damaged() from None

    def _header(self, member: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
        try:
            read = _HEADERS[npy.read_magic(member)]
            shape, by_column, dtype = read(member)
        except zipfile.BadZipFile:  # its checksum, where the first read takes all of it
            raise self._damaged() from None
        except Exception:  # as above
            raise DataError(f"{self._name} is damaged: {name} is no array", fix=_FIX) from None
        if dtype.hasobject:
            raise DataError(f"{name} of {self._name} holds Python objects, which would run code when they are read", fix=_FIX)
        return tuple(map(int, shape)), by_column, dtype

    def _damaged(self) -> DataError:
        return DataError(f"{self._name} is damaged or cut short", fix="make or copy it again")


def write_pictures(
    url: str, parts: Iterable[NDArray[np.uint8]], *, shape: tuple[int, int, int, int], labels: NDArray[np.int64] | None
) -> None:
    """Writes an npz of pictures whole, holding one part of them at a time.

    Args:
        parts: uint8 [n, H, W, C] each, in order.
        shape: (N, H, W, C) of all of them.
        labels: int64 [N], or None.
    """
    with storage.writing(url) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        with archive.open(f"{PICTURES}.npy", "w", force_zip64=True) as member:
            npy.write_array_header_1_0(member, {"shape": shape, "fortran_order": False, "descr": "|u1"})
            count = 0
            for part in parts:
                assert part.shape[1:] == shape[1:], (part.shape, shape)
                member.write(np.ascontiguousarray(part).tobytes())
                count += len(part)
            assert count == shape[0], (count, shape)
        if labels is not None:
            with archive.open(f"{LABELS}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, labels, allow_pickle=False)


def encode(arrays: Mapping[str, Any]) -> bytes:
    """A few arrays as the bytes of an npz; equal for equal arrays."""
    data = io.BytesIO()
    np.savez(data, **arrays)
    return data.getvalue()


def decode(data: bytes, *, name: str) -> dict[str, NDArray]:
    """What `encode` was given.

    Raises:
        DataError: it is damaged.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays = {key: found[key] for key in found.files}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise TypeError
    except Exception:  # a damaged archive raises whatever it happens to hit
        raise DataError(f"{name} is damaged", fix="delete it: the same command makes it again") from None
    return arrays
