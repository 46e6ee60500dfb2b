"""Operations on files and directories at URLs; see the package for what they promise."""

import errno
import logging
import os
import posixpath
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import fsspec
import fsspec.config
from fsspec.core import url_to_fs

from iddpm_ray.errors import SpecError
from iddpm_ray.storage import local
from iddpm_ray.storage.retry import patiently
from iddpm_ray.storage.urls import is_local, join, name, reason, scheme, shown

_OBJECT_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "cos"})  # a folder is only a prefix
_CREATE_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs"})  # pipe_file(mode="create") carries the store's own precondition
_CHAINED_SCHEMES = frozenset(  # what reads from another store, named after `::`
    {"zip", "tar", "libarchive", "dir", "reference", "blockcache", "cached", "filecache", "simplecache", "asyncwrapper", "async_wrapper"}
)
_LISTING_SCHEMES = _CREATE_SCHEMES  # find() is one listing of a prefix, and raises when it fails
_CREATE_TRIES = 8
_PART_BYTES = 50 * 2**20  # larger files go to S3 and GCS in parts, each of which can be sent again
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    scheme: {"requests_timeout": 300.0}
    for scheme in ("gs", "gcs")  # gcsfs itself would wait for ever on a connection that hangs
}
_gcsfs = logging.getLogger("gcsfs")
if _gcsfs.level == logging.NOTSET:  # it logs a traceback of its own for every error that it also raises, which is told here or by `retry`
    _gcsfs.setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Entry:
    """One name in a directory; size in bytes, 0 for a directory."""

    name: str
    size: int
    is_dir: bool


@dataclass(frozen=True)
class FileInfo:
    """One file under a directory: relative posix path, size in bytes, and a tag that changes when the content does."""

    path: str
    size: int
    tag: str


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec filesystem of a URL, and the path inside it; no listing is cached.

    `::` leads to another store in a chain, such as `zip://a.yaml::gs://b/c.zip`; in any other URL it is a part of a name.

    Raises:
        SpecError: no such scheme, or its package is not installed.
    """
    chosen = fsspec.config.conf.get(scheme(url), {})
    options = {key: value for key, value in _OPTIONS.get(scheme(url), {}).items() if key not in chosen}
    above, below = _cut(url)
    try:
        fs, path = url_to_fs(above, use_listings_cache=False, **options)
        return fs, posixpath.join(path, below) if below else path
    except ImportError as error:
        raise SpecError(f"{scheme(url)}:// needs a package that is not installed", value=shown(url), fix=reason(error)) from None
    except ValueError as error:
        if scheme(url) in fsspec.available_protocols():
            raise
        raise SpecError(
            f"no file system is known for {scheme(url)}://", value=shown(url), fix="use gs://, s3:// or a local path"
        ) from error


def _cut(url: str) -> tuple[str, str]:
    """The URL up to the folder whose names hold `::`, which fsspec would take for a chain, and what lies below it."""
    first, colons, _ = url.partition("::")
    if not colons or first.partition("://")[0] in _CHAINED_SCHEMES:
        return url, ""
    start = first.rfind("/") + 1
    return url[:start] or ".", url[start:].rstrip("/")


def absolute(url: str) -> str:
    """The URL itself, or the absolute form of a local path, which means the same after a change of directory."""
    return filesystem(url)[1] if is_local(url) else url


def exists(url: str) -> bool:
    """Whether a file or directory is there. A store that cannot answer raises: it is not taken for "no"."""
    return _info(url) is not None


def is_dir(url: str) -> bool:
    """Whether the URL is a directory (on object stores: a prefix of something)."""
    info = _info(url)
    return info is not None and info["type"] == "directory"


def size(url: str) -> int | None:
    """Bytes of a file, or None if there is no such file."""
    info = _info(url)
    return None if info is None or info["type"] == "directory" else int(info["size"] or 0)


@patiently
def modified(url: str) -> float:
    """When the file was last written, in seconds since 1970 by the store's own clock; compare only with the same store's."""
    fs, path = filesystem(url)
    return fs.modified(path).timestamp()


@patiently
def read_bytes(url: str, *, start: int | None = None, end: int | None = None) -> bytes:
    """The file's content, or its bytes [start, end)."""
    fs, path = filesystem(url)
    return fs.cat_file(path, start=start, end=end)


