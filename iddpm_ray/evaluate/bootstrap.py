"""How far a number may be off because its pictures were drawn and not others: draws of the same pictures with repetition (Efron 1979)."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose

FEWEST = 40  # replicas: of fewer, 2.5 % are none


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % bootstrap interval; None where too few replicas tell it."""

    value: float
    low: float | None
    high: float | None


def resampled_counts(count: int, *, replicas: int, seed: int, stream: int) -> NDArray[np.float64]:
    """How often each of `count` items is drawn in each replica, [replicas, count]; rows sum to `count`.

    Args:
        stream: tells apart what is resampled under one seed.
    """
    positions = torch.arange(replicas) + (stream << 32)
    chosen = (draws.uniforms(seed, Purpose.BOOTSTRAP, positions, count) * count).long().clamp(max=count - 1)
    counts = torch.zeros(replicas, count, dtype=torch.float64)
    return counts.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=torch.float64)).numpy()


def interval(value: float, replicas: NDArray[np.float64]) -> Interval:
    """The percentile interval of values [B] that the replicas gave; NaN of one that gave none."""
    given = replicas[~np.isnan(replicas)]
    if len(given) < FEWEST:
        return Interval(value, None, None)
    low, high = np.percentile(given, [2.5, 97.5])
    return Interval(value, float(low), float(high))
