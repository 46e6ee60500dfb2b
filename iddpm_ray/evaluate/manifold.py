"""Improved precision and recall (Kynkäänniemi et al. 2019): shares of one set of features that lie inside the manifold of the other.

The manifold of a set is the union of balls around its features, each as large as the distance to the feature's k-th nearest neighbour.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iddpm_ray.evaluate.bootstrap import Interval, interval, resampled_counts

NEIGHBOURS = 3
_ROWS = 1000  # compared with everything at a time


@dataclass(frozen=True)
class PrecisionRecall:
    """Precision: of the samples, inside the references' manifold. Recall: of the references, inside the samples'.

    Intervals are of drawing the pictures that are counted; the manifold stays what it is.
    """

    precision: Interval
    recall: Interval


def precision_recall(
    samples: NDArray[np.floating], references: NDArray[np.floating], *, replicas: int = 200, seed: int = 0
) -> PrecisionRecall:
    """Of features [N, D] and [M, D], N and M above the number of neighbours."""
    x, y = samples.astype(np.float64), references.astype(np.float64)
    return PrecisionRecall(
        _share(inside(x, manifold_of=y), replicas=replicas, seed=seed, stream=2),
        _share(inside(y, manifold_of=x), replicas=replicas, seed=seed, stream=3),
    )


def inside(points: NDArray[np.float64], *, manifold_of: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each point [N, D] lies in a ball of the manifold of the others [M, D]."""
    radii = np.empty(len(manifold_of))
    for begin in range(0, len(manifold_of), _ROWS):
        squares = _squares(manifold_of[begin : begin + _ROWS], manifold_of)
        own = np.arange(len(squares))
        squares[own, begin + own] = 0.0  # rounding must not make a feature its own far neighbour
        radii[begin : begin + _ROWS] = np.partition(squares, NEIGHBOURS, axis=1)[:, NEIGHBOURS]
    parts = [(_squares(points[begin : begin + _ROWS], manifold_of) <= radii).any(axis=1) for begin in range(0, len(points), _ROWS)]
    return np.concatenate(parts)


def _squares(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distances of every pair."""
    return ((x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1) - 2 * (x @ y.T)).clip(min=0)


def _share(hits: NDArray[np.bool_], *, replicas: int, seed: int, stream: int) -> Interval:
    drawn = resampled_counts(len(hits), replicas=replicas, seed=seed, stream=stream)
    return interval(float(hits.mean()), drawn @ hits / len(hits))
