"""What preflight asks on each machine: versions, room, storage, pictures. Runs in tasks of Ray; none of it needs the driver."""

import hashlib
import os
import platform
import secrets
import shutil
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

import iddpm_ray
from iddpm_ray import storage
from iddpm_ray.data.image import BadPicture, Decoding
from iddpm_ray.data.load import read_outcomes
from iddpm_ray.data.manifest import Manifest

PACKAGES = ("ray", "torch", "numpy", "pyarrow", "fsspec")


@dataclass(frozen=True)
class Room:
    """A machine.

    Attributes:
        versions: of Python and packages, and a digest of this project's code.
        shm_free, disk_free: bytes, in /dev/shm and where Ray keeps its files.
    """

    host: str
    versions: dict[str, str]
    shm_free: int
    disk_free: int


def look() -> Room:
    """This machine."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}, "iddpm_ray": _code()}
    shm = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    return Room(platform.node(), versions, shm, shutil.disk_usage(os.environ.get("RAY_TMPDIR", "/tmp")).free)


def _code() -> str:
    folder, said = Path(iddpm_ray.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        said.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return f"{iddpm_ray.__version__} ({said.hexdigest()[:8]})"


def use_storage(url: str) -> str | None:
    """Everything that a run asks of its storage, under a name of its own; what does not work, or None.

    Args:
        url: of a directory, which need not be there.
    """
    name, content = f".preflight-{secrets.token_hex(8)}", secrets.token_bytes(1000)
    probe = storage.join(url, name)
    done = "write"
    try:
        storage.write_whole(probe, content)
        done = "read"
        if storage.read_bytes(probe) != content:
            return "a file does not read back as it was written"
        done = "list"
        if name not in {entry.name for entry in storage.list_dir(url)}:
            return "a file that was written is not in the list of its directory"
        done = "conditional create"
        if storage.create(probe, b"x") or not storage.create(f"{probe}-new", b"x"):
            return "a file is created over another one: two drivers could take the same run"
        done = "delete"
        for one in (probe, f"{probe}-new"):
            storage.delete(one)
        return "a file is there after it was deleted" if storage.exists(probe) else None
    except Exception as error:  # every store raises its own kinds, and all of them are the answer
        return f"{done}: {storage.reason(error)}"


def upload(url: str, *, num_bytes: int) -> float:
    """Seconds that writing so many bytes takes; the file is deleted again."""
    probe, content = storage.join(url, f".preflight-{secrets.token_hex(8)}"), secrets.token_bytes(num_bytes)
    began = time.perf_counter()
    storage.write_whole(probe, content)
    took = time.perf_counter() - began
    storage.delete(probe)
    return took


@dataclass(frozen=True)
class Reading:
    """How reading went: pictures in a second by one task, and what is wrong with the bad ones."""

    pictures_a_second: float
    bad: tuple[str, ...]


def read_pictures(manifest: Manifest, decoding: Decoding, *, count: int, threads: int) -> Reading:
    """Reads and decodes rows evenly over the data set, the second of two times so that connections are made."""
    rows = np.unique(np.linspace(0, len(manifest.training_rows) - 1, num=count).astype(np.int64))
    rows = manifest.training_rows[rows]
    read_outcomes(manifest, rows[:1], decoding=decoding)
    began = time.perf_counter()
    outcomes = read_outcomes(manifest, rows, decoding=decoding, threads=threads)
    took = time.perf_counter() - began
    return Reading(len(rows) / took, tuple(str(one) for one in outcomes if isinstance(one, BadPicture)))
