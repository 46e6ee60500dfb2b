"""The U-Net of Improved DDPM, key for key with the published weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from iddpm_ray.errors import SpecError
from iddpm_ray.models.attention import Attention, AttentionBlock, QkvOrder
from iddpm_ray.models.blocks import Downsample, Resample, ResidualBlock, Stage, Upsample
from iddpm_ray.models.nn import NUM_GROUPS, GroupNorm, ZeroConv2d, at_least_float32, timestep_embedding, without_autocast


class UNet(nn.Module):
    """Predicts noise (and, with twice the channels, its variance) from a noised picture and its timestep (Nichol & Dhariwal 2021).

    Weights are torch's defaults with the zero-initialised layers at zero; `weights.init_weights` makes them a function of a seed.

    Args:
        image_channels: of the picture; any number.
        model_channels: base width c.
        out_channels: of the prediction.
        num_res_blocks: residual blocks a level on the way down; one more on the way up.
        attention_factors: downsampling factors (powers of 2) at which attention follows each residual block; the middle always has it.
        dropout: probability inside residual blocks.
        channel_mult: width of each level as a multiple of c, the first at full size; fractions allowed, the product is truncated.
        conv_resample: resample by learned convolutions; otherwise by 2x2 means and repetition.
        num_classes: labels 0 .. num_classes - 1 condition the network; None for no labels.
        null_class: one more row of the label embedding, index `num_classes`, for "no label" (Ho & Salimans 2022).
        gradient_checkpointing: trade a second forward pass for memory; changes no number.
        num_heads: of attention.
        num_heads_upsample: of attention on the way up; -1 for the same.
        num_head_channels: channels of every head, whatever the width; None to go by the number of heads.
        resblock_updown: resample inside residual blocks (Dhariwal & Nichol 2021), in place of layers of their own.
        qkv_order: of the channels in attention.
        scale_shift_norm: how residual blocks take the condition.
        attention: implementation of attention.

    Raises:
        SpecError: widths that group normalisation or heads do not divide, or attention where there is no level.
    """

    # How many pictures the first convolution sees side by side.
    pictures_in = 1

    def __init__(
        self,
        *,
        image_channels: int,
        model_channels: int,
        out_channels: int,
        num_res_blocks: int,
        attention_factors: Sequence[int],
        dropout: float = 0.0,
        channel_mult: Sequence[float] = (1, 2, 4, 8),
        conv_resample: bool = True,
        num_classes: int | None = None,
        null_class: bool = False,
        gradient_checkpointing: bool = False,
        num_heads: int = 1,
        num_heads_upsample: int = -1,
        num_head_channels: int | None = None,
        scale_shift_norm: bool = True,
        resblock_updown: bool = False,
        qkv_order: QkvOrder = "heads_first",
        attention: Attention = "sdpa",
    ) -> None:
        super().__init__()
        widths = level_widths(model_channels, channel_mult)
        _check_attention(attention_factors, num_levels=len(widths))
        self.image_channels = image_channels
        self.model_channels = model_channels
        self.num_classes = num_classes
        self.size_multiple = 2 ** (len(widths) - 1)
        embedding_channels = 4 * model_channels
        last = len(widths) - 1

        def residual(channels: int, out_channels: int, resample: Resample = "none") -> nn.Module:
            return ResidualBlock(
                channels,
                out_channels=out_channels,
                embedding_channels=embedding_channels,
                dropout=dropout,
                scale_shift_norm=scale_shift_norm,
                resample=resample,
            )

        def attend(channels: int, *, heads: int) -> nn.Module:
            heads = heads_of(channels, num_heads=heads, num_head_channels=num_head_channels)
            return AttentionBlock(channels, num_heads=heads, attention=attention, qkv_order=qkv_order)

        def halve(channels: int) -> nn.Module:
            return residual(channels, channels, "down") if resblock_updown else Downsample(channels, learned=conv_resample)

        def double(channels: int) -> nn.Module:
            return residual(channels, channels, "up") if resblock_updown else Upsample(channels, learned=conv_resample)

        def stage(*layers: nn.Module) -> Stage:
            return Stage(*layers, gradient_checkpointing=gradient_checkpointing)

        self.time_embed = nn.Sequential(
            nn.Linear(model_channels, embedding_channels), nn.SiLU(), nn.Linear(embedding_channels, embedding_channels)
        )
        if num_classes is not None:
            self.label_emb = nn.Embedding(num_classes + int(null_class), embedding_channels)

        channels = widths[0]
        self.input_blocks = nn.ModuleList([stage(nn.Conv2d(self.pictures_in * image_channels, channels, 3, padding=1))])
        skips = [channels]
        for level, width in enumerate(widths):
            for _ in range(num_res_blocks):
                layers = [residual(channels, width)]
                channels = width
                if 2**level in attention_factors:
                    layers.append(attend(channels, heads=num_heads))
                self.input_blocks.append(stage(*layers))
                skips.append(channels)
            if level != last:
                self.input_blocks.append(stage(halve(channels)))
                skips.append(channels)

        self.middle_block = stage(residual(channels, channels), attend(channels, heads=num_heads), residual(channels, channels))

        self.output_blocks = nn.ModuleList()
        heads_up = num_heads if num_heads_upsample == -1 else num_heads_upsample
        for level, width in reversed(list(enumerate(widths))):
            for number in range(num_res_blocks + 1):
                layers = [residual(channels + skips.pop(), width)]
                channels = width
                if 2**level in attention_factors:
                    layers.append(attend(channels, heads=heads_up))
                if level > 0 and number == num_res_blocks:
                    layers.append(double(channels))
                self.output_blocks.append(stage(*layers))

        self.out = nn.Sequential(GroupNorm(channels), nn.SiLU(), ZeroConv2d(channels, out_channels, 3, padding=1))

    def forward(self, x: Tensor, t: Tensor, y: Tensor | None = None) -> Tensor:
        """One prediction a picture.

        Args:
            x: [N, image_channels, H, W], noised pictures; H and W multiples of `size_multiple`.
            t: [N] timesteps, integer or fractional.
            y: [N] int64 labels, for a class-conditional network and no other.

        Returns:
            [N, out_channels, H, W] of the dtype of the weights: the last layers leave autocast.

        Raises:
            SpecError: a height or width that cannot be halved often enough.
        """
        with without_autocast(x.device):
            embedding = self._embed(t, y)
        return self._predict(x, embedding)

    def _predict(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[N, pictures_in * image_channels, H, W] and the embedding [N, 4 c] of all else to [N, out_channels, H, W]."""
        self._check_size(x)
        h = x
        skips: list[Tensor] = []
        for block in self.input_blocks:
            h = block(h, embedding)
            skips.append(h)
        h = self.middle_block(h, embedding)
        for block in self.output_blocks:
            h = block(torch.cat([h, skips.pop()], dim=1), embedding)
        with without_autocast(x.device):
            return self.out(h.to(embedding.dtype))

    def _embed(self, t: Tensor, y: Tensor | None) -> Tensor:
        """[N] timesteps and labels to [N, 4 c]; the angles are never narrower than float32."""
        assert (y is None) == (self.num_classes is None), "labels are given exactly to a class-conditional network"
        dtype = next(self.time_embed.parameters()).dtype
        angles = timestep_embedding(t, dim=self.model_channels, dtype=at_least_float32(dtype))
        embedding = self.time_embed(angles.to(dtype))
        return embedding if y is None else embedding + self.label_emb(y)

    def _check_size(self, x: Tensor) -> None:
        height, width = x.shape[-2:]
        if height % self.size_multiple or width % self.size_multiple:
            raise SpecError(
                "height and width of a picture must be multiples of 2^(levels - 1)",
                value=f"{height}x{width}",
                fix=f"use multiples of {self.size_multiple}, or fewer entries in channel_mult",
            )


