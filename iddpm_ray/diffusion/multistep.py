"""DPM-Solver++ 2M: few deterministic steps, each using the prediction of the one before it, on the same discrete timesteps.

Source: Lu et al. 2022, DPM-Solver++ (arXiv:2211.01095, algorithm 2, for networks made to predict x_start).
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from iddpm_ray.diffusion.gaussian import GaussianDiffusion, at_least_float32
from iddpm_ray.diffusion.sample import Denoised, StepSample, all_at, moments_at, walk


def dpmpp_step(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    x_t: Tensor,
    index: int,
    previous: Tensor | None,
    cond: Mapping[str, Tensor],
    clip: bool = True,
    denoised: Denoised | None = None,
) -> StepSample:
    """x at timestep `index - 1` from x_t at timestep `index`; at the last timestep, 0, the prediction of x_start itself.

    Args:
        previous: [N, C, H, W], what was predicted of x_start at timestep `index + 1`; None makes a step of the first order, which is
            DDIM's.
        cond, clip, denoised: as of `ddpm_step`.
    """
    x_t = at_least_float32(x_t)
    t = all_at(index, like=x_t)
    pred_xstart = moments_at(diffusion, model, x_t=x_t, t=t, cond=cond, clip=clip, denoised=denoised).pred_xstart
    if index == 0:
        return StepSample(pred_xstart, pred_xstart)
    kept = diffusion.tables.alphas_cumprod
    snr = 0.5 * torch.log(kept / (1 - kept))  # lambda, half the logarithm of the signal-to-noise ratio
    step = snr[index - 1] - snr[index]
    leading = pred_xstart
    if previous is not None:
        share = 0.5 * step / (snr[index] - snr[index + 1])  # 1 / 2r of algorithm 2
        leading = ((1 + share) * pred_xstart - share * previous).to(x_t.dtype)
    shrinks = ((1 - kept[index - 1]) / (1 - kept[index])).sqrt().to(x_t.dtype)
    grows = (-kept[index - 1].sqrt() * torch.expm1(-step)).to(x_t.dtype)
    return StepSample(shrinks * x_t + grows * leading, pred_xstart)


def dpmpp_steps(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    start: Tensor,
    cond: Mapping[str, Tensor],
    clip: bool = True,
    denoised: Denoised | None = None,
) -> Iterator[StepSample]:
    """Every step from pure noise to a picture; arguments as of `ddpm_steps`, but no noise is used."""
    previous: Tensor | None = None

    def step(x_t: Tensor, index: int) -> StepSample:
        nonlocal previous
        found = dpmpp_step(diffusion, model, x_t=x_t, index=index, previous=previous, cond=cond, clip=clip, denoised=denoised)
        previous = found.pred_xstart
        return found

    return walk(step, start=start, indices=reversed(range(diffusion.num_timesteps)))
