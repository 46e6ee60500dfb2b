"""Self-attention over the positions of a picture, with the channel order of the published weights."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iddpm_ray.errors import SpecError
from iddpm_ray.models.nn import GroupNorm, ZeroConv1d, at_least_float32

Attention = Literal["sdpa", "math"]
QkvOrder = Literal["heads_first", "qkv_first"]


class AttentionBlock(nn.Module):
    """x + proj_out(attend(qkv(norm(x)))) over flattened positions (Vaswani et al. 2017; Ho et al. 2020, appendix B).

    Args:
        channels: of input and output.
        num_heads: parts into which the channels are cut; must divide them.
        attention: "sdpa" is torch's fused kernel, "math" writes the matrix out; equal but for rounding.
        qkv_order: of the channels of `qkv`: heads outermost and, inside a head, q, then k, then v (Improved DDPM); or q, k and v
            outermost, and heads inside each (guided-diffusion's "new attention order").
    """

    def __init__(self, channels: int, *, num_heads: int, attention: Attention, qkv_order: QkvOrder = "heads_first") -> None:
        super().__init__()
        if num_heads < 1 or channels % num_heads:
            raise SpecError(
                f"attention over {channels} channels cannot be cut into heads", value=num_heads, fix=f"use a divisor of {channels}"
            )
        self.num_heads = num_heads
        self.attention = attention
        self.qkv_order: QkvOrder = qkv_order
        self.norm = GroupNorm(channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = ZeroConv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to the same."""
        batch, channels = x.shape[:2]
        # Positions before channels: both convolutions are then plain matrix products, and the fused kernel takes the parts without a copy.
        positions = self.norm(x).flatten(2).transpose(1, 2)
        qkv = F.linear(positions, self.qkv.weight.squeeze(-1), self.qkv.bias)
        q, k, v = self._cut(qkv)
        attended = F.scaled_dot_product_attention(q, k, v) if self.attention == "sdpa" else attend(q, k, v)
        merged = attended.transpose(1, 2).reshape(batch, -1, channels)
        out = F.linear(merged, self.proj_out.weight.squeeze(-1), self.proj_out.bias)
        return x + out.transpose(1, 2).reshape(x.shape)

    def _cut(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """[N, L, 3 C] to q, k and v, [N, heads, L, C / heads] each."""
        batch, _, width = qkv.shape
        size = width // 3 // self.num_heads
        if self.qkv_order == "heads_first":
            return qkv.view(batch, -1, self.num_heads, 3, size).permute(3, 0, 2, 1, 4).unbind(0)
        return qkv.view(batch, -1, 3, self.num_heads, size).permute(2, 0, 3, 1, 4).unbind(0)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(c)) v, written out; q and k are each divided by c^(1/4), which half precision survives better.

    Args:
        q: [N, heads, L, c], like `k` and `v`.

    Returns:
        [N, heads, L, c].
    """
    scale = q.shape[-1] ** -0.25
    scores = (q * scale) @ (k * scale).transpose(-1, -2)
    weights = torch.softmax(scores.to(at_least_float32(scores.dtype)), dim=-1)
    return weights.to(v.dtype) @ v
