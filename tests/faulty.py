"""A file system of tests, faulty:///path, on top of local files: it counts its operations and does harm at a chosen one.

    register()
    with faults(Fault("pipe_file", at=2, kind="raise")):      # the third write of a whole file
        storage.write_whole("faulty:///tmp/x/y", b"...")

It is no local scheme for `storage`, so it is treated like an object store's: whole files, one operation each. Within `faults` nobody
waits between two tries: the clock of the retries is turned on instead.
"""

import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from iddpm_ray.storage import local, retry

SCHEME = "faulty"
TRANSIENT = ("raise", "short", "lie", "delay")
"""Faults that a retry makes good."""


@dataclass
class Fault:
    """What goes wrong at which operation.

    Attributes:
        operation: `pipe_file`, `cat_file`, `ls`, `rm_file`, `makedirs`, `info`, or "" for any of them.
        at: how many such operations go well before; -1: all of them go wrong.
        kind: `raise` (nothing is done), `short` (half the bytes are written, then an error), `silent` (half the bytes, no
            error), `lie` (done, then an error), `full` (no space left), `refuse` (permission denied), `hang` (nothing is done until
            `release` is set), `stale` (a listing without the newest entry, and with those deleted before), `delay`, `exit` (the process
            dies before), `exit_after`.
        path: only operations on paths that contain this.
    """

    operation: str
    at: int
    kind: str
    path: str = ""
    seen: int = field(default=0, init=False)
    release: threading.Event = field(default_factory=threading.Event, init=False)
    hanging: threading.Event = field(default_factory=threading.Event, init=False)


class _State:
    lock = threading.Lock()
    faults: Sequence[Fault] = ()
    log: list[tuple[str, str]] = []  # noqa: RUF012 shared by all instances on purpose
    ghosts: dict[str, list[dict[str, Any]]] = {}  # noqa: RUF012 as above: entries deleted, by their directory


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
            if mode == "create":  # as on S3 and GCS: at once, and only if nothing is there
                if kind == "short":
                    return
                if not local.create(self._strip_protocol(path), value):
                    raise FileExistsError(path)
                return
            data = value[: len(value) // 2] if kind in ("short", "silent") else value
            os.makedirs(os.path.dirname(self._strip_protocol(path)), exist_ok=True)
            super().pipe_file(path, data)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        with _operation("cat_file", path):
            return super().cat_file(path, start=start, end=end)

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        with _operation("ls", path) as kind:
            entries = super().ls(path, detail=True)
            if kind == "stale":
                entries = sorted(entries, key=lambda entry: entry["mtime"])[:-1] + _State.ghosts.get(self._strip_protocol(path), [])
            return entries if detail else [entry["name"] for entry in entries]

    def rm_file(self, path: str) -> None:
        with _operation("rm_file", path):
            self._remember(path)
            super().rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for file in sorted(self.find(path)):  # an object store deletes one by one, and may stop in between
            self.rm_file(file)
        self._remember(path)
        super().rm(path, recursive=True)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with _operation("makedirs", path):
            super().makedirs(path, exist_ok=exist_ok)

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(path, str):  # an entry of a listing under way
            return super().info(path, **kwargs)
        with _operation("info", path):
            return super().info(path, **kwargs)

    def _remember(self, path: str) -> None:
        plain = self._strip_protocol(path)
        if os.path.exists(plain):
            _State.ghosts.setdefault(os.path.dirname(plain), []).append(super().info(plain))


def register() -> None:
    """Make faulty:// known to fsspec in this process."""
    fsspec.register_implementation(SCHEME, FaultyFileSystem, clobber=True)


@contextmanager
def faults(*given: Fault) -> Iterator[list[tuple[str, str]]]:
    """Faults in force meanwhile; gives the log of (operation, path), which grows as they happen."""
    with _State.lock:
        _State.faults, _State.log, _State.ghosts = given, [], {}
    pace, retry.PACE = retry.PACE, impatient()
    try:
        yield _State.log
    finally:
        retry.PACE = pace
        with _State.lock:
            _State.faults = ()


def impatient() -> retry.Pace:
    """The pace of the product, with less patience, on a clock that sleeping turns on at once."""
    slept = [0.0]

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    return replace(retry.Pace(), limit_s=5.0, sleep=sleep, clock=lambda: time.monotonic() + slept[0])


@contextmanager
def _operation(operation: str, path: str) -> Iterator[str]:
    """Counts; does the harm that comes before or after what is done inside, and gives its kind."""
    kind, chosen = "", None
    with _State.lock:
        _State.log.append((operation, FaultyFileSystem._strip_protocol(path)))
        for fault in _State.faults:
            if fault.operation in ("", operation) and fault.path in path:
                if fault.at in (-1, fault.seen):
                    kind, chosen = fault.kind, fault
                fault.seen += 1
    if kind == "raise":
        raise OSError(errno.EIO, "the store has failed")
    if kind == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if kind == "refuse":
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if kind == "exit":
        os._exit(9)
    if kind == "delay":
        time.sleep(0.001)
    if kind == "hang" and chosen is not None:
        chosen.hanging.set()
        assert chosen.release.wait(120), "nobody let it go on"
    try:
        yield kind
    finally:
        if kind == "exit_after":
            os._exit(9)
    if kind in ("short", "lie"):
        raise OSError(errno.EIO, "the store has failed")
