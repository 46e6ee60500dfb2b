"""FID and its kin of samples against a reference, from features that were gathered in chunks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.evaluate.bootstrap import Interval
from iddpm_ray.evaluate.features import FeatureBatch, metric_name
from iddpm_ray.evaluate.frechet import frechet_distance, sums_in_order
from iddpm_ray.evaluate.inception_score import inception_score
from iddpm_ray.evaluate.kernel_distance import kernel_distance
from iddpm_ray.evaluate.manifold import NEIGHBOURS, precision_recall
from iddpm_ray.evaluate.reference import Reference

MOST_POINTS = 5000  # that metrics of single pictures compare with each other

Parts = Callable[[], Iterable[FeatureBatch]]
"""Features chunk by chunk, as often as asked."""


@dataclass(frozen=True)
class Quality:
    """What was found of N samples.

    Attributes:
        metrics: by name with the features in brackets; the Fréchet distance first.
        intervals: 95 % bootstrap intervals of those that have one.
        notes: what a person must know to read them, in words.
        count: N.
    """

    metrics: Mapping[str, float]
    intervals: Mapping[str, Interval]
    notes: tuple[str, ...]
    count: int

    def describe(self) -> str:
        """A line a metric, then the notes."""
        width = max(map(len, self.metrics))
        lines = [f"{name:<{width}}  {value:.4f}{self._spread(name)}" for name, value in self.metrics.items()]
        return "\n".join([*lines, *self.notes])

    def _spread(self, name: str) -> str:
        found = self.intervals.get(name)
        if found is None:
            return ""
        if found.low is None or found.high is None:
            return "  (no interval: too few pictures)"
        return f"  (95 % interval {found.low:.4f} .. {found.high:.4f})"


def reference_of(parts: Parts, *, count: int, seed: int = 0) -> Reference:
    """A reference made of features [n, D] in chunks, `count` pictures in all."""
    pooled = sums_in_order(part.pooled for part in parts())
    spatial = sums_in_order(part.spatial for part in parts())
    points = _points((part.pooled for part in parts()), count=count, seed=seed)
    return Reference(pooled.gaussian(), spatial.gaussian(), points, count)


def measure(parts: Parts, reference: Reference, *, count: int, features: str, seed: int = 0) -> Quality:
    """Every metric that the reference allows.

    Args:
        parts: of `count` samples, at least 2.
        features: name of the features, for the metrics' names.
        seed: of the subsets and the bootstrap.
    """
    metrics: dict[str, float] = {}
    intervals: dict[str, Interval] = {}

    def book(metric: str, value: float | Interval) -> None:
        name = metric_name(metric, features)
        metrics[name] = value.value if isinstance(value, Interval) else value
        if isinstance(value, Interval):
            intervals[name] = value

    pooled = sums_in_order(part.pooled for part in parts())
    fid = frechet_distance(pooled.gaussian(), reference.pooled)
    book("fid", fid)
    if reference.spatial is not None:
        book("sfid", frechet_distance(sums_in_order(part.spatial for part in parts()).gaussian(), reference.spatial))
    score = inception_score((part.logits for part in parts()), count=count)
    book("is", score.mean)
    notes = [_about_bias(parts, reference, count=count, fid=fid, features=features)]
    notes.append(f"{metric_name('is', features)}: mean of {score.splits} splits, standard deviation {score.deviation:.4f}")
    points = _points((part.pooled for part in parts()), count=count, seed=seed)
    if reference.points is None:
        kid = metric_name("kid", features)
        notes.append(f"{kid}, precision and recall compare single pictures: give the reference's pictures, not its statistics")
    elif min(len(points), len(reference.points)) <= NEIGHBOURS:
        notes.append(f"{metric_name('kid', features)}, precision and recall need more than {NEIGHBOURS} pictures on each side")
    else:
        book("kid", kernel_distance(points, reference.points, seed=seed))
        shares = precision_recall(points, reference.points, seed=seed)
        book("precision", shares.precision)
        book("recall", shares.recall)
        notes.append(
            f"intervals are of drawing pictures anew out of these ({len(points):,} samples, {len(reference.points):,} references); "
            "for precision and recall the manifolds stay as they are"
        )
    return Quality(metrics, intervals, tuple(notes), count)


def _about_bias(parts: Parts, reference: Reference, *, count: int, fid: float, features: str) -> str:
    """How much of a Fréchet distance comes of there being so few samples: the bias falls as 1 / N, so half of them have twice of it
    (Chong and Forsyth 2020)."""
    name = metric_name("fid", features)
    against = "" if reference.count is None else f" against {reference.count:,} reference pictures"
    said = f"{name} of {count:,} samples{against} is biased upwards, the more the fewer there are: compare it only at equal numbers"
    half = count // 2
    if half < 2:
        return said
    smaller = frechet_distance(sums_in_order(_first(parts(), half)).gaussian(), reference.pooled)
    return f"{said} (the first half of them alone: {smaller:.4f}, so about {max(0.0, smaller - fid):.4f} of {fid:.4f} is that bias)"


def _first(parts: Iterable[FeatureBatch], count: int) -> Iterator[NDArray[np.float32]]:
    """Pooled features of the first pictures."""
    left = count
    for part in parts:
        if left <= 0:
            return
        yield part.pooled[:left]
        left -= len(part.pooled)


def _points(parts: Iterable[NDArray[np.float32]], *, count: int, seed: int) -> NDArray[np.float32]:
    """The features of at most `MOST_POINTS` pictures, each as likely as any other, in picture order."""
    if count <= MOST_POINTS:
        return np.concatenate(list(parts))
    order = torch.argsort(draws.uniforms(seed, Purpose.SUBSET, torch.arange(count)).squeeze(1), stable=True)
    chosen = np.zeros(count, dtype=bool)
    chosen[order[:MOST_POINTS].numpy()] = True
    kept, seen = [], 0
    for part in parts:
        kept.append(part[chosen[seen : seen + len(part)]])
        seen += len(part)
    return np.concatenate(kept)
