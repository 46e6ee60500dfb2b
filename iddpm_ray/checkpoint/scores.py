"""What evaluations found of a run's checkpoints, which of them is the best by it, and which one is being evaluated.

{run}/evaluations/scores/step-00001000.a0003.json   one a checkpoint, written whole when its evaluation is over
{run}/evaluations/running.json                      the checkpoint under evaluation, which no sweep deletes; by the driver alone
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from iddpm_ray import storage
from iddpm_ray.checkpoint.commit import Checkpoint, checkpoint_named

_FOLDER = ("evaluations", "scores")
_RUNNING = ("evaluations", "running.json")
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
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, FileNotFoundError):
            continue
        found.append(Score(checkpoint, metrics))
    return sorted(found, key=lambda score: (score.checkpoint.step, score.checkpoint.attempt))


def best_first(scores: list[Score]) -> list[Score]:
    """Scores by the metric that the newest of them names first, the best one first; those that have no number for it are left out."""
    metric = next(iter(scores[-1].metrics), None) if scores else None
    if metric is None:
        return []
    having = [score for score in scores if metric in score.metrics and math.isfinite(score.metrics[metric])]
    upwards = metric.partition("[")[0] in HIGHER_IS_BETTER
    return sorted(having, key=lambda score: -score.metrics[metric] if upwards else score.metrics[metric])


def best_names(run_url: str, *, count: int, among: Collection[str]) -> tuple[str, ...]:
    """Names of the `count` best checkpoints among those named, which are there."""
    if count == 0:
        return ()
    return tuple(
        score.checkpoint.name for score in best_first([one for one in read_scores(run_url) if one.checkpoint.name in among])[:count]
    )


def say_running(run_url: str, name: str | None) -> None:
    """Says which checkpoint is under evaluation, so that it stays; None: no longer any."""
    url = storage.join(run_url, *_RUNNING)
    if name is None:
        storage.delete(url)
    else:
        storage.write_whole(url, json.dumps({"checkpoint": name}).encode())


def running(run_url: str) -> str | None:
    """The name of the checkpoint under evaluation; None if there is none, or nobody can read which."""
    try:
        said = json.loads(storage.read_bytes(storage.join(run_url, *_RUNNING)))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return str(said["checkpoint"]) if isinstance(said, dict) and "checkpoint" in said else None
