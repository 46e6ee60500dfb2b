"""A file system of tests, faulty:///path, on top of local files: it counts its operations and does harm at a chosen one.

    register()
    with faults(Fault("pipe_file", at=2, kind="raise")):      # the third write of a whole file
        storage.write_whole("faulty:///tmp/x/y", b"...")

It is no local scheme for `storage`, so it is treated like an object store's: whole files, one operation each.
"""

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

SCHEME = "faulty"


@dataclass
class Fault:
    """What goes wrong at which operation.

    Attributes:
        operation: `pipe_file`, `cat_file`, `ls`, `rm_file`, `makedirs`, `info`, or "" for any of them.
        at: how many such operations go well before; -1: all of them go wrong.
        kind: `raise` (nothing is done), `short` (half the bytes are written, then an error), `silent` (half the bytes, no
            error), `lie` (done, then an error), `full` (no space left), `exit` (the process dies before), `exit_after`.
        path: only operations on paths that contain this.
    """

    operation: str
    at: int
    kind: str
    path: str = ""
    seen: int = field(default=0, init=False)


class _State:
    lock = threading.Lock()
    faults: Sequence[Fault] = ()
    log: list[tuple[str, str]] = []  # noqa: RUF012 shared by all instances on purpose


class FaultyFileSystem(LocalFileSystem):
    """Local files with faults."""

    protocol = SCHEME
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        text = os.fspath(path)
        return "/" + text.removeprefix(f"{SCHEME}://").strip("/")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        with _operation("pipe_file", path) as kind:
            data = value[: len(value) // 2] if kind in ("short", "silent") else value
            os.makedirs(os.path.dirname(self._strip_protocol(path)), exist_ok=True)
            super().pipe_file(path, data)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        with _operation("cat_file", path):
            return super().cat_file(path, start=start, end=end)

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        with _operation("ls", path):
            return super().ls(path, detail=detail)

    def rm_file(self, path: str) -> None:
        with _operation("rm_file", path):
            super().rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for file in sorted(self.find(path)):  # an object store deletes one by one, and may stop in between
            self.rm_file(file)
        super().rm(path, recursive=True)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with _operation("makedirs", path):
            super().makedirs(path, exist_ok=exist_ok)

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(path, str):  # an entry of a listing under way
            return super().info(path, **kwargs)
        with _operation("info", path):
            return super().info(path, **kwargs)


def register() -> None:
    """Make faulty:// known to fsspec in this process."""
    fsspec.register_implementation(SCHEME, FaultyFileSystem, clobber=True)


@contextmanager
def faults(*given: Fault) -> Iterator[list[tuple[str, str]]]:
    """Faults in force meanwhile; gives the log of (operation, path), which grows as they happen."""
    with _State.lock:
        _State.faults, _State.log = given, []
    try:
        yield _State.log
    finally:
        with _State.lock:
            _State.faults = ()


@contextmanager
def _operation(operation: str, path: str) -> Iterator[str]:
    """Counts; does the harm that comes before or after what is done inside, and gives its kind."""
    kind = ""
    with _State.lock:
        _State.log.append((operation, FaultyFileSystem._strip_protocol(path)))
        for fault in _State.faults:
            if fault.operation in ("", operation) and fault.path in path:
                if fault.at in (-1, fault.seen):
                    kind = fault.kind
                fault.seen += 1
    if kind == "raise":
        raise OSError(errno.EIO, "the store has failed")
    if kind == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if kind == "exit":
        os._exit(9)
    try:
        yield kind
    finally:
        if kind == "exit_after":
            os._exit(9)
    if kind in ("short", "lie"):
        raise OSError(errno.EIO, "the store has failed")
