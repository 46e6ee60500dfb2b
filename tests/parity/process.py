"""Processes and networks as the recorded cases describe them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from iddpm_ray.diffusion.gaussian import GaussianDiffusion, LossType, MeanType, VarianceType
from iddpm_ray.diffusion.respace import make_diffusion, make_diffusion_as_original
from iddpm_ray.errors import SpecError


def process(
    schedule: str,
    num_timesteps: int,
    sections: str | Sequence[int] | None = None,
    *,
    mean: str = "EPSILON",
    variance: str = "FIXED_SMALL",
    loss: str = "MSE",
    rescale: bool = False,
) -> GaussianDiffusion:
    """The product's process; where the product refuses what the original accepts, the one made as the original does."""
    types = {
        "mean_type": MeanType[mean],
        "variance_type": VarianceType[variance],
        "loss_type": LossType[loss],
        "rescale_timesteps": rescale,
    }
    try:
        return make_diffusion(schedule=schedule, num_timesteps=num_timesteps, sections=sections, **types)
    except SpecError:
        original = make_diffusion_as_original(schedule=schedule, num_timesteps=num_timesteps, sections=sections)
        return dataclasses.replace(original, **types)


def process_of(case: Mapping[str, Any]) -> GaussianDiffusion:
    """The process of a sampling or likelihood record."""
    return process(case["schedule"], case["T"], case["sections"], mean=case["mean"], variance=case["var"], rescale=bool(case["rescale"]))


class FormulaNetwork:
    """The recorded cases' network: a x + b cos(w tau), and c sin(3 x) as the variance part; remembers each tau it was given.

    Attributes:
        exact_tau: compute in float64 with tau = index * 1000 / T unrounded, instead of the float32 it is handed.
    """

    def __init__(self, case: Mapping[str, Any], *, exact_tau: bool = False) -> None:
        self.parameters = {"a": 0.4, "b": 0.1, "w": 0.01, "c": 0.5} | case.get("model", {})
        self.learned = VarianceType[case["var"]].learned
        self.given: list[Tensor] = []
        self.factor = 1000.0 / case["T"] if exact_tau and case["rescale"] else None

    def __call__(self, x: Tensor, tau: Tensor) -> Tensor:
        self.given.append(tau)
        p = self.parameters
        if self.factor is not None:
            tau = (tau.double() / self.factor).round() * self.factor
        wave = torch.cos(p["w"] * tau.to(x.dtype)).view(-1, 1, 1, 1)
        mean = p["a"] * x + p["b"] * wave
        return torch.cat([mean, p["c"] * torch.sin(3 * x)], dim=1) if self.learned else mean

    def told(self) -> Tensor:
        """What it was given, call by call [n]; every sample of a call is told the same."""
        assert all(bool((tau == tau[0]).all()) for tau in self.given)
        return torch.stack([tau[0] for tau in self.given])


def in_both(compute: Callable[[torch.dtype], Tensor]) -> tuple[Tensor, Tensor]:
    """The result in float32 and in float64."""
    return compute(torch.float32), compute(torch.float64)
