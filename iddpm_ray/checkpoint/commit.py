"""A checkpoint is whole or not there: its name, the marker written last, what a run directory holds, how one is deleted.

{run}/checkpoints/step-00001000.a0003/      after 1000 updates, by attempt 3: attempts never meet in a directory
    data-00000-000.bin ...                  tensors, by rank
    tensors.json                            which tensor lies where
    spec.yaml, state.json, ...              what else the saver was given
    marker.json                             last, and only if all of the above arrived: sizes and hashes of it
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from iddpm_ray import storage
from iddpm_ray.checkpoint.marker import LONGEST, MARKER, DamagedError, FileRecord, Marker, decode, digest, encode
from iddpm_ray.errors import CheckpointError

SPEC_FILE = "spec.yaml"
LABELS_FILE = "labels.json"
_FOLDER = "checkpoints"
_NAME = re.compile(r"step-(\d{8,})\.a(\d{4,})")


@dataclass(frozen=True)
class Checkpoint:
    """A place for a checkpoint, whether or not anything is there.

    Attributes:
        url: its directory.
        step: updates completed.
        attempt: who writes it.
    """

    url: str
    step: int
    attempt: int

    @property
    def name(self) -> str:
        """The directory's name, unique in a run."""
        return checkpoint_name(step=self.step, attempt=self.attempt)


@dataclass(frozen=True)
class Stored:
    """What lies in a checkpoint's directory: bytes by file name. It counts only when marked."""

    checkpoint: Checkpoint
    sizes: Mapping[str, int]

    @property
    def marked(self) -> bool:
        """Whether the marker is there."""
        return MARKER in self.sizes


def checkpoint_name(*, step: int, attempt: int) -> str:
    """step-00001000.a0003"""
    return f"step-{step:08d}.a{attempt:04d}"


def checkpoint_at(run_url: str, *, step: int, attempt: int) -> Checkpoint:
    """Where the attempt puts its checkpoint of that step."""
    return Checkpoint(storage.join(run_url, _FOLDER, checkpoint_name(step=step, attempt=attempt)), step, attempt)


def checkpoint_named(run_url: str, name: str) -> Checkpoint | None:
    """The checkpoint of that name, or None if it is no checkpoint's name."""
    found = _NAME.fullmatch(name)
    if not found:
        return None
    checkpoint = checkpoint_at(run_url, step=int(found.group(1)), attempt=int(found.group(2)))
    return checkpoint if checkpoint.name == name else None


def survey(run_url: str) -> list[Stored]:
    """All checkpoint directories of a run, marked or not, oldest step first; one listing."""
    sizes: dict[str, dict[str, int]] = {}
    for file in storage.find(storage.join(run_url, _FOLDER)):
        name, _, inside = file.path.partition("/")
        if inside:
            sizes.setdefault(name, {})[inside] = file.size
    found = (Stored(checkpoint, files) for name, files in sizes.items() if (checkpoint := checkpoint_named(run_url, name)))
    return sorted(found, key=lambda stored: (stored.checkpoint.step, stored.checkpoint.attempt))


def complete(run_url: str) -> list[Checkpoint]:
    """Every marked checkpoint of the run, newest step first."""
    return [stored.checkpoint for stored in reversed(survey(run_url)) if stored.marked]


def by_name(checkpoint: Checkpoint) -> Stored:
    """What lies in its directory now, asked for name by name and not by a listing."""
    if not is_marked(checkpoint):
        return Stored(checkpoint, {})
    try:
        names = read_marker(checkpoint).files
    except DamagedError:
        names = {}
    sizes = {name: storage.size(storage.join(checkpoint.url, name)) for name in names}
    return Stored(checkpoint, {MARKER: 0} | {name: size for name, size in sizes.items() if size is not None})


def is_marked(checkpoint: Checkpoint) -> bool:
    """Whether the marker is there now, asked for by its name and not by a listing."""
    return storage.exists(storage.join(checkpoint.url, MARKER))


