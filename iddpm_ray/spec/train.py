"""Section `train`: how many samples a step, and how long."""

from iddpm_ray.spec.duration import TimedInterval
from iddpm_ray.spec.mark import REQUIRED, Section, identity, may_change


class TrainSpec(Section):
    """How many samples a step, and how long."""

    global_batch: int = identity(128, "samples a step, over all workers", unit="samples", ge=1)
    duration: TimedInterval = may_change(
        REQUIRED, "length of the run: steps, samples, epochs, or wall-clock time in the loop", unit="duration"
    )
