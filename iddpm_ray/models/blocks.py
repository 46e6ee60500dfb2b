"""The blocks a U-Net is stacked from: residual, down, up, and the stage that runs them in order."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from iddpm_ray.models.attention import AttentionBlock
from iddpm_ray.models.nn import GroupNorm, ZeroConv2d, without_autocast

Resample = Literal["none", "down", "up"]


class ResidualBlock(nn.Module):
    """Two convolutions round a condition, and a skip (Ho et al. 2020, appendix B; Nichol & Dhariwal 2021, section 3).

    Args:
        channels: of the input.
        out_channels: of the output; a 1x1 convolution carries the skip where they differ.
        embedding_channels: of the condition.
        scale_shift_norm: the condition scales and shifts the second normalisation; otherwise it is added before it.
        resample: halve or double height and width, of the skip and before the first convolution (Dhariwal & Nichol 2021, section 3).
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int,
        embedding_channels: int,
        dropout: float,
        scale_shift_norm: bool,
        resample: Resample = "none",
    ) -> None:
        super().__init__()
        self.resample: Resample = resample
        self.scale_shift_norm = scale_shift_norm
        self.in_layers = nn.Sequential(GroupNorm(channels), nn.SiLU(), nn.Conv2d(channels, out_channels, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(embedding_channels, out_channels * (2 if scale_shift_norm else 1)))
        self.out_layers = nn.Sequential(
            GroupNorm(out_channels), nn.SiLU(), nn.Dropout(dropout), ZeroConv2d(out_channels, out_channels, 3, padding=1)
        )
        self.skip_connection = nn.Identity() if channels == out_channels else nn.Conv2d(channels, out_channels, 1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[N, channels, H, W] and [N, embedding_channels] to [N, out_channels, H, W], or half or twice that H and W."""
        first_norm, first_activation, first_convolution = self.in_layers
        h = first_convolution(self._resampled(first_activation(first_norm(x))))
        x = self._resampled(x)
        with without_autocast(x.device):
            condition = self.emb_layers(embedding)
        norm, activation, dropout, convolution = self.out_layers
        if self.scale_shift_norm:
            scale, shift = condition.chunk(2, dim=1)
            h = norm(h, scale, shift)
        else:
            h = norm(h + condition.to(h.dtype)[:, :, None, None])
        return self.skip_connection(x) + convolution(dropout(activation(h)))

    def _resampled(self, x: Tensor) -> Tensor:
        match self.resample:
            case "none":
                return x
            case "down":
                return F.avg_pool2d(x, 2)
            case "up":
                return F.interpolate(x, scale_factor=2, mode="nearest")


class Downsample(nn.Module):
    """Halves height and width: a convolution of stride 2, or the mean of each 2x2 square."""

    def __init__(self, channels: int, *, learned: bool) -> None:
        super().__init__()
        self.op = nn.Conv2d(channels, channels, 3, stride=2, padding=1) if learned else nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to [N, C, H / 2, W / 2]."""
        return self.op(x)


class Upsample(nn.Module):
    """Doubles height and width: every pixel four times, then a convolution if it is to be learned."""

    def __init__(self, channels: int, *, learned: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1) if learned else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to [N, C, 2 H, 2 W]."""
        return self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))


class Stage(nn.ModuleList):
    """Layers in order; those that take a condition are given it.

    Args:
        gradient_checkpointing: residual and attention blocks keep only their inputs and are run again in the backward pass, with the
            same dropout masks (Chen et al. 2016).
    """

    def __init__(self, *layers: nn.Module, gradient_checkpointing: bool) -> None:
        super().__init__(layers)
        self.gradient_checkpointing = gradient_checkpointing

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[N, C, H, W] and [N, E] to what the last layer makes."""
        for layer in self:
            match layer:
                case ResidualBlock():
                    x = self._run(layer, x, embedding)
                case AttentionBlock():
                    x = self._run(layer, x)
                case _:
                    x = layer(x)
        return x

    def _run(self, layer: nn.Module, *inputs: Tensor) -> Tensor:
        if not (self.gradient_checkpointing and torch.is_grad_enabled()):
            return layer(*inputs)
        draws = any(isinstance(part, nn.Dropout) and part.p > 0 and part.training for part in layer.modules())
        return checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=draws)
