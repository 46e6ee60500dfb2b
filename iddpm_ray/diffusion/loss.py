"""The training objective (Nichol & Dhariwal 2021, section 3): L_simple, L_hybrid, L_vlb, and the bound without rescaling."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray.diffusion.gaussian import (
    GaussianDiffusion,
    LossType,
    MeanType,
    at_least_float32,
    p_moments,
    predict,
    q_posterior,
    q_sample,
)
from iddpm_ray.diffusion.likelihood import mean_over_pixels, vb_term


@dataclass(frozen=True)
class LossTerms:
    """Terms of each sample, [N] float32.

    Attributes:
        loss: what is minimised.
        mse: mean squared error of the network's prediction; None for the KL losses.
        vb: the bound's term as it enters `loss`; None where the loss is nothing else, or has no such term.
    """

    loss: Tensor
    mse: Tensor | None
    vb: Tensor | None


def training_losses(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    x_start: Tensor,
    t: Tensor,
    noise: Tensor,
    cond: Mapping[str, Tensor],
) -> LossTerms:
    """The loss of each sample at its timestep; one call of the network, nothing waits for the device.

    Everything but the network is float32, whatever the network computes in (float64 if `x_start` is).

    Args:
        model: given x_t [N, C, H, W], the timesteps as it knows them [N], and `cond` by name.
        x_start, noise: [N, C, H, W].
        t: [N] int64, 0 <= t < diffusion.num_timesteps.
        cond: further inputs of the network, [N, ...] each.
    """
    x_start = at_least_float32(x_start)
    noise = noise.to(x_start.dtype)
    x_t = q_sample(diffusion, x_start=x_start, t=t, noise=noise)
    output = predict(diffusion, model, x_t=x_t, t=t, cond=cond)
    match diffusion.loss_type:
        case LossType.KL:
            return LossTerms(_vb(diffusion, output, x_start, x_t, t), None, None)
        case LossType.RESCALED_KL:
            return LossTerms(_vb(diffusion, output, x_start, x_t, t) * diffusion.num_timesteps, None, None)
        case LossType.MSE | LossType.RESCALED_MSE:
            predicted = output[:, : x_start.shape[1]]
            mse = mean_over_pixels((_target(diffusion, x_start, x_t, t, noise) - predicted) ** 2)
            if not diffusion.variance_type.learned:
                return LossTerms(mse, mse, None)
            # The bound trains the variance alone: its gradient would drown the mean's (section 3.1).
            frozen = torch.cat([predicted.detach(), output[:, x_start.shape[1] :]], dim=1)
            vb = _vb(diffusion, frozen, x_start, x_t, t)
            if diffusion.loss_type is LossType.RESCALED_MSE:
                vb = vb * (diffusion.num_timesteps / 1000.0)
            return LossTerms(mse + vb, mse, vb)


def _vb(diffusion: GaussianDiffusion, output: Tensor, x_start: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
    moments = p_moments(diffusion, output=output, x_t=x_t, t=t, clip=False)
    return vb_term(diffusion, moments=moments, x_start=x_start, x_t=x_t, t=t)


def _target(diffusion: GaussianDiffusion, x_start: Tensor, x_t: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    match diffusion.mean_type:
        case MeanType.EPSILON:
            return noise
        case MeanType.START_X:
            return x_start
        case MeanType.PREVIOUS_X:
            return q_posterior(diffusion, x_start=x_start, x_t=x_t, t=t).mean
