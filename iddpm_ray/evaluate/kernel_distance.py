"""Kernel distance of two sets of features: the unbiased squared maximum mean discrepancy under a cubic kernel (Binkowski et al. 2018)."""

import numpy as np
from numpy.typing import NDArray

from iddpm_ray.evaluate.bootstrap import Interval, interval, resampled_counts


def cubic_kernel(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """(x . y / D + 1)^3 of every pair of rows of [N, D] and [M, D]."""
    return (x @ y.T / x.shape[1] + 1.0) ** 3


def kernel_distance(samples: NDArray[np.floating], references: NDArray[np.floating], *, replicas: int = 200, seed: int = 0) -> Interval:
    """The distance of features [N, D] from [M, D], N and M at least 2, with an interval; about 0, below it too, where they are alike.

    Every pair of different pictures counts. A replica weighs pictures by how often it drew them; a picture is no pair with itself, drawn
    twice or not, and a replica of one picture alone is left out.
    """
    x, y = samples.astype(np.float64), references.astype(np.float64)
    within_x, within_y, between = cubic_kernel(x, x), cubic_kernel(y, y), cubic_kernel(x, y)

    def distance(of_x: NDArray[np.float64], of_y: NDArray[np.float64]) -> NDArray[np.float64]:
        cross = np.einsum("bi,bi->b", of_x @ between, of_y) / (len(x) * len(y))
        return _pairs(within_x, of_x) + _pairs(within_y, of_y) - 2 * cross

    value = distance(np.ones((1, len(x))), np.ones((1, len(y))))
    drawn_x = resampled_counts(len(x), replicas=replicas, seed=seed, stream=0)
    drawn_y = resampled_counts(len(y), replicas=replicas, seed=seed, stream=1)
    return interval(float(value[0]), distance(drawn_x, drawn_y))


def _pairs(kernel: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the kernel over pairs of different items, under each row of weights [B, N]; NaN where one item has all the weight."""
    inside = np.einsum("bi,bi->b", weights @ kernel, weights) - weights**2 @ np.diag(kernel)
    pairs = weights.sum(axis=1) ** 2 - (weights**2).sum(axis=1)
    return np.divide(inside, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
