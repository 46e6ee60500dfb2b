"""Local files: written whole or not at all, created once, walked with their links followed."""

import errno
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

_NOT_OFFERED = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL})


@dataclass(frozen=True)
class LocalFile:
    """A file below a folder: relative path, size in bytes, time of last change in ns; None for a link to nothing."""

    path: str
    size: int
    changed_ns: int | None


def replace(path: str, data: bytes) -> None:
    """Write a synced temporary file beside `path` and rename it over `path`."""
    temporary = _write_temporary(path, data)
    try:
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path))


def create(path: str, data: bytes) -> bool:
    """Write `path` only if it is absent: a hard link to a complete file, or O_EXCL where there are no hard links."""
    temporary = _write_temporary(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
        try:
            _write_synced(path, data)
        except FileExistsError:
            return False
    finally:
        os.unlink(temporary)
    sync_folder(os.path.dirname(path))
    return True


def walk(folder: str) -> Iterator[LocalFile]:
    """Every file below the folder, in no particular order; links are followed, but no directory inside itself."""
    yield from _walk(folder, "", ())


def _walk(folder: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[LocalFile]:
    try:
        status = os.stat(folder)
        entries = list(os.scandir(folder))
    except FileNotFoundError:  # deleted meanwhile
        return
    own = (status.st_dev, status.st_ino)
    if own in above:
        return
    for entry in entries:
        path = prefix + entry.name
        try:
            if entry.is_dir():
                yield from _walk(entry.path, path + "/", (*above, own))
            elif entry.is_file():
                found = entry.stat()
                yield LocalFile(path, found.st_size, found.st_mtime_ns)
            elif entry.is_symlink():
                yield LocalFile(path, 0, None)
        except FileNotFoundError:
            continue


def _write_temporary(path: str, data: bytes) -> str:
    """A complete, synced temporary file beside `path`; its name says that it is one."""
    folder, base = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{base}.{secrets.token_hex(8)}.partial")
    try:
        _write_synced(temporary, data)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    return temporary


def _write_synced(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: str) -> None:
    """Make a rename in the folder survive a power cut, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
    finally:
        os.close(handle)
