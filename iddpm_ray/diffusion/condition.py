"""Noise on the small picture that a network enlarges, with its level told to the network (Ho et al. 2021, arXiv:2106.15282, section 4.2).

A network that has met every level paints over the faults of a base model's pictures, which it never saw in training.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.diffusion.gaussian import GaussianDiffusion


@dataclass(frozen=True)
class ConditionNoise:
    """The levels: 0 is the small picture itself, level s is x_t of the process at t = s - 1.

    Attributes:
        highest: the noisiest level.
        signal, noise: float32 [highest + 1], what multiplies picture and noise.
    """

    highest: int
    signal: Tensor = field(compare=False, repr=False)
    noise: Tensor = field(compare=False, repr=False)

    @staticmethod
    def of(diffusion: GaussianDiffusion, *, highest: int) -> "ConditionNoise":
        """The first levels of a process that nothing was left out of."""
        signal, noise = (
            table[:highest].float() for table in (diffusion.tables.sqrt_alphas_cumprod, diffusion.tables.sqrt_one_minus_alphas_cumprod)
        )
        return ConditionNoise(highest, torch.cat([signal.new_ones(1), signal]), torch.cat([noise.new_zeros(1), noise]))

    def to(self, device: torch.device | str) -> "ConditionNoise":
        """The same on a device."""
        return ConditionNoise(self.highest, self.signal.to(device), self.noise.to(device))

    def levels(self, uniforms: Tensor) -> Tensor:
        """Levels 0 .. highest, equally likely, int64 [N], of uniforms [N] in [0, 1)."""
        return (uniforms * (self.highest + 1)).long()

    def add(self, low_res: Tensor, *, level: Tensor, noise: Tensor) -> Tensor:
        """Small pictures [N, C, h, w] at levels [N], with this noise."""
        shape = (-1, 1, 1, 1)
        return self.signal[level].view(shape) * low_res + self.noise[level].view(shape) * noise


def training_condition(low_res: Tensor, *, augment: ConditionNoise, seed: int, positions: Tensor) -> dict[str, Tensor]:
    """Small pictures [N, C, h, w] at a level drawn for each position [N]: `low_res` and `low_res_level`."""
    level = augment.levels(draws.uniforms(seed, Purpose.CONDITION_LEVEL, positions).squeeze(1))
    noise = draws.normals(seed, Purpose.CONDITION_NOISE, positions, tuple(low_res.shape[1:]))
    return {"low_res": augment.add(low_res, level=level, noise=noise), "low_res_level": level}


def drawing_condition(low_res: Tensor, *, augment: ConditionNoise | None, level: int, seed: int, indices: Tensor) -> dict[str, Tensor]:
    """Small pictures [N, C, h, w] for the pictures of these indices [N], all at one level; None: for a network that knows no levels."""
    if augment is None:
        return {"low_res": low_res}
    levels = torch.full_like(indices, level)
    noise = draws.normals(seed, Purpose.UPSAMPLE_CONDITION, indices, tuple(low_res.shape[1:]))
    return {"low_res": augment.add(low_res, level=levels, noise=noise), "low_res_level": levels}
