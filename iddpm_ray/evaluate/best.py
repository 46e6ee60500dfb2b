"""Which step of a run is the best, by what the run has measured of itself."""

import math
from collections.abc import Sequence

from iddpm_ray import storage
from iddpm_ray.errors import CheckpointError
from iddpm_ray.sinks.jsonl import read_rows

METRIC = "val_loss"


def best_step(run_url: str, *, steps: Sequence[int]) -> int:
    """The step with the lowest held-out loss among those given, the later of equals.

    Args:
        steps: that have a checkpoint.

    Raises:
        CheckpointError: the run has measured none of them.
    """
    url = storage.join(run_url, "metrics", "train.jsonl")
    rows = read_rows(url) if storage.exists(url) else []
    measured = {int(row["step"]): float(row[METRIC]) for row in rows if METRIC in row and math.isfinite(float(row[METRIC]))}
    known = [(measured[step], -step) for step in steps if step in measured]
    if not known:
        raise CheckpointError(
            f"no step of {storage.shown(run_url)} is known to be the best: no checkpoint has a {METRIC} in the run's rows",
            fix="name a step or newest, or train with data.validation_fraction and log.validate_every, at the steps of checkpoint.every",
        )
    return -min(known)[1]
