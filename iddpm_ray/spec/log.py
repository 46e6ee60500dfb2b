"""Section `log`: rows of numbers, where they go, and validation."""

from iddpm_ray.spec.duration import Duration, Interval
from iddpm_ray.spec.mark import Section, identity, may_change


class LogSpec(Section):
    """Rows of numbers, where they go, and validation."""

    every: Interval = may_change(Duration(10.0, "steps"), "between two rows", unit="duration")
    timestep_bins: int = identity(
        10, "equal ranges of t for which losses are also told apart, besides the quartiles", unit="ranges", ge=1, le=1000
    )
    tensorboard: bool = may_change(True, "write TensorBoard event files", unit="yes or no")
    csv: bool = may_change(False, "write the rows as CSV too", unit="yes or no")
    progress: bool = may_change(True, "show a live line: step, images/s, loss, time left", unit="yes or no")
    validate_every: Interval | None = may_change(
        None, "between two validations (needs data.validation_fraction); null: never", unit="duration"
    )
    validate_rows: int = may_change(256, "held-out rows looked at in each validation", unit="rows", ge=1)
