"""Which checkpoint a run goes on from: the newest one in its lineage that is whole, and why newer ones were passed over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iddpm_ray import storage
from iddpm_ray.checkpoint.attempts import attempts, in_lineage, last_committed, lineage, record_url
from iddpm_ray.checkpoint.commit import Checkpoint, Stored, by_name, check_sizes, read_file, read_marker, survey, verify
from iddpm_ray.checkpoint.marker import DamagedError, Marker
from iddpm_ray.errors import CheckpointError


@dataclass(frozen=True)
class Choice:
    """What to go on from.

    Attributes:
        checkpoint: None if the run has none yet.
        marker: of that checkpoint.
        rejected: a sentence for each newer one that was passed over, newest first.
    """

    checkpoint: Checkpoint | None
    marker: Marker | None
    rejected: tuple[str, ...]


def newest_readable(
    run_url: str,
    *,
    spec_digest: str | None = None,
    deep: bool = False,
    files: Sequence[str] = (),
    rejected: Mapping[str, str] | None = None,
) -> Choice:
    """The newest whole checkpoint of the run's lineage.

    Names, markers and sizes are checked; `deep` reads every byte and checks the hashes too (loading does so anyway for
    what it reads); so does `files` for those of these names.

    Args:
        run_url: the run's directory.
        spec_digest: what the checkpoint's spec must have, if given.
        files: small ones that the caller is about to read, without which a checkpoint is of no use to it.
        deep: also read and hash every file.
        rejected: why, by name, for checkpoints that have been found unreadable already.

    Raises:
        NewerFormatError: the newest was written by a later version; going on from an older one would undo its work.
        CheckpointError: there are checkpoints but none is readable (starting afresh would hide that), or whether they are of the run
            is written in a record that cannot be read; or one is of another spec.
    """
    known = dict(rejected or {})
    tried = attempts(run_url)
    chain = lineage(tried)
    committed = last_committed(run_url, tried)
    there = _with(committed, survey(run_url))
    reasons: list[str] = []
    for stored in reversed(there):
        checkpoint = stored.checkpoint
        if not stored.marked and checkpoint != committed:
            continue
        if not in_lineage(chain, step=checkpoint.step, attempt=checkpoint.attempt):
            continue
        if checkpoint.name in known:
            reasons.append(known[checkpoint.name])
            continue
        try:
            if not stored.marked:
                raise DamagedError(f"{checkpoint.name} was committed, and has no marker.json now")
            marker = read_marker(checkpoint)
            check_sizes(stored, marker)
            if (marker.step, marker.attempt) != (checkpoint.step, checkpoint.attempt):
                raise DamagedError(f"{checkpoint.name} is damaged: its marker is that of step {marker.step}, attempt {marker.attempt}")
            if deep:
                verify(checkpoint)
            for name in files:
                read_file(checkpoint, name, marker=marker)
        except DamagedError as error:
            reasons.append(str(error))
            continue
        if spec_digest is not None and marker.spec_digest != spec_digest:
            raise CheckpointError(
                f"{checkpoint.name} was made with another spec",
                value=f"digest {marker.spec_digest[:12]}, this spec {spec_digest[:12]}",
                fix="give this run a name of its own, or use the spec that it began with",
            )
        return Choice(checkpoint, marker, tuple(reasons))
    if reasons:
        raise CheckpointError(
            f"no checkpoint of {storage.shown(run_url)} can be read: {'; '.join(reasons)}",
            fix="restore one, or give the run another name to start afresh",
        )
    oldest = chain[0] if chain else None
    before = [one.checkpoint.name for one in there if one.marked and oldest is not None and one.checkpoint.attempt < oldest.attempt]
    if oldest is not None and oldest.lost and before:
        record = record_url(run_url, oldest.attempt)
        raise CheckpointError(
            f"{storage.shown(record)} cannot be read: whether the run went on from {before[-1]} is not known",
            fix="restore that file, or give the run another name and begin it from that checkpoint by init.from",
        )
    return Choice(None, None, ())


def _with(committed: Checkpoint | None, listed: Sequence[Stored]) -> list[Stored]:
    """A listing, which may be an old one, with a checkpoint that an attempt has recorded and that is marked now."""
    if committed is None or any(one.marked and one.checkpoint == committed for one in listed):
        return list(listed)
    now = by_name(committed)
    there = [*(one for one in listed if one.checkpoint != committed), now] if now.marked else listed
    return sorted(there, key=lambda one: (one.checkpoint.step, one.checkpoint.attempt))
