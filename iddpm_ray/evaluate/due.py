"""Which checkpoint of a run is to be evaluated next: a pure choice among those that are there."""

from collections.abc import Collection, Sequence

from iddpm_ray.checkpoint.commit import Checkpoint, checkpoint_named


def next_due(
    checkpoints: Sequence[Checkpoint], *, every: int, global_batch: int, done: Collection[str], finished: bool = False
) -> Checkpoint | None:
    """The newest checkpoint that is the first at or after a multiple of `every` samples, unless it is done; older ones are superseded.

    A multiple that one of those done has reached is not due again, though that one be deleted meanwhile.

    Args:
        checkpoints: complete ones, in any order.
        done: names of those that were evaluated or given up, still there or not.
        finished: the run is over, so that its last checkpoint is due too.
    """
    ordered = sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, checkpoint.attempt))
    gone = [one for name in done if (one := checkpoint_named("", name)) is not None]
    due, last = [], 0
    for checkpoint in sorted({one.name: one for one in [*gone, *ordered]}.values(), key=lambda one: (one.step, one.attempt)):
        multiple = checkpoint.step * global_batch // every
        if multiple > last:
            due.append(checkpoint)
            last = multiple
    if finished and ordered:
        due.append(ordered[-1])
    return due[-1] if due and due[-1].name not in done else None