@patiently
def write_whole(url: str, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none: a synced temporary file and a rename, or one put."""
    fs, path = filesystem(url)
    if is_local(url):
        local.replace(path, data)
        return
    if scheme(url) not in _OBJECT_SCHEMES:
        fs.makedirs(fs._parent(path), exist_ok=True)
    if scheme(url) in _CREATE_SCHEMES:
        fs.pipe_file(path, data, chunksize=_PART_BYTES)
    else:
        fs.pipe_file(path, data)


@patiently
def write_checked(url: str, data: bytes) -> None:
    """`write_whole`, and then a look at what is there: for the few small files that everything depends on.

    Raises:
        OSError: the store did not keep what it was sent. A failure that it only reported, after having kept it, is none.
    """
    failure: Exception | None = None
    try:
        write_whole(url, data)
    except Exception as error:  # a store may raise anything; what it holds decides
        failure = error
    try:
        kept = read_bytes(url) == data
    except FileNotFoundError:
        kept = False
    if not kept:
        raise failure or OSError(errno.EIO, f"the store did not keep what it was sent as {name(url)}")


@patiently
def create(url: str, data: bytes) -> bool:
    """Write a file only if nothing is there; False if something is.

    Exactly one of many callers gets True where the store has a precondition for it: local disks (a hard link, or
    O_EXCL), S3 (If-None-Match) and GCS (ifGenerationMatch=0). On other stores this is a check and then a write. A store
    that reports a failure after it has written, and is asked again by its client, also ends in False: put something
    of your own into `data` and read it back if that matters.
    """
    fs, path = filesystem(url)
    if is_local(url):
        return local.create(path, data)
    if scheme(url) in _CREATE_SCHEMES:
        return _create_object(fs, path, data)
    if exists(url):
        return False
    write_whole(url, data)
    return True


@patiently
def list_dir(url: str) -> list[Entry]:
    """What a directory holds, sorted by name; [] if it is absent.

    Raises:
        NotADirectoryError: the URL is a file.
    """
    fs, path = filesystem(url)
    try:
        infos = fs.ls(path, detail=True)
    except FileNotFoundError:
        return []
    own = _clean(fs, path)
    if len(infos) == 1 and infos[0]["type"] != "directory" and infos[0]["name"] == own:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown(url))
    entries = (
        Entry(
            name=name(info["name"]), size=0 if info["type"] == "directory" else int(info["size"] or 0), is_dir=info["type"] == "directory"
        )
        for info in infos
        if _clean(fs, info["name"]) != own  # object stores list the folder's own placeholder
    )
    return sorted(entries, key=lambda entry: entry.name)


@patiently
def find(url: str) -> list[FileInfo]:
    """Every file below a directory, sorted by path; [] if it is absent. Local links are followed.

    A local link to nothing is listed with the tag "broken-link".

    Raises:
        NotADirectoryError: the URL is a file.
    """
    fs, path = filesystem(url)
    if is_local(url):
        if os.path.isfile(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), url)
        walked = (FileInfo(file.path, file.size, str(file.changed_ns or "broken-link")) for file in local.walk(path))
        return sorted(walked, key=lambda file: file.path)
    own = _clean(fs, path)
    try:
        infos = fs.find(path, detail=True).values() if scheme(url) in _LISTING_SCHEMES else list(_descend(fs, path))
    except FileNotFoundError:
        return []
    if [info["name"] for info in infos] == [own]:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown(url))
    files = (
        FileInfo(path=info["name"][len(own) :].lstrip("/"), size=int(info["size"] or 0), tag=_tag(info))
        for info in infos
        if info["type"] != "directory" and not info["name"].endswith("/")  # a name that ends so is a folder's placeholder
    )
    return sorted(files, key=lambda file: file.path)


@patiently
def delete(url: str) -> None:
    """Delete a file; an absent one is fine."""
    fs, path = filesystem(url)
    try:
        fs.rm_file(path)
    except FileNotFoundError:
        return


@patiently
def delete_tree(url: str) -> None:
    """Delete a directory and everything in it; an absent one is fine."""
    fs, path = filesystem(url)
    try:
        if is_local(url):
            shutil.rmtree(path)
        else:
            fs.rm(path, recursive=True)
    except FileNotFoundError:
        if exists(url):  # somebody deleted a part of it at the same time
            raise


@patiently
def make_dirs(url: str) -> None:
    """Make a directory and those above it; nothing to do on object stores."""
    fs, path = filesystem(url)
    if scheme(url) not in _OBJECT_SCHEMES:
        fs.makedirs(path, exist_ok=True)


def check_writable(url: str, *, field: str = "run.output_dir") -> None:
    """Write, read and delete a small file under the URL.

    Raises:
        SpecError: it cannot be done; names the field, the URL and why.
    """
    probe = join(url, f".write-check-{secrets.token_hex(8)}")
    try:
        write_whole(probe, b"x")
        same = read_bytes(probe) == b"x"
        delete(probe)
    except SpecError:
        raise
    except Exception as error:  # a store may raise anything here, and all of it means: not writable
        raise SpecError(
            f"{field} is not writable: {reason(error)}", value=shown(url), fix="name a directory or bucket this job may write to"
        ) from error
    if not same:
        raise SpecError(f"{field} does not give back what was written", value=shown(url), fix="name another directory or bucket")


@patiently
def _info(url: str) -> Mapping[str, Any] | None:
    fs, path = filesystem(url)
    try:
        return fs.info(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _descend(fs: Any, path: str) -> Iterator[Mapping[str, Any]]:
    """Files below a directory, listing by listing. fsspec's own walk takes a listing that fails for an empty one."""
    own = _clean(fs, path)
    for info in fs.ls(path, detail=True):
        if info["type"] != "directory":
            yield info
        elif _clean(fs, info["name"]) != own:
            with suppress(FileNotFoundError):  # deleted meanwhile, which must not make the whole seem absent
                yield from list(_descend(fs, info["name"]))


def _clean(fs: Any, path: str) -> str:
    return fs._strip_protocol(path).rstrip("/")


def _tag(info: Mapping[str, Any]) -> str:
    for key in ("md5Hash", "ETag", "etag", "crc32c", "content_md5", "LastModified", "mtime", "created", "last_modified"):
        if info.get(key) not in (None, ""):
            return str(info[key]).strip('"')
    return ""


def _create_object(fs: Any, path: str, data: bytes) -> bool:
    for attempt in range(_CREATE_TRIES):
        try:
            fs.pipe_file(path, data, mode="create")
            return True
        except FileExistsError:
            return False
        except OSError as error:
            code = _store_code(error)
            if code == "PreconditionFailed":  # older s3fs call it an invalid argument
                return False
            if code != "ConditionalRequestConflict" or attempt == _CREATE_TRIES - 1:
                raise
        time.sleep(0.05 * 2**attempt)  # S3: another conditional write of the same key is under way
    raise AssertionError("unreachable")


def _store_code(error: BaseException) -> str:
    response = getattr(error.__cause__ or error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, Mapping) else ""