def heads_of(channels: int, *, num_heads: int, num_head_channels: int | None) -> int:
    """Heads of attention over so many channels.

    Raises:
        SpecError: a width of heads that does not divide the channels.
    """
    if num_head_channels is None:
        return num_heads
    if num_head_channels < 1 or channels % num_head_channels:
        raise SpecError(
            f"attention over {channels} channels cannot be cut into heads of so many channels",
            value=num_head_channels,
            fix=f"use a divisor of {channels}",
        )
    return channels // num_head_channels


def level_widths(model_channels: int, channel_mult: Sequence[float]) -> list[int]:
    """Channels of each level: multiples of the base width, truncated.

    Raises:
        SpecError: no level at all, or a width that 32 groups do not divide.
    """
    if not channel_mult:
        raise SpecError("channel_mult names no level", value=list(channel_mult), fix="give one multiplier a level, such as [1, 2, 2]")
    widths = [int(model_channels * mult) for mult in channel_mult]
    for mult, width in zip(channel_mult, widths, strict=True):
        if width <= 0 or width % NUM_GROUPS:
            raise SpecError(
                f"channels of every level must be a positive multiple of {NUM_GROUPS}, for group normalisation",
                value=f"{model_channels} x {mult} = {width}",
                fix=f"choose num_channels and channel_mult whose products {NUM_GROUPS} divides",
            )
    return widths


def _check_attention(factors: Sequence[int], *, num_levels: int) -> None:
    levels = [2**level for level in range(num_levels)]
    absent = sorted(set(factors) - set(levels))
    if absent:
        raise SpecError(
            "attention at downsampling factors that no level has", value=absent, fix=f"choose among {levels}, or add levels to channel_mult"
        )
