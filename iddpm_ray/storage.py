"""Files at URLs of any fsspec scheme: list, read, write whole, create only if absent, delete.

A bare path is a local one. Every function asks the store itself: no listing is ever served from a cache, so what
another machine wrote a moment ago is seen. Errors are those of Python (FileNotFoundError, PermissionError, OSError)
unless said otherwise; `reason` turns any of them into words without secrets.
"""

import errno
import os
import posixpath
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.core import url_to_fs

from iddpm_ray.errors import SpecError

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*)://")
_LOCAL_SCHEMES = frozenset({"file", "local"})
_OBJECT_SCHEMES = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "cos"}
)  # folders are only prefixes there
_CREATE_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs"})  # pipe_file(mode="create") carries the store's own precondition
_CREATE_TRIES = 8
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL})
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(https?://[^\s?]+)\?\S+")
_NAMED_SECRET = re.compile(
    r"(?i)([\"']?[\w-]*(?:token|secret|passw|credential|signature|api_?key|access_?key|account_?key|authorization)[\w-]*[\"']?\s*[=:]\s*)"
    r"((?:Bearer\s+)?(?:\"[^\"]*\"|'[^']*'|[^\s,;)}\]]+))"
)


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


def scheme(url: str) -> str:
    """The scheme in lower case, "file" for a bare path."""
    found = _SCHEME.match(url)
    return found.group(1).lower() if found else "file"


def is_local(url: str) -> bool:
    """Whether the URL is a path of this machine."""
    return scheme(url) in _LOCAL_SCHEMES


def absolute(url: str) -> str:
    """The URL itself, or the absolute form of a local path, which means the same after a change of directory."""
    return filesystem(url)[1] if is_local(url) else url


def join(url: str, *parts: str) -> str:
    """Append path parts: join("gs://b/run", "checkpoints", "x") = "gs://b/run/checkpoints/x"."""
    return posixpath.join(url, *(part.strip("/") for part in parts if part.strip("/")))


def parent(url: str) -> str:
    """The URL without its last part; the root of a bucket or disk is its own parent."""
    found = _SCHEME.match(url)
    prefix = found.group(0) if found else ""
    rest = url[len(prefix) :].rstrip("/")
    above = posixpath.dirname(rest)
    return prefix + above if above else (prefix + rest if prefix else ".")


def name(url: str) -> str:
    """The last part of the URL."""
    return posixpath.basename(url.rstrip("/"))


def shown(url: str) -> str:
    """The URL as it may be printed: without user, password, or query."""
    return _USER_INFO.sub("", _QUERY.sub(r"\1", url))


def reason(error: BaseException) -> str:
    """Why an operation on a store failed, in words and without secrets."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "no space left on device"
    if isinstance(error, PermissionError) or number == errno.EROFS or str(error).startswith("Forbidden"):
        return "permission denied"
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    text = " ".join(_NAMED_SECRET.sub(r"\1***", shown(str(error))).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec filesystem of a URL, and the path inside it; no listing is cached.

    Raises:
        SpecError: no such scheme, or its package is not installed.
    """
    try:
        return url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise SpecError(f"{scheme(url)}:// needs a package that is not installed", value=shown(url), fix=reason(error)) from None
    except ValueError as error:
        if scheme(url) in fsspec.available_protocols():
            raise
        raise SpecError(
            f"no file system is known for {scheme(url)}://", value=shown(url), fix="use gs://, s3:// or a local path"
        ) from error


def exists(url: str) -> bool:
    """Whether a file or directory is there. A store that cannot answer raises: it is not taken for "no"."""
    return _info(url) is not None


def is_dir(url: str) -> bool:
    """Whether the URL is a directory (on object stores: a prefix of something)."""
    info = _info(url)
    return info is not None and info["type"] == "directory"


def read_bytes(url: str, *, start: int | None = None, end: int | None = None) -> bytes:
    """The file's content, or its bytes [start, end)."""
    fs, path = filesystem(url)
    return fs.cat_file(path, start=start, end=end)


def write_whole(url: str, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none: a synced temporary file and a rename, or one put."""
    fs, path = filesystem(url)
    if is_local(url):
        temporary = _write_temporary(path, data)
        try:
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        _sync_directory(os.path.dirname(path))
        return
    if scheme(url) not in _OBJECT_SCHEMES:
        fs.makedirs(fs._parent(path), exist_ok=True)
    fs.pipe_file(path, data)


def create(url: str, data: bytes) -> bool:
    """Write a file only if nothing is there; False if something is.

    Exactly one of many callers gets True where the store has a precondition for it: local disks (a hard link, or
    O_EXCL), S3 (If-None-Match) and GCS (ifGenerationMatch=0). On other stores this is a check and then a write.
    """
    fs, path = filesystem(url)
    if is_local(url):
        return _create_local(path, data)
    if scheme(url) in _CREATE_SCHEMES:
        return _create_object(fs, path, data)
    if exists(url):
        return False
    write_whole(url, data)
    return True


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
    if len(infos) == 1 and infos[0]["type"] != "directory" and _clean(fs, infos[0]["name"]) == own and not infos[0]["name"].endswith("/"):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown(url))
    entries = (
        Entry(
            name=name(info["name"]), size=0 if info["type"] == "directory" else int(info["size"] or 0), is_dir=info["type"] == "directory"
        )
        for info in infos
        if _clean(fs, info["name"]) != own  # object stores list the folder's own placeholder
    )
    return sorted(entries, key=lambda entry: entry.name)


def find(url: str) -> list[FileInfo]:
    """Every file below a directory, sorted by path; [] if it is absent. Links are followed, each directory once.

    A local link to nothing is listed with the tag "broken-link".

    Raises:
        NotADirectoryError: the URL is a file.
    """
    fs, path = filesystem(url)
    if is_local(url):
        if os.path.exists(path) and not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), url)
        return sorted(_walk_local(path, "", set()), key=lambda file: file.path)
    try:
        infos: Mapping[str, Mapping[str, Any]] = fs.find(path, detail=True)
    except FileNotFoundError:
        return []
    own = _clean(fs, path)
    if own in infos and len(infos) == 1:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown(url))
    files = (
        FileInfo(path=full[len(own) :].lstrip("/"), size=int(info["size"] or 0), tag=_tag(info))
        for full, info in infos.items()
        if info["type"] == "file" and not full.endswith("/") and full != own
    )
    return sorted(files, key=lambda file: file.path)


def delete(url: str) -> None:
    """Delete a file; an absent one is fine."""
    fs, path = filesystem(url)
    try:
        fs.rm_file(path)
    except FileNotFoundError:
        return


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


def _info(url: str) -> Mapping[str, Any] | None:
    fs, path = filesystem(url)
    try:
        return fs.info(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _clean(fs: Any, path: str) -> str:
    return fs._strip_protocol(path).rstrip("/")


def _tag(info: Mapping[str, Any]) -> str:
    for key in ("md5Hash", "ETag", "etag", "crc32c", "content_md5", "LastModified", "mtime", "created", "last_modified"):
        if info.get(key) not in (None, ""):
            return str(info[key]).strip('"')
    return ""


def _walk_local(path: str, prefix: str, seen: set[tuple[int, int]]) -> Iterator[FileInfo]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    if (status.st_dev, status.st_ino) in seen:  # a link back to a directory above
        return
    seen.add((status.st_dev, status.st_ino))
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            relative = prefix + entry.name
            if entry.is_dir():
                yield from _walk_local(entry.path, relative + "/", seen)
            elif entry.is_file():
                found = entry.stat()
                yield FileInfo(path=relative, size=found.st_size, tag=str(found.st_mtime_ns))
            elif entry.is_symlink():
                yield FileInfo(path=relative, size=0, tag="broken-link")


def _write_temporary(path: str, data: bytes) -> str:
    """A complete, synced temporary file beside `path`; its name says that it is one."""
    folder, base = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{base}.{secrets.token_hex(8)}.partial")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    return temporary


def _sync_directory(folder: str) -> None:
    """Make a rename in the folder survive a power cut, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
    finally:
        os.close(handle)


def _create_local(path: str, data: bytes) -> bool:
    temporary = _write_temporary(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        try:
            with open(path, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return False
    finally:
        os.unlink(temporary)
    _sync_directory(os.path.dirname(path))
    return True


def _create_object(fs: Any, path: str, data: bytes) -> bool:
    for attempt in range(_CREATE_TRIES):
        try:
            fs.pipe_file(path, data, mode="create")
            return True
        except FileExistsError:
            return False
        except OSError as error:
            code = _store_code(error)
            if code == "PreconditionFailed":  # s3fs before 2025 calls it an invalid argument
                return False
            if code != "ConditionalRequestConflict" or attempt == _CREATE_TRIES - 1:
                raise
        time.sleep(0.05 * 2**attempt)  # S3: another conditional write of the same key is under way
    raise AssertionError("unreachable")


def _store_code(error: BaseException) -> str:
    response = getattr(error.__cause__ or error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, Mapping) else ""
