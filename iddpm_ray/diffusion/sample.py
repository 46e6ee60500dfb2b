"""Drawing pictures: ancestral (DDPM) and implicit (DDIM) steps, DDIM backwards, and their loops.

Sources: Ho et al. 2020 (arXiv:2006.11239, algorithm 2); Song et al. 2020, DDIM (arXiv:2010.02502, eq. 12 and 16).
A step keeps gradients if its caller does. The loops compute without them and hand every step out with the caller's own setting.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray.diffusion.gaussian import (
    GaussianDiffusion,
    ModelMoments,
    at_least_float32,
    eps_from_xstart,
    lookup,
    p_moments,
    predict,
)

Denoised = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class StepSample:
    """After one step: sample and pred_xstart, [N, C, H, W] each."""

    sample: Tensor
    pred_xstart: Tensor


def ddpm_step(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    x_t: Tensor,
    t: Tensor,
    noise: Tensor | None,
    cond: Mapping[str, Tensor],
    clip: bool = True,
    denoised: Denoised | None = None,
) -> StepSample:
    """x_{t-1} from x_t by p(x_{t-1} given x_t).

    Args:
        t: [N] int64.
        noise: [N, C, H, W], without effect where t = 0; None for the mean.
        cond: further inputs of the network, [N, ...] each.
        clip: clamp the prediction of x_start to [-1, 1].
        denoised: applied to that prediction before it is clamped.
    """
    moments = moments_at(diffusion, model, x_t=x_t, t=t, cond=cond, clip=clip, denoised=denoised)
    if noise is None:
        return StepSample(moments.mean, moments.pred_xstart)
    scale = torch.exp(0.5 * moments.log_variance) * _unless_last(t, like=moments.mean)
    return StepSample(moments.mean + scale * noise.to(moments.mean.dtype), moments.pred_xstart)


def ddim_step(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    x_t: Tensor,
    t: Tensor,
    noise: Tensor | None,
    cond: Mapping[str, Tensor],
    eta: float = 0.0,
    clip: bool = True,
    denoised: Denoised | None = None,
) -> StepSample:
    """x_{t-1} from x_t by DDIM; eta 0 is deterministic, eta 1 as random as DDPM. Arguments as of `ddpm_step`."""
    moments = moments_at(diffusion, model, x_t=x_t, t=t, cond=cond, clip=clip, denoised=denoised)
    pred_xstart = moments.pred_xstart
    eps = eps_from_xstart(diffusion, x_t=at_least_float32(x_t), t=t, x_start=pred_xstart)
    kept = lookup(diffusion.tables.alphas_cumprod, t, like=pred_xstart)
    kept_prev = lookup(diffusion.tables.alphas_cumprod_prev, t, like=pred_xstart)
    sigma = eta * torch.sqrt((1 - kept_prev) / (1 - kept)) * torch.sqrt(1 - kept / kept_prev)
    # Near eta 1 and far out this difference is 0 but for rounding, which must not make the root NaN.
    direction = torch.sqrt((1 - kept_prev - sigma**2).clamp(min=0))
    sample = pred_xstart * torch.sqrt(kept_prev) + direction * eps
    if noise is not None and eta != 0:
        sample = sample + _unless_last(t, like=sample) * sigma * noise.to(sample.dtype)
    return StepSample(sample, pred_xstart)


def ddim_reverse_step(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    x_t: Tensor,
    t: Tensor,
    cond: Mapping[str, Tensor],
    clip: bool = True,
    denoised: Denoised | None = None,
) -> StepSample:
    """x_{t+1} from x_t: the deterministic DDIM step run towards the noise. The last timestep leads to the predicted eps itself."""
    moments = moments_at(diffusion, model, x_t=x_t, t=t, cond=cond, clip=clip, denoised=denoised)
    eps = eps_from_xstart(diffusion, x_t=at_least_float32(x_t), t=t, x_start=moments.pred_xstart)
    kept_next = lookup(diffusion.tables.alphas_cumprod_next, t, like=eps)
    return StepSample(moments.pred_xstart * torch.sqrt(kept_next) + torch.sqrt(1 - kept_next) * eps, moments.pred_xstart)


def moments_at(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    x_t: Tensor,
    t: Tensor,
    cond: Mapping[str, Tensor],
    clip: bool,
    denoised: Denoised | None,
) -> ModelMoments:
    """What the network says of x_{t-1} and x_start, given x_t; arguments as of `ddpm_step`."""
    x_t = at_least_float32(x_t)
    output = predict(diffusion, model, x_t=x_t, t=t, cond=cond)
    return p_moments(diffusion, output=output, x_t=x_t, t=t, clip=clip, denoised=denoised)


def _unless_last(t: Tensor, *, like: Tensor) -> Tensor:
    return (t != 0).to(like.dtype).view(-1, *[1] * (like.ndim - 1))


def ddpm_steps(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    start: Tensor,
    noise: Callable[[int], Tensor],
    cond: Mapping[str, Tensor],
    clip: bool = True,
    denoised: Denoised | None = None,
) -> Iterator[StepSample]:
    """Every step from pure noise to a picture.

    Args:
        start: [N, C, H, W], the noise to begin with.
        noise: given the number of steps done, the noise [N, C, H, W] of the next; not asked for the last, which takes none.
        cond: further inputs of the network, [N, ...] each.
    """

    def step(x_t: Tensor, index: int) -> StepSample:
        drawn = noise(diffusion.num_timesteps - 1 - index) if index > 0 else None
        return ddpm_step(diffusion, model, x_t=x_t, t=all_at(index, like=x_t), noise=drawn, cond=cond, clip=clip, denoised=denoised)

    return walk(step, start=start, indices=reversed(range(diffusion.num_timesteps)))


def ddim_steps(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    start: Tensor,
    noise: Callable[[int], Tensor],
    cond: Mapping[str, Tensor],
    eta: float = 0.0,
    clip: bool = True,
    denoised: Denoised | None = None,
) -> Iterator[StepSample]:
    """Every DDIM step from pure noise to a picture; arguments as of `ddpm_steps`, and no noise is asked for at eta 0."""

    def step(x_t: Tensor, index: int) -> StepSample:
        drawn = noise(diffusion.num_timesteps - 1 - index) if index > 0 and eta != 0 else None
        t = all_at(index, like=x_t)
        return ddim_step(diffusion, model, x_t=x_t, t=t, noise=drawn, cond=cond, eta=eta, clip=clip, denoised=denoised)

    return walk(step, start=start, indices=reversed(range(diffusion.num_timesteps)))


def ddim_reverse_steps(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    start: Tensor,
    cond: Mapping[str, Tensor],
    clip: bool = True,
    denoised: Denoised | None = None,
) -> Iterator[StepSample]:
    """Every step from pictures `start` [N, C, H, W] to the noise that DDIM would draw them from."""

    def step(x_t: Tensor, index: int) -> StepSample:
        return ddim_reverse_step(diffusion, model, x_t=x_t, t=all_at(index, like=x_t), cond=cond, clip=clip, denoised=denoised)

    return walk(step, start=start, indices=range(diffusion.num_timesteps))


def ddpm_sample(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    start: Tensor,
    noise: Callable[[int], Tensor],
    cond: Mapping[str, Tensor],
    clip: bool = True,
) -> Tensor:
    """The pictures at the end of `ddpm_steps`, [N, C, H, W]."""
    return _last(ddpm_steps(diffusion, model, start=start, noise=noise, cond=cond, clip=clip), start)


def ddim_sample(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    start: Tensor,
    noise: Callable[[int], Tensor],
    cond: Mapping[str, Tensor],
    eta: float = 0.0,
    clip: bool = True,
) -> Tensor:
    """The pictures at the end of `ddim_steps`, [N, C, H, W]."""
    return _last(ddim_steps(diffusion, model, start=start, noise=noise, cond=cond, eta=eta, clip=clip), start)


def ddim_reverse_sample(
    diffusion: GaussianDiffusion, model: Callable[..., Tensor], *, start: Tensor, cond: Mapping[str, Tensor], clip: bool = True
) -> Tensor:
    """The noise at the end of `ddim_reverse_steps`, [N, C, H, W]."""
    return _last(ddim_reverse_steps(diffusion, model, start=start, cond=cond, clip=clip), start)


def walk(step: Callable[[Tensor, int], StepSample], *, start: Tensor, indices: Iterable[int]) -> Iterator[StepSample]:
    """Steps at the given timesteps, each from the sample of the one before, without gradients.

    Args:
        step: given x_t and the timestep.
    """
    x_t = start
    for index in indices:
        with torch.no_grad():
            found = step(x_t, index)
        x_t = found.sample
        yield found


def all_at(index: int, *, like: Tensor) -> Tensor:
    """A timestep for each picture of a batch, [N] int64."""
    return torch.full((like.shape[0],), index, dtype=torch.int64, device=like.device)


def _last(steps: Iterator[StepSample], start: Tensor) -> Tensor:
    sample = start
    for step in steps:
        sample = step.sample
    return sample


def to_bytes(samples: Tensor) -> Tensor:
    """Samples in [-1, 1] to the nearest of the values 0..255, uint8, beyond them clamped: exact for pictures that were bytes before."""
    return ((samples + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def to_bytes_truncated(samples: Tensor) -> Tensor:
    """As the programs of Improved DDPM do it, downwards: 63 of 256 values come back one lower. Only to compare with their files."""
    return ((samples + 1) * 127.5).clamp(0, 255).to(torch.uint8)
