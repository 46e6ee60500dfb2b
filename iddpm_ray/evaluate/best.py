"""Which step of a run is the best, by what the run has measured of itself."""

import math
from collections.abc import Sequence

from iddpm_ray import storage
from iddpm_ray.checkpoint.scores import best_first, read_scores
from iddpm_ray.errors import CheckpointError
from iddpm_ray.sinks.jsonl import read_rows

METRIC = "val_loss"


def best_step(run_url: str, *, steps: Sequence[int]) -> int:
    """The step that evaluations found best among those given; without evaluations the one with the lowest held-out loss, the later of
    equals.

    Args:
        steps: that have a checkpoint.

    Raises:
        CheckpointError: the run has measured none of them.
    """
    evaluated = [score.checkpoint.step for score in best_first(read_scores(run_url)) if score.checkpoint.step in steps]
    if evaluated:
        return evaluated[0]
    url = storage.join(run_url, "metrics", "train.jsonl")
    rows = read_rows(url) if storage.exists(url) else []
    measured = {int(row["step"]): float(row[METRIC]) for row in rows if METRIC in row and math.isfinite(float(row[METRIC]))}
    known = [(measured[step], -step) for step in steps if step in measured]
    if not known:
        raise CheckpointError(
            f"no step of {storage.shown(run_url)} is known to be the best: no checkpoint was evaluated or has a {METRIC} in the rows",
            fix="name a step or newest, or train with evaluate.every, or with data.validation_fraction and log.validate_every",
        )
    return -min(known)[1]
