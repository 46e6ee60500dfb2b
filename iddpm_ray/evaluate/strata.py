"""An unbiased estimate of the whole bound from a few timesteps a picture: strata over timesteps, two draws or more in each.

The bound of a picture is a sum over T timesteps. Cut into strata, each stratum's part is its width times the mean of what was drawn
uniformly inside it (Cochran 1977, "Sampling techniques", chapter 5). Independent draws in one stratum tell how far the estimate may be off.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose

# A position holds row, pass, draw and stratum side by side.
MOST_STRATA = 1 << 10
MOST_DRAWS = 1 << 10
DRAWS_A_PASS = 2


@dataclass(frozen=True)
class Strata:
    """Consecutive ranges of timesteps: stratum s is edges[s] <= t < edges[s + 1]."""

    edges: tuple[int, ...]

    @property
    def widths(self) -> NDArray[np.float64]:
        """Timesteps of each stratum, [S]."""
        return np.diff(np.array(self.edges, dtype=np.float64))

    def __len__(self) -> int:
        return len(self.edges) - 1


def make_strata(num_timesteps: int, *, count: int) -> Strata:
    """About `count` strata whose widths grow geometrically from 1, since terms of the bound fall steeply with t; t = 0 is alone."""
    count = max(1, min(count, num_timesteps, MOST_STRATA))
    edges = [0]
    while edges[-1] < num_timesteps:
        left = count - len(edges) + 1
        last = edges[-1]
        # The ratio at which the strata that are left would reach the end.
        step = 1.0 if last == 0 and left > 1 else num_timesteps - last if left <= 1 else last * ((num_timesteps / last) ** (1 / left) - 1)
        edges.append(min(num_timesteps, last + max(1, round(step))))
    return Strata(tuple(edges))


@dataclass(frozen=True)
class Drawn:
    """Timesteps and noises to look at: row-major over (picture, stratum, draw), so M = N * S * 2 of them.

    Attributes:
        t: [M] int64.
        positions: [M] int64, the places of their noises.
    """

    t: Tensor
    positions: Tensor


def draw_timesteps(strata: Strata, *, rows: Tensor, seed: int, number: int) -> Drawn:
    """What pass `number` looks at: of each row [N] two timesteps in each stratum, functions of (seed, row, stratum, pass) alone."""
    assert (number + 1) * DRAWS_A_PASS <= MOST_DRAWS
    edges = torch.tensor(strata.edges, device=rows.device)
    stratum = torch.arange(len(strata), device=rows.device)
    draw = torch.arange(DRAWS_A_PASS, device=rows.device) + number * DRAWS_A_PASS
    positions = (rows[:, None, None] * MOST_DRAWS + draw) * MOST_STRATA + stratum[:, None]
    uniform = draws.uniforms(seed, Purpose.STRATUM_TIMESTEP, positions.flatten()).view(positions.shape)
    width = (edges[1:] - edges[:-1])[:, None]
    t = edges[:-1, None] + (uniform * width).long().clamp(max=width - 1)
    return Drawn(t.flatten(), positions.flatten())


@dataclass(frozen=True)
class PictureEstimates:
    """Estimated sums over all timesteps, one a picture.

    Attributes:
        total: [N] estimates of the sum of the terms.
        variance: [N] unbiased estimates of what drawing timesteps and noises adds to the variance of `total`.
    """

    total: NDArray[np.float64]
    variance: NDArray[np.float64]


def estimate_sums(strata: Strata, terms: NDArray[np.float64]) -> PictureEstimates:
    """Sums over all timesteps from drawn terms [N, S, D], D at least 2 draws of each stratum."""
    num_draws = terms.shape[2]
    widths = strata.widths
    total = terms.mean(axis=2) @ widths
    variance = (terms.var(axis=2, ddof=1) / num_draws) @ widths**2
    return PictureEstimates(total, variance)


@dataclass(frozen=True)
class MeanEstimate:
    """The mean over a set of pictures.

    Attributes:
        mean: of the pictures that were looked at.
        standard_error: of it, as an estimate of the mean over the whole set; inf where it cannot be known.
        count, population: pictures looked at, and pictures of the set.
        unseen: of the standard error, what leaving out pictures makes alone, which no further draw at those looked at can lower.
    """

    mean: float
    standard_error: float
    count: int
    population: int
    unseen: float = 0.0


def mean_estimate(values: NDArray[np.float64], variances: NDArray[np.float64], *, population: int) -> MeanEstimate:
    """The mean over a finite set of which `values` [N] are a simple random sample, each known up to a `variances` [N] of its own.

    Two-stage sampling (Cochran 1977, eq. 10.15): the sample variance counts as far as pictures were left out, the variance within pictures
    as far as they were looked at.
    """
    count = len(values)
    fraction = count / population
    between = float(values.var(ddof=1)) if count > 1 else 0.0 if count == population else math.inf
    within = float(variances.mean())
    unseen = (1 - fraction) * between if fraction < 1 else 0.0
    alone = (1 - fraction) * max(0.0, between - within) if fraction < 1 else 0.0  # the values vary by their draws too
    error = math.sqrt((unseen + fraction * within) / count)
    return MeanEstimate(float(values.mean()), error, count, population, math.sqrt(alone / count))


def pooled(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Draws of several passes over the same pictures, [N, S, D] each, side by side."""
    return np.concatenate(parts, axis=2)
