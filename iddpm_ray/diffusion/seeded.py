"""Pictures as a function of (seed, index): picture i is the same whoever draws it, in whatever company."""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.diffusion.gaussian import GaussianDiffusion
from iddpm_ray.diffusion.sample import ddim_sample, ddpm_sample

# Positions of one picture's noises; more than any process has steps.
NOISES_A_PICTURE = 2**20


def draw_pictures(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    indices: Tensor,
    shape: tuple[int, int, int],
    seed: int,
    cond: Mapping[str, Tensor],
    method: Literal["ddpm", "ddim"] = "ddpm",
    eta: float = 0.0,
) -> Tensor:
    """Draws the pictures of the given indices.

    Args:
        indices: [N] int64 on the device; only (seed, index) decides a picture's start and noises.
        shape: (C, H, W) of a picture.
        cond: further inputs of the network, [N, ...] each.

    Returns:
        [N, C, H, W] float32, about [-1, 1].
    """
    start = draws.normals(seed, Purpose.SAMPLE_START, indices, shape)

    def noise(step: int) -> Tensor:
        return draws.normals(seed, Purpose.SAMPLE_NOISE, indices * NOISES_A_PICTURE + step, shape)

    with torch.no_grad():
        if method == "ddim":
            return ddim_sample(diffusion, model, start=start, noise=noise, cond=cond, eta=eta)
        return ddpm_sample(diffusion, model, start=start, noise=noise, cond=cond)
