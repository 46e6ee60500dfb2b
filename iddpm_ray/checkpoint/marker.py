"""The marker of a checkpoint: one JSON object that says which files it consists of, believed only after checks."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from iddpm_ray.errors import CheckpointError

FORMAT = 1
MARKER = "marker.json"
OWN = "sha256"  # of the marker itself
LONGEST = 64 * 2**20  # bytes of a marker; a file takes about a hundred
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class DamagedError(CheckpointError):
    """A checkpoint that is not what was written, or cannot be read; an older one may do."""


class NewerFormatError(CheckpointError):
    """A checkpoint written by a later version of this package."""


@dataclass(frozen=True)
class FileRecord:
    """What a file must be: bytes, and SHA-256 in hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Marker:
    """What the marker says.

    Attributes:
        samples_seen: the clock, step x global_batch.
        spec_digest: of the identity fields of the run's spec.
        world_size: ranks that wrote it; says nothing about who may read it.
        files: every file but the marker, by name.
    """

    step: int
    attempt: int
    samples_seen: int
    spec_digest: str
    world_size: int
    files: Mapping[str, FileRecord] = field(default_factory=dict)


def digest(data: bytes) -> FileRecord:
    """The record of a file with this content."""
    return FileRecord(len(data), hashlib.sha256(data).hexdigest())


def is_file_name(name: str) -> bool:
    """Whether a checkpoint may hold a file of that name: plain, no directory, nothing hidden."""
    return _FILE_NAME.fullmatch(name) is not None and name != MARKER


def encode(marker: Marker) -> bytes:
    """The content of marker.json."""
    files = {name: {"size": record.size, "sha256": record.sha256} for name, record in sorted(marker.files.items())}
    fields = {key: getattr(marker, key) for key in ("step", "attempt", "samples_seen", "spec_digest", "world_size")}
    said = {"format": FORMAT, **fields, "files": files}
    return json.dumps({**said, OWN: _own(said)}, indent=1).encode()


def decode(data: bytes, *, name: str) -> Marker:
    """What marker.json says; it may be cut, of another version, or made by somebody to do harm.

    Raises:
        NewerFormatError: written by a later version of this package.
        DamagedError: not a marker; both name the checkpoint as `name`.
    """
    try:
        said = json.loads(data)
        written_as = said["format"]
        if isinstance(written_as, int) and written_as > FORMAT:
            raise NewerFormatError(
                f"{name} was written by a newer version of iddpm_ray",
                value=f"checkpoint format {written_as}, this version reads up to {FORMAT}",
                fix="install that version or a later one",
            )
        _demand(said.pop(OWN, None) in (None, _own(said)))  # those written before there was one have none
        numbers = [said[key] for key in ("step", "attempt", "samples_seen", "world_size")]
        files = {key: FileRecord(record["size"], record["sha256"]) for key, record in said["files"].items()}
        _demand(written_as == FORMAT and isinstance(said["spec_digest"], str))
        _demand(_are_counts([*numbers, *(record.size for record in files.values())]))
        _demand(all(is_file_name(key) and isinstance(record.sha256, str) for key, record in files.items()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedError(f"{name} is damaged: its marker.json is not a marker") from None
    return Marker(numbers[0], numbers[1], numbers[2], said["spec_digest"], numbers[3], files)


def _own(said: Mapping[str, object]) -> str:
    """SHA-256 of everything else that a marker says, in every format."""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _demand(condition: bool) -> None:
    if not condition:
        raise ValueError


def _are_counts(values: Iterable[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)
