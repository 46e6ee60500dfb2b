"""A file too large for memory, written piece by piece and there only when it is whole."""

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from iddpm_ray.storage.files import filesystem, make_dirs
from iddpm_ray.storage.local import sync_folder
from iddpm_ray.storage.retry import patiently
from iddpm_ray.storage.urls import is_local, parent


@contextmanager
def writing(url: str) -> Iterator[BinaryIO]:
    """A file to write to, which replaces what is at the URL once the block has ended well, and leaves nothing if it has not.

    On a local disk it grows beside its place and is renamed; for any other store it grows on this machine and is sent whole.
    """
    path = filesystem(url)[1]
    if is_local(url):
        folder, base = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        temporary = os.path.join(folder, f".{base}.{secrets.token_hex(8)}.partial")
    else:
        handle, temporary = tempfile.mkstemp(prefix="iddpm-", suffix=".partial")
        os.close(handle)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if is_local(url):
            os.replace(temporary, path)
            sync_folder(os.path.dirname(path))
        else:
            _send(url, temporary)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


@patiently
def _send(url: str, file: str) -> None:
    fs, path = filesystem(url)
    make_dirs(parent(url))
    fs.put_file(file, path)
