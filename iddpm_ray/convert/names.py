"""The names that one network's weights have as OpenAI published them and in diffusers, and what differs in the tensors themselves."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from iddpm_ray.models.attention import QkvOrder

RESIDUAL = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
QKV = ("to_q", "to_k", "to_v")


@dataclass(frozen=True)
class Layout:
    """What decides the names of a network of ours in diffusers.

    Attributes:
        levels: number of them.
        num_res_blocks: at each.
        attention: levels that have attention.
        resblock_updown: whether residual blocks resample.
        head_channels: width of every head.
        qkv_order: of our side.
    """

    levels: int
    num_res_blocks: int
    attention: frozenset[int]
    resblock_updown: bool
    head_channels: int
    qkv_order: QkvOrder

    def layers(self) -> Iterator[tuple[str, str, Literal["plain", "residual", "attention"]]]:
        """Prefixes of every layer: ours, theirs, and what it is."""
        per_level = self.num_res_blocks + 1
        for ours, theirs in (
            ("time_embed.0", "time_embedding.linear_1"),
            ("time_embed.2", "time_embedding.linear_2"),
            ("label_emb", "class_embedding"),
            ("input_blocks.0.0", "conv_in"),
            ("out.0", "conv_norm_out"),
            ("out.2", "conv_out"),
        ):
            yield ours, theirs, "plain"
        for level in range(self.levels):
            for number in range(self.num_res_blocks):
                block = f"input_blocks.{1 + level * per_level + number}"
                yield f"{block}.0", f"down_blocks.{level}.resnets.{number}", "residual"
                if level in self.attention:
                    yield f"{block}.1", f"down_blocks.{level}.attentions.{number}", "attention"
            if level < self.levels - 1:
                block, theirs = f"input_blocks.{(level + 1) * per_level}", f"down_blocks.{level}.downsamplers.0"
                yield (f"{block}.0", theirs, "residual") if self.resblock_updown else (f"{block}.0.op", f"{theirs}.conv", "plain")
        yield "middle_block.0", "mid_block.resnets.0", "residual"
        yield "middle_block.1", "mid_block.attentions.0", "attention"
        yield "middle_block.2", "mid_block.resnets.1", "residual"
        for up in range(self.levels):
            has_attention = self.levels - 1 - up in self.attention
            for number in range(per_level):
                block = f"output_blocks.{up * per_level + number}"
                yield f"{block}.0", f"up_blocks.{up}.resnets.{number}", "residual"
                if has_attention:
                    yield f"{block}.1", f"up_blocks.{up}.attentions.{number}", "attention"
            if up < self.levels - 1:
                ours = f"output_blocks.{up * per_level + self.num_res_blocks}.{2 if has_attention else 1}"
                theirs = f"up_blocks.{up}.upsamplers.0"
                yield (ours, theirs, "residual") if self.resblock_updown else (f"{ours}.conv", f"{theirs}.conv", "plain")


def to_diffusers(tensors: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """The weights under diffusers' names; attention's q, k and v come apart, nothing else is copied."""
    out: dict[str, Tensor] = {}
    for ours, theirs, kind in layout.layers():
        for leaf in ("weight", "bias"):
            for mine, yours in _pairs(ours, theirs, kind):
                tensor = tensors.get(f"{mine}.{leaf}")
                if tensor is not None:
                    out[f"{yours}.{leaf}"] = (
                        tensor.squeeze(-1) if kind == "attention" and leaf == "weight" and tensor.dim() == 3 else tensor
                    )
            if kind == "attention":
                parts = split_qkv(tensors[f"{ours}.qkv.{leaf}"], layout)
                out |= {f"{theirs}.{name}.{leaf}": part for name, part in zip(QKV, parts, strict=True)}
    return out


def from_diffusers(tensors: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """The inverse of `to_diffusers`; names that it does not know are left as they are, for whoever checks names."""
    out: dict[str, Tensor] = {}
    left = dict(tensors)
    for ours, theirs, kind in layout.layers():
        for leaf in ("weight", "bias"):
            for mine, yours in _pairs(ours, theirs, kind):
                tensor = left.pop(f"{yours}.{leaf}", None)
                if tensor is not None:
                    out[f"{mine}.{leaf}"] = tensor.unsqueeze(-1) if mine.endswith("proj_out") and leaf == "weight" else tensor
            parts = [left.pop(f"{theirs}.{name}.{leaf}", None) for name in QKV] if kind == "attention" else []
            whole = [part for part in parts if part is not None]
            if len(whole) == 3:
                out[f"{ours}.qkv.{leaf}"] = join_qkv(whole, layout)
    return {**out, **left}


def _pairs(ours: str, theirs: str, kind: str) -> list[tuple[str, str]]:
    match kind:
        case "plain":
            return [(ours, theirs)]
        case "residual":
            return [(f"{ours}.{mine}", f"{theirs}.{yours}") for mine, yours in RESIDUAL.items()]
        case _:
            return [(f"{ours}.norm", f"{theirs}.group_norm"), (f"{ours}.proj_out", f"{theirs}.to_out.0")]


def split_qkv(qkv: Tensor, layout: Layout) -> list[Tensor]:
    """[3 C, C, 1] or [3 C] to q, k and v, [C, C] or [C] each, heads in order."""
    flat = qkv.squeeze(-1) if qkv.dim() == 3 else qkv
    if layout.qkv_order == "qkv_first":
        return [part.contiguous() for part in flat.chunk(3)]
    heads = flat.unflatten(0, (-1, 3, layout.head_channels))
    return [heads[:, part].flatten(0, 1).contiguous() for part in range(3)]


def join_qkv(parts: list[Tensor], layout: Layout) -> Tensor:
    """The inverse of `split_qkv`."""
    if layout.qkv_order == "qkv_first":
        flat = torch.cat(parts)
    else:
        flat = torch.stack([part.unflatten(0, (-1, layout.head_channels)) for part in parts], dim=1).flatten(0, 2)
    return flat.unsqueeze(-1) if flat.dim() == 2 else flat
