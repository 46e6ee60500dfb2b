"""Mean and covariance of features, gathered piece by piece, and the Fréchet distance of two Gaussians (Heusel et al. 2017)."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """What is known of N features of D numbers, in float64.

    Attributes:
        count: N.
        mean: [D].
        scatter: [D, D] sum of the outer products of deviations from the mean.
    """

    count: int
    mean: Floats
    scatter: Floats

    def plus(self, other: "FeatureSums") -> "FeatureSums":
        """Both together (Chan, Golub and LeVeque 1979, eq. 2.1)."""
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        between = np.outer(apart, apart) * (self.count * other.count / count)
        return FeatureSums(count, mean, self.scatter + other.scatter + between)

    def gaussian(self) -> "Gaussian":
        """Mean and unbiased covariance."""
        assert self.count > 1
        return Gaussian(self.mean, self.scatter / (self.count - 1))


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A Gaussian of D dimensions: mean [D] and covariance [D, D], float64."""

    mean: Floats
    covariance: Floats


def sums_of(features: NDArray[np.floating]) -> FeatureSums:
    """The sums of features [N, D], N at least 1."""
    values = features.astype(np.float64)
    mean = values.mean(axis=0)
    return FeatureSums(len(values), mean, (values - mean).T @ (values - mean))


def sums_in_order(parts: Iterable[NDArray[np.floating]]) -> FeatureSums:
    """The sums of parts [n, D], merged in the order in which they come, so that equal parts give equal bits whoever made them."""
    total: FeatureSums | None = None
    for part in parts:
        total = sums_of(part) if total is None else total.plus(sums_of(part))
    assert total is not None
    return total


def frechet_distance(one: Gaussian, other: Gaussian) -> float:
    """|m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)) (Dowson and Landau 1982, eq. 4).

    The trace of the root is the sum of the singular values of S1^(1/2) S2^(1/2), which stays real and exact where a covariance has less
    than full rank, as it has of fewer pictures than dimensions.
    """
    apart = one.mean - other.mean
    shared = np.linalg.svd(_root(one.covariance) @ _root(other.covariance), compute_uv=False).sum()
    return max(0.0, float(apart @ apart + np.trace(one.covariance) + np.trace(other.covariance) - 2 * shared))


def _root(covariance: Floats) -> Floats:
    """The symmetric square root; what rounding made negative counts as nothing."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
