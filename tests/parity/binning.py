"""How far two programs may differ in the binned log-likelihood, where the probability of a bin is a difference of two cdfs near 1."""

import math

import torch
from torch import Tensor

from iddpm_ray.diffusion.gaussian import GaussianDiffusion, p_moments
from iddpm_ray.diffusion.likelihood import approximate_normal_cdf, mean_over_pixels

HALF_BIN = 1 / 255
FLOOR = 1e-12


def slack(x: Tensor, *, mean: Tensor, log_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """By how many nats rounding in `dtype` can change each element's log-likelihood; the arguments are float64 and broadcast.

    Each cdf is a multiple of half its dtype's epsilon, so it is off by about as much, until it is so far out that it is 0 or 1 in
    any program. A probability of a few such multiples may come out as another one, or as none.
    """
    probability, noise = _bin(x, mean, log_scale, dtype)
    return (probability + noise).clamp(min=FLOOR).log() - (probability - noise).clamp(min=FLOOR).log()


def gradient_slack(x: Tensor, *, mean: Tensor, log_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The same for its derivatives, as a share of them: 3 where the probability may be any of the first few multiples, or none."""
    probability, noise = _bin(x, mean, log_scale, dtype)
    return (noise / (probability - noise).clamp(min=1e-300)).clamp(max=3.0)


def _bin(x: Tensor, mean: Tensor, log_scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The probability of the bin and how far off it may be."""
    epsilon = torch.finfo(dtype).eps
    upper, lower = (approximate_normal_cdf(torch.exp(-log_scale) * (x - mean + edge)) for edge in (HALF_BIN, -HALF_BIN))
    noise_upper, noise_lower = ((torch.minimum(cdf, 1 - cdf) > epsilon / 64) * (epsilon / 2) for cdf in (upper, lower))
    first, last = x < -0.999, x > 0.999
    probability = torch.where(first, upper, torch.where(last, 1 - lower, upper - lower))
    return probability, torch.where(first, noise_upper, torch.where(last, noise_lower, noise_upper + noise_lower))


def decoder_slack(
    diffusion: GaussianDiffusion, *, output: Tensor, x_start: Tensor, x_t: Tensor, t: Tensor, clip: bool, dtype: torch.dtype
) -> Tensor:
    """By how many bits rounding can change a picture's term of the bound, [N]; 0 but for t = 0. The arguments are float64."""
    moments = p_moments(diffusion, output=output, x_t=x_t, t=t, clip=clip)
    nats = slack(x_start, mean=moments.mean, log_scale=0.5 * moments.log_variance, dtype=dtype)
    return torch.where(t == 0, mean_over_pixels(nats) / math.log(2), 0.0)
