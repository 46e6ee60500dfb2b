"""Which checkpoints to keep: a pure plan, and a sweep that carries it out after a new one is committed."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from iddpm_ray import storage
from iddpm_ray.checkpoint.attempts import attempts, in_lineage, lineage, refuse_if_superseded
from iddpm_ray.checkpoint.commit import Checkpoint, Stored, delete_checkpoint, is_marked, survey
from iddpm_ray.checkpoint.lease import FencedError
from iddpm_ray.checkpoint.scores import best_names


@dataclass(frozen=True)
class Swept:
    """What a sweep did: names deleted, and a sentence for each that could not be."""

    deleted: tuple[str, ...]
    failed: tuple[str, ...]


def plan(
    checkpoints: Sequence[Checkpoint], *, keep_last: int, keep_every: int | None, global_batch: int, protected: Collection[str] = ()
) -> list[Checkpoint]:
    """What to delete of a lineage's complete checkpoints, oldest first.

    Args:
        checkpoints: complete ones, in any order.
        keep_last: so many newest ones stay; at least one does.
        keep_every: in samples; the first checkpoint at or after each multiple stays. None: no such rule.
        global_batch: samples a step.
        protected: names that stay whatever the rules say.
    """
    ordered = sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, checkpoint.attempt))
    keep = {checkpoint.name for checkpoint in ordered[-max(1, keep_last) :]} | set(protected)
    if keep_every is not None:
        last = 0
        for checkpoint in ordered:
            multiple = checkpoint.step * global_batch // keep_every
            if multiple > last:
                keep.add(checkpoint.name)
                last = multiple
    return [checkpoint for checkpoint in ordered if checkpoint.name not in keep]


def leftovers(stored: Sequence[Stored], *, attempt: int) -> list[Checkpoint]:
    """Unmarked directories that nobody will finish: of earlier attempts, and of this one before its newest complete step."""
    newest = max((item.checkpoint.step for item in stored if item.marked and item.checkpoint.attempt == attempt), default=-1)
    return [
        item.checkpoint
        for item in stored
        if not item.marked and (item.checkpoint.attempt < attempt or (item.checkpoint.attempt == attempt and item.checkpoint.step < newest))
    ]


def sweep(
    run_url: str,
    *,
    attempt: int,
    keep_last: int,
    keep_every: int | None,
    global_batch: int,
    protected: Collection[str] = (),
    keep_best: int = 0,
    fence: Callable[[], None] | None = None,
) -> Swept:
    """Delete what `plan` and `leftovers` name, by the attempt that has just committed.

    Nothing is deleted once a later attempt has taken its number: what that one begins from is its business. What later attempts are
    recorded to have begun from stays too, and so do complete checkpoints outside the lineage, since the records that say so may be
    the damaged part. A deletion that fails is reported, and tried again by the next sweep.

    Args:
        keep_best: so many that evaluations found best stay too, of the lineage's complete ones.
        fence: asked before every deletion; raises FencedError if the run is somebody else's. None: only attempts' numbers are looked at.
    """
    known = attempts(run_url)
    chain = lineage(known, head=attempt if any(other.number == attempt and other.began for other in known) else None)
    stored = survey(run_url)
    marked = [item.checkpoint for item in stored if item.marked]
    own = [checkpoint for checkpoint in marked if in_lineage(chain, step=checkpoint.step, attempt=checkpoint.attempt)]
    needed = {(other.from_step, other.from_attempt) for other in known if other.began and other.number > attempt}
    best = best_names(run_url, count=keep_best, among={one.name for one in own})
    kept = {*protected, *best, *(one.name for one in marked if (one.step, one.attempt) in needed)}
    unfinished = leftovers(stored, attempt=attempt)
    doomed = plan(own, keep_last=keep_last, keep_every=keep_every, global_batch=global_batch, protected=kept)
    may_delete = fence or partial(refuse_if_superseded, run_url, attempt)
    deleted, failed = [], []
    for checkpoint in sorted([*unfinished, *doomed], key=lambda checkpoint: (checkpoint.step, checkpoint.attempt)):
        try:
            may_delete()
            if checkpoint in unfinished and is_marked(checkpoint):
                continue  # the listing was an old one
            delete_checkpoint(checkpoint)
            deleted.append(checkpoint.name)
        except FencedError:
            break
        except Exception as error:  # a store may raise anything; an old checkpoint too many harms nobody
            failed.append(f"{checkpoint.name} could not be deleted: {storage.reason(error)}")
    return Swept(tuple(deleted), tuple(failed))
