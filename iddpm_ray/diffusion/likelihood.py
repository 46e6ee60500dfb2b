"""The variational bound: its terms, its prior, and bits per dimension (Nichol & Dhariwal 2021, section 2 and eq. 4 to 7)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray.diffusion.gaussian import (
    GaussianDiffusion,
    ModelMoments,
    at_least_float32,
    eps_from_xstart,
    p_moments,
    predict,
    q_moments,
    q_posterior,
    q_sample,
)

# Pixel values lie 2/255 apart; one stands for the half of that on each side.
_HALF_BIN = 1.0 / 255.0
_SMALLEST_PROBABILITY = 1e-12


@dataclass(frozen=True)
class BitsPerDim:
    """The bound of N pictures under a process of n timesteps; columns from the noisiest timestep (n-1) to the least noisy (0).

    Attributes:
        total_bpd: [N] sum of `vb` and `prior_bpd`, bits a dimension.
        prior_bpd: [N] what the last x_t still tells of the picture, bits a dimension.
        vb: [N, n] terms of the bound, bits a dimension.
        xstart_mse, mse: [N, n] mean squared error of the predicted x_start, and of the eps that it implies.
    """

    total_bpd: Tensor
    prior_bpd: Tensor
    vb: Tensor
    xstart_mse: Tensor
    mse: Tensor


@dataclass(frozen=True)
class BoundTerms:
    """One term of the bound for each of N pictures: `vb` in bits a dimension, squared errors as in `BitsPerDim`; all [N]."""

    vb: Tensor
    xstart_mse: Tensor
    mse: Tensor


def mean_over_pixels(x: Tensor) -> Tensor:
    """[N, ...] to [N]: the mean over all but the first axis."""
    return x.mean(dim=tuple(range(1, x.ndim)))


def normal_kl(*, mean1: Tensor, log_variance1: Tensor, mean2: Tensor, log_variance2: Tensor) -> Tensor:
    """KL divergence of the first Gaussian from the second, elementwise, nats; the arguments broadcast."""
    ratio = -1.0 + log_variance2 - log_variance1 + torch.exp(log_variance1 - log_variance2)
    return 0.5 * (ratio + (mean1 - mean2) ** 2 * torch.exp(-log_variance2))


def approximate_normal_cdf(x: Tensor) -> Tensor:
    """The cumulative distribution of N(0, 1), by a tanh (Page 1977); off by at most 2e-4."""
    return 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def discretized_log_likelihood(x: Tensor, *, mean: Tensor, log_scale: Tensor) -> Tensor:
    """Log-probability, nats, of pixels x (multiples of 2/255 from -1) under a Gaussian cut into their bins; elementwise.

    The outermost bins reach to infinity (Ho et al. 2020, eq. 13). The arguments broadcast.
    """
    centered, precision = x - mean, torch.exp(-log_scale)
    below_upper = approximate_normal_cdf(precision * (centered + _HALF_BIN))
    below_lower = approximate_normal_cdf(precision * (centered - _HALF_BIN))
    probability = torch.where(x < -0.999, below_upper, torch.where(x > 0.999, 1.0 - below_lower, below_upper - below_lower))
    return torch.log(probability.clamp(min=_SMALLEST_PROBABILITY))


def vb_term(diffusion: GaussianDiffusion, *, moments: ModelMoments, x_start: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
    """The term of the bound at t, bits a dimension, [N]: the decoder's negative log-likelihood at t = 0, elsewhere the KL divergence
    of the model's step from the true posterior."""
    true = q_posterior(diffusion, x_start=x_start, x_t=x_t, t=t)
    kl = normal_kl(mean1=true.mean, log_variance1=true.log_variance, mean2=moments.mean, log_variance2=moments.log_variance)
    decoder = -discretized_log_likelihood(x_start, mean=moments.mean, log_scale=0.5 * moments.log_variance)
    return torch.where(t == 0, mean_over_pixels(decoder), mean_over_pixels(kl)) / math.log(2.0)


def prior_bpd(diffusion: GaussianDiffusion, *, x_start: Tensor) -> Tensor:
    """KL divergence of q(x_T given x_start) from N(0, 1), bits a dimension, [N]; about 0 for a good schedule."""
    last = torch.full((x_start.shape[0],), diffusion.num_timesteps - 1, dtype=torch.int64, device=x_start.device)
    q = q_moments(diffusion, x_start=x_start, t=last)
    zero = torch.zeros_like(q.log_variance)
    return mean_over_pixels(normal_kl(mean1=q.mean, log_variance1=q.log_variance, mean2=zero, log_variance2=zero)) / math.log(2.0)


def bits_per_dim(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    x_start: Tensor,
    noise: Callable[[int], Tensor],
    cond: Mapping[str, Tensor],
    clip: bool = True,
) -> BitsPerDim:
    """The whole bound of pictures x_start [N, C, H, W], one network call a timestep, from the noisiest on.

    Args:
        noise: given how many timesteps are done, the noise [N, C, H, W] of the next.
        cond: further inputs of the network, [N, ...] each.
        clip: clamp predictions of x_start to [-1, 1].
    """
    x_start = at_least_float32(x_start)
    columns: list[BoundTerms] = []
    with torch.no_grad():
        for done, index in enumerate(reversed(range(diffusion.num_timesteps))):
            t = torch.full((x_start.shape[0],), index, dtype=torch.int64, device=x_start.device)
            columns.append(bound_terms(diffusion, model, x_start=x_start, t=t, noise=noise(done), cond=cond, clip=clip))
        terms, prior = torch.stack([column.vb for column in columns], dim=1), prior_bpd(diffusion, x_start=x_start)
        xstart_mse = torch.stack([column.xstart_mse for column in columns], dim=1)
        return BitsPerDim(terms.sum(dim=1) + prior, prior, terms, xstart_mse, torch.stack([column.mse for column in columns], dim=1))


def bound_terms(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    x_start: Tensor,
    t: Tensor,
    noise: Tensor,
    cond: Mapping[str, Tensor],
    clip: bool = True,
) -> BoundTerms:
    """The terms of the bound of pictures x_start [N, C, H, W], each at its own timestep t [N] under its own noise [N, C, H, W]."""
    x_start = at_least_float32(x_start)
    eps = noise.to(x_start.dtype)
    x_t = q_sample(diffusion, x_start=x_start, t=t, noise=eps)
    moments = p_moments(diffusion, output=predict(diffusion, model, x_t=x_t, t=t, cond=cond), x_t=x_t, t=t, clip=clip)
    return BoundTerms(
        vb=vb_term(diffusion, moments=moments, x_start=x_start, x_t=x_t, t=t),
        xstart_mse=mean_over_pixels((moments.pred_xstart - x_start) ** 2),
        mse=mean_over_pixels((eps_from_xstart(diffusion, x_t=x_t, t=t, x_start=moments.pred_xstart) - eps) ** 2),
    )
