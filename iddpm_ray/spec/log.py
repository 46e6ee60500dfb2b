"""Section `log`: rows of numbers, where they go, and validation."""

from typing import Annotated, Literal

from iddpm_ray.spec.duration import Duration, Interval
from iddpm_ray.spec.mark import AsTuple, Section, identity, may_change

TrackerName = Literal["wandb", "mlflow"]


class LogSpec(Section):
    """Rows of numbers, where they go, and validation."""

    every: Interval = may_change(Duration(10.0, "steps"), "between two rows", unit="duration")
    timestep_bins: int = identity(
        10, "equal ranges of t for which losses are also told apart, besides the quartiles", unit="ranges", ge=1, le=1000
    )
    tensorboard: bool = may_change(True, "write TensorBoard event files", unit="yes or no")
    csv: bool = may_change(False, "write the rows as CSV too", unit="yes or no")
    prometheus: bool = may_change(True, "publish numbers through Ray's export for Prometheus", unit="yes or no")
    sinks: Annotated[tuple[TrackerName, ...], AsTuple] = may_change(
        (), "trackers that rows and pictures also go to: wandb, mlflow; each needs the extra of its name", unit="names"
    )
    project: str = may_change("iddpm", "project at W&B (team/project works too), experiment in MLflow", unit="name", min_length=1)
    mlflow_url: str | None = may_change(None, "MLflow's tracking server or directory; needed by sinks: [mlflow]", unit="URL")
    progress: bool = may_change(True, "show a live line: step, images/s, loss, time left", unit="yes or no")
    validate_every: Interval | None = may_change(
        None, "between two validations (needs data.validation_fraction); null: never", unit="duration"
    )
    validate_rows: int = may_change(256, "held-out rows looked at in each validation", unit="rows", ge=1)
