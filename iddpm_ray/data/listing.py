"""What lies at `data.path`: a folder of pictures, Parquet files, or a packed set; found by listing alone."""

import os
import posixpath
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from PIL import Image

from iddpm_ray import storage
from iddpm_ray.errors import DataError, UserError
from iddpm_ray.storage import FileInfo

Kind = Literal["folder", "parquet", "packed"]

PACKED_MANIFEST = "manifest.arrow"
PACKED_PLAN = "pack.json"

# Formats whose names Pillow knows but whose pixels it never decodes by itself.
_NAMES_ONLY = {"BUFR", "GRIB", "HDF5", "MPEG", "WMF"}


@dataclass(frozen=True)
class Listing:
    """The files of a data set.

    Attributes:
        root: URL that the paths are relative to.
        files: pictures, Parquet files or shards, sorted by path.
    """

    root: str
    kind: Kind
    files: tuple[FileInfo, ...]


@cache
def picture_extensions() -> frozenset[str]:
    """Extensions, in lower case and with their dot, of every format that Pillow decodes."""
    Image.init()
    return frozenset(ext for ext, kind in Image.registered_extensions().items() if kind in Image.OPEN and kind not in _NAMES_ONLY)


def list_data(path: str) -> Listing:
    """Lists a data set recursively; files and folders whose name begins with a dot are left out.

    Raises:
        DataError: missing, unreadable, empty, without pictures, or a half-finished packing.
    """
    if storage.carries_credentials(path):
        raise DataError(
            "data.path holds credentials", value=storage.shown(path), fix="leave them to the environment: a URL is saved and shown"
        )
    root = storage.absolute(path)
    try:
        if not storage.exists(root):
            raise DataError(
                "data.path does not exist", value=storage.shown(path), fix="name a folder of pictures, a Parquet file or a packed set"
            )
        if not storage.is_dir(root):
            return _single_file(root)
        everything = storage.find(root)
    except UserError:
        raise
    except Exception as error:  # without access or network, stores raise errors of their own
        raise DataError(
            f"data.path cannot be listed: {storage.reason(error)}",
            value=storage.shown(path),
            fix="give this job the right to list and read it",
        ) from error
    files = [file for file in everything if not any(part.startswith(".") for part in file.path.split("/"))]
    names = {file.path for file in files}
    if PACKED_MANIFEST in names and PACKED_PLAN in names:
        return Listing(root, "packed", tuple(file for file in files if file.path.endswith(".u8") or file.path == PACKED_MANIFEST))
    if PACKED_PLAN in names:
        raise DataError(
            "data.path holds a packing that is not finished",
            value=storage.shown(path),
            fix="run jobs/prepare.py with the same arguments again",
        )
    return _folder_or_parquet(root, files)


def _folder_or_parquet(root: str, files: list[FileInfo]) -> Listing:
    shown = storage.shown(root)
    extensions = picture_extensions()
    pictures = sorted((file for file in files if _extension(file.path) in extensions), key=lambda file: file.path)
    tables = sorted((file for file in files if _extension(file.path) == ".parquet"), key=lambda file: file.path)
    if pictures and tables:
        what = f"data.path holds both pictures ({pictures[0].path} ...) and Parquet files ({tables[0].path} ...)"
        raise DataError(what, value=shown, fix="point data.path at one of them")
    if tables:
        return Listing(root, "parquet", _named(tables))
    if pictures:
        return Listing(root, "folder", _named(pictures))
    if not files:
        raise DataError("data.path is empty", value=shown, fix="put pictures or Parquet files into it, or check the path")
    seen = Counter(_extension(file.path) or "no extension" for file in files)
    kinds = ", ".join(f"{name} ({count})" for name, count in seen.most_common(8))
    raise DataError(
        f"data.path holds no pictures; it holds {kinds}",
        value=shown,
        fix="pictures are known by extensions such as .jpg, .png, .webp or .tif",
    )


def _single_file(root: str) -> Listing:
    if _extension(root) != ".parquet":
        raise DataError(
            "data.path is a file but not a Parquet file", value=storage.shown(root), fix="name the folder that holds the pictures"
        )
    folder, name = storage.parent(root), storage.name(root)
    return Listing(folder, "parquet", _named([file for file in storage.find(folder) if file.path == name]))


def _named(files: Sequence[FileInfo]) -> tuple[FileInfo, ...]:
    """The files, if all their names are text, as a manifest keeps them; a local disk takes any bytes for a name.

    Raises:
        DataError: with the bytes of the first that is not.
    """
    odd = [file.path for file in files if not file.path.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in file.path)]
    if odd:
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        name = os.fsencode(odd[0]).decode(errors="backslashreplace")
        raise DataError(f"data.path holds a file whose name is not UTF-8: {name}{more}", fix="rename it, for instance by convmv -t utf8")
    return tuple(files)


def _extension(path: str) -> str:
    return posixpath.splitext(path)[1].lower()
