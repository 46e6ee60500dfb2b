"""The small parts of a U-Net: timestep embedding, group normalisation in float32, convolutions that begin at zero."""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_GROUPS = 32


def timestep_frequencies(dim: int, *, max_period: float = 10000.0, device: torch.device | None = None) -> Tensor:
    """Angular frequencies from 1 down to almost 1 / `max_period`, in equal ratios (Vaswani et al. 2017, section 3.5).

    The exponents are rounded to float32 as in the original; what follows passes through float64, for a float32 division or exponential
    differs by a rounding between devices and processors, which thousands of timesteps would multiply.

    Returns:
        [dim // 2] float32: exp(-ln(max_period) * k / (dim // 2)).
    """
    half = dim // 2
    scaled = torch.arange(half, dtype=torch.float32, device=device) * -math.log(max_period)
    exponents = (scaled.double() / half).float()
    return torch.exp(exponents.double()).float()


def timestep_embedding(t: Tensor, *, dim: int, max_period: float = 10000.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Sinusoidal embedding of timesteps: all cosines, then all sines, then a zero column if `dim` is odd.

    Args:
        t: [N] timesteps, integer or fractional.
        dim: columns of the result.
        max_period: period of the slowest wave, divided by 2 pi.
        dtype: of the angles t * frequency, float32 or float64; nothing narrower can hold them.

    Returns:
        [N, dim] of `dtype`.
    """
    angles = t.to(dtype)[:, None] * timestep_frequencies(dim, max_period=max_period, device=t.device).to(dtype)
    return F.pad(torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1), (0, dim % 2))


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or float32 where it is narrower."""
    return dtype if dtype == torch.float64 else torch.float32


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """An island of full precision inside autocast."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


class GroupNorm(nn.GroupNorm):
    """Group normalisation of 32 groups (Wu & He 2018) whose statistics and affine map are float32 whatever the activations are."""

    def __init__(self, num_channels: int) -> None:
        super().__init__(NUM_GROUPS, num_channels, eps=1e-5)

    def forward(self, input: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        """norm(input), or with a condition norm(input) * (1 + scale) + shift (FiLM, Perez et al. 2018).

        Args:
            input: [N, C, ...].
            scale: [N, C], or None.
            shift: [N, C], given with `scale`.

        Returns:
            [N, C, ...] of the dtype of `input`.
        """
        wide = at_least_float32(input.dtype)
        weight, bias, x = self.weight.to(wide), self.bias.to(wide), input.to(wide)
        if scale is None or shift is None:
            normalised = torch.group_norm(x, self.num_groups, weight, bias, self.eps)
        elif torch.compiler.is_compiling():
            factor, offset = (values.to(wide)[(...,) + (None,) * (x.dim() - 2)] for values in (1 + scale, shift))
            normalised = torch.group_norm(x, self.num_groups, weight, bias, self.eps) * factor + offset
        else:
            # Both affine maps are folded into one, a sample a row of channels: the kernel's single pass then does the modulation too.
            factor = 1 + scale.to(wide)
            folded_bias = torch.addcmul(shift.to(wide), bias, factor)
            rows = x.reshape(1, -1, *x.shape[2:])
            groups = self.num_groups * x.shape[0]
            normalised = torch.group_norm(rows, groups, (weight * factor).flatten(), folded_bias.flatten(), self.eps).view(x.shape)
        return normalised.to(input.dtype)


class ZeroConv1d(nn.Conv1d):
    """A convolution whose weight and bias begin at zero, so that its branch begins as nothing."""

    def reset_parameters(self) -> None:
        """Fills with zeros."""
        _zero(self)


class ZeroConv2d(nn.Conv2d):
    """A convolution whose weight and bias begin at zero, so that its branch begins as nothing."""

    def reset_parameters(self) -> None:
        """Fills with zeros."""
        _zero(self)


def _zero(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
