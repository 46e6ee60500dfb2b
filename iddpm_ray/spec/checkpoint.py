"""Section `checkpoint`: when to save and what to keep."""

from iddpm_ray.spec.duration import Duration, Interval, TimedInterval
from iddpm_ray.spec.mark import Section, may_change


class CheckpointSpec(Section):
    """When to save and what to keep; the end of the run is always saved."""

    every: TimedInterval = may_change(Duration(1000.0, "steps"), "between two saves; wall-clock time allowed", unit="duration")
    keep_last: int = may_change(3, "newest checkpoints to keep", unit="checkpoints", ge=1)
    keep_every: Interval | None = may_change(
        None, "also keep for ever the first checkpoint after each multiple of this; null: none", unit="duration"
    )
    keep_best: int = may_change(0, "also keep so many checkpoints that evaluations found best", unit="checkpoints", ge=0)
    asynchronous: bool = may_change(True, "write while training goes on; false: wait for the write", unit="yes or no")
    save_timeout_s: float = may_change(
        1800.0, "a save that takes longer has hung: the workers are restarted and make it again", unit="seconds", gt=0
    )
    max_unsaved: TimedInterval | None = may_change(
        None, "while saves fail, training that may be unsaved before the run ends; null: it goes on", unit="duration"
    )