def seal(checkpoint: Checkpoint, marker: Marker, *, before_mark: Callable[[], object] | None = None) -> None:
    """Check that all files have arrived, and write the marker: from then on the checkpoint exists.

    Args:
        checkpoint: whose files are written; nothing writes there any more.
        marker: says what they are.
        before_mark: the last word before the marker; raises if this attempt may not mark any more.

    Raises:
        CheckpointError: a file has not arrived as it was sent.
    """
    missing = _differences(marker.files, {file.path: file.size for file in storage.find(checkpoint.url)})
    missing = [what for name, what in missing.items() if storage.size(storage.join(checkpoint.url, name)) != marker.files[name].size]
    if missing:
        raise CheckpointError(
            f"{checkpoint.name}: {'; '.join(missing[:3])} after it was written",
            fix="run.output_dir must be one place that all workers reach",
        )
    if before_mark is not None:
        before_mark()
    url = storage.join(checkpoint.url, MARKER)
    try:
        storage.write_checked(url, encode(marker))
    except Exception:
        storage.delete(url)  # all will hear that it failed, so it must not be there in half either
        raise


def read_marker(checkpoint: Checkpoint) -> Marker:
    """The marker of a complete checkpoint.

    Raises:
        NewerFormatError: written by a later version of this package.
        DamagedError: there is none, or it is damaged.
        Exception: what the store raises when it does not answer now, which is no damage.
    """
    try:
        data = storage.read_bytes(storage.join(checkpoint.url, MARKER), start=0, end=LONGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedError(
            "no complete checkpoint here: it has no marker.json", value=storage.shown(checkpoint.url), fix="name a complete one"
        ) from None
    except Exception as error:  # a store may raise anything
        if storage.is_transient(error):
            raise
        raise DamagedError(f"{checkpoint.name}: marker.json cannot be read: {storage.reason(error)}") from error
    if len(data) > LONGEST:
        raise DamagedError(f"{checkpoint.name} is damaged: its marker.json has more than {LONGEST} bytes")
    return decode(data, name=checkpoint.name)


def open_checkpoint(url: str) -> tuple[Checkpoint, Marker]:
    """A complete checkpoint by the URL of its directory, wherever it was copied to.

    Raises:
        DamagedError: as `read_marker`.
    """
    marker = read_marker(Checkpoint(url, 0, 0))
    return Checkpoint(url, marker.step, marker.attempt), marker


def check_sizes(stored: Stored, marker: Marker) -> None:
    """Compare a listing with the marker; reads nothing.

    Raises:
        DamagedError: a file is missing or cut.
    """
    wrong = list(_differences(marker.files, stored.sizes).values())
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise DamagedError(f"{stored.checkpoint.name} is damaged: {'; '.join(wrong[:3])}{more}")


def read_file(checkpoint: Checkpoint, name: str, *, marker: Marker) -> bytes:
    """A file of the checkpoint, whole, with its size and hash checked.

    Raises:
        DamagedError: it is missing, cut or changed.
    """
    record = marker.files.get(name)
    if record is None:
        raise DamagedError(f"{checkpoint.name} has no {name}")
    try:
        data = storage.read_bytes(storage.join(checkpoint.url, name))
    except Exception as error:  # as above
        if storage.is_transient(error):
            raise
        raise DamagedError(f"{checkpoint.name} is damaged: {name} cannot be read: {storage.reason(error)}") from error
    if len(data) != record.size:
        raise DamagedError(f"{checkpoint.name} is damaged: {name} is cut: {len(data)} of {record.size} bytes")
    if digest(data) != record:
        raise DamagedError(f"{checkpoint.name} is damaged: the content of {name} is not what was written")
    return data


def verify(checkpoint: Checkpoint) -> Marker:
    """Read every file and check its size and hash.

    Raises:
        DamagedError: as `read_marker` and `read_file`.
    """
    marker = read_marker(checkpoint)
    for name in sorted(marker.files):
        read_file(checkpoint, name, marker=marker)
    return marker


def delete_checkpoint(checkpoint: Checkpoint) -> None:
    """Unmark, then delete: whoever stops between the two leaves nothing that anybody reads."""
    storage.delete(storage.join(checkpoint.url, MARKER))
    storage.delete_tree(checkpoint.url)


def _differences(wanted: Mapping[str, FileRecord], sizes: Mapping[str, int]) -> dict[str, str]:
    out = {}
    for name, record in sorted(wanted.items()):
        if name not in sizes:
            out[name] = f"{name} is missing"
        elif sizes[name] != record.size:
            out[name] = f"{name} is cut: {sizes[name]} of {record.size} bytes"
    return out
