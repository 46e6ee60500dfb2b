"""Large files without their bytes in memory: a local copy of what a URL holds, and outputs that are there whole or not at all."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from iddpm_ray import storage
from iddpm_ray.errors import CheckpointError, UserError


@contextmanager
def local_copy(url: str) -> Iterator[str]:
    """The path of a file on this machine: itself if it lies here, else a copy that is deleted afterwards (what is mapped of it stays).

    Raises:
        CheckpointError: it cannot be read; says why.
    """
    if storage.is_local(url):
        path = storage.absolute(url)
        if not os.path.isfile(path):
            raise _unreadable(url, "it is a directory" if os.path.isdir(path) else "it does not exist")
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, storage.name(url))
        try:
            fs, remote = storage.filesystem(url)
            storage.patiently(fs.get_file)(remote, path)
        except UserError:
            raise
        except Exception as error:  # every store raises its own kinds
            raise _unreadable(url, storage.reason(error)) from None
        yield path


def sha256_of(path: str) -> str:
    """Of a local file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_free(url: str, *, overwrite: bool) -> None:
    """Refuses to write over what is there, unless asked to.

    Raises:
        CheckpointError: something is there.
    """
    if not overwrite and storage.exists(url):
        raise CheckpointError(
            f"{storage.shown(url)} is there already, perhaps another job's and half written",
            fix="name another place, or give --overwrite to replace it",
        )


def write_folder(url: str, make: Callable[[str], None], *, overwrite: bool) -> None:
    """Makes a directory of files elsewhere and puts it in place once it is whole.

    Args:
        make: given an empty local directory, fills it, and raises if what it made must not be kept.
    """
    check_free(url, overwrite=overwrite)
    if storage.is_local(url):
        path = storage.absolute(url).rstrip("/")
        with _partial_beside(path) as folder:
            make(folder)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            elif os.path.lexists(path):
                os.unlink(path)
            os.replace(folder, path)
        return
    with tempfile.TemporaryDirectory() as folder:
        make(folder)
        if overwrite:
            storage.delete_tree(url)
        for above, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(above, name)
                _upload(path, storage.join(url, os.path.relpath(path, folder)))


def write_files(url: str, make: Callable[[str], None], *, overwrite: bool, beside: tuple[str, ...] = ()) -> None:
    """Makes a file elsewhere and puts it in place once it is whole.

    Args:
        make: given a local directory, writes there a file of the URL's name, and those named by `beside`; raises if it must not be kept.
        beside: names of further files for the same directory.
    """
    names = (*beside, storage.name(url))
    places = {name: storage.join(storage.parent(url), name) for name in names}
    for place in places.values():
        check_free(place, overwrite=overwrite)
    if storage.is_local(url):
        path = storage.absolute(url)
        with _partial_beside(path) as folder:
            make(folder)
            for name in names:
                os.replace(os.path.join(folder, name), os.path.join(os.path.dirname(path), name))
        return
    with tempfile.TemporaryDirectory() as folder:
        make(folder)
        for name, place in places.items():
            _upload(os.path.join(folder, name), place)


@contextmanager
def _partial_beside(path: str) -> Iterator[str]:
    above, name = os.path.split(path)
    try:
        os.makedirs(above, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f".{name}.", suffix=".partial", dir=above)
    except OSError as error:
        raise CheckpointError(f"cannot write to {above} ({storage.reason(error)})", fix="name a place that can be written") from None
    try:
        os.chmod(folder, 0o777 & ~_umask())
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _upload(path: str, url: str) -> None:
    try:
        fs, remote = storage.filesystem(url)
        storage.patiently(fs.put_file)(path, remote)
    except UserError:
        raise
    except Exception as error:  # every store raises its own kinds
        raise CheckpointError(
            f"cannot write {storage.shown(url)} ({storage.reason(error)})", fix="name a place that can be written"
        ) from None


def _unreadable(url: str, why: str) -> CheckpointError:
    return CheckpointError(f"cannot read {storage.shown(url)} ({why})", fix="give a path or URL that can be reached from here")
