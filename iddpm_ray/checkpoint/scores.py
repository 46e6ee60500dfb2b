"""What evaluations found of a run's checkpoints, and which of them is the best by it.

{run}/evaluations/scores/step-00001000.a0003.json   one a checkpoint, written whole when its evaluation is over
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from iddpm_ray import storage
from iddpm_ray.checkpoint.commit import Checkpoint, checkpoint_named

_FOLDER = ("evaluations", "scores")
HIGHER_IS_BETTER = ("is", "precision", "recall")


@dataclass(frozen=True)
class Score:
    """The numbers of one checkpoint, by metric; the first is the one that decides which checkpoint is best."""

    checkpoint: Checkpoint
    metrics: Mapping[str, float]


def score_url(run_url: str, name: str) -> str:
    """Where the numbers of a checkpoint are, or will be."""
    return storage.join(run_url, *_FOLDER, f"{name}.json")


def write_score(run_url: str, name: str, metrics: Mapping[str, float]) -> None:
    """Puts the numbers of a checkpoint in their place, whole."""
    storage.write_whole(score_url(run_url, name), json.dumps(dict(metrics), indent=1).encode())


def read_scores(run_url: str) -> list[Score]:
    """All scores of a run in step order; what is no score is passed over."""
    found: list[Score] = []
    for entry in storage.list_dir(storage.join(run_url, *_FOLDER)):
        checkpoint = checkpoint_named(run_url, entry.name.removesuffix(".json"))
        if checkpoint is None or not entry.name.endswith(".json"):
            continue
        try:
            said = json.loads(storage.read_bytes(score_url(run_url, checkpoint.name)))
            metrics = {str(name): float(value) for name, value in said.items()}
        except (ValueError, TypeError, AttributeError, FileNotFoundError):
            continue
        found.append(Score(checkpoint, metrics))
    return sorted(found, key=lambda score: (score.checkpoint.step, score.checkpoint.attempt))


def best_first(scores: list[Score]) -> list[Score]:
    """Scores by the metric that the newest of them names first, the best one first; those without it are left out."""
    metric = next(iter(scores[-1].metrics), None) if scores else None
    having = [score for score in scores if metric in score.metrics]
    if metric is None:
        return []
    upwards = metric.partition("[")[0] in HIGHER_IS_BETTER
    return sorted(having, key=lambda score: -score.metrics[metric] if upwards else score.metrics[metric])


def best_names(run_url: str, *, count: int) -> tuple[str, ...]:
    """Names of the `count` best checkpoints; what the store does not say now protects nothing."""
    if count == 0:
        return ()
    return tuple(score.checkpoint.name for score in best_first(read_scores(run_url))[:count])
