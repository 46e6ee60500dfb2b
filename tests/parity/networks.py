"""From a directory's records to our networks: constructor values, published flags, and the formula that fills the weights."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from iddpm_ray.models.attention import Attention
from iddpm_ray.models.nn import GroupNorm
from iddpm_ray.models.superres import SuperResUNet
from iddpm_ray.models.unet import UNet

KINDS = {"UNetModel": UNet, "SuperResModel": SuperResUNet}
MULTIPLIERS = {256: (1, 1, 2, 2, 4, 4), 64: (1, 2, 3, 4), 32: (1, 2, 2, 2)}


def build_recorded(config: Mapping[str, Any], *, attention: Attention = "sdpa", gradient_checkpointing: bool | None = None) -> UNet:
    """The network that a record's constructor values describe."""
    return KINDS[config["class"]](
        image_channels=config["in_channels"],
        model_channels=config["model_channels"],
        out_channels=config["out_channels"],
        num_res_blocks=config["num_res_blocks"],
        attention_factors=_present(config["attention_resolutions"], num_levels=len(config["channel_mult"])),
        dropout=config["dropout"],
        channel_mult=config["channel_mult"],
        conv_resample=config["conv_resample"],
        num_classes=config["num_classes"],
        gradient_checkpointing=config["use_checkpoint"] if gradient_checkpointing is None else gradient_checkpointing,
        num_heads=config["num_heads"],
        num_heads_upsample=config["num_heads_upsample"],
        scale_shift_norm=config["use_scale_shift_norm"],
        attention=attention,
    )


def build_published(flags: Mapping[str, Any], *, shapes: Mapping[str, Sequence[int]]) -> UNet:
    """The network of command-line flags; only its shapes say how many colours and classes it has and whether it enlarges pictures."""
    learned = flags.get("learn_sigma", False)
    out_channels, in_channels = shapes["out.2.weight"][0], shapes["input_blocks.0.0.weight"][1]
    image_channels = out_channels // 2 if learned else out_channels
    enlarges = in_channels == 2 * image_channels
    assert enlarges or not {"large_size", "small_size"} & set(flags), "flags of an enlarging network, shapes of another"
    side = flags.get("large_size", 256) if enlarges else flags.get("image_size", 64)
    factors = [side // int(size) for size in str(flags.get("attention_resolutions", "16,8")).split(",")]
    return (SuperResUNet if enlarges else UNet)(
        image_channels=image_channels,
        model_channels=flags.get("num_channels", 128),
        out_channels=out_channels,
        num_res_blocks=flags.get("num_res_blocks", 2),
        attention_factors=_present(factors, num_levels=len(MULTIPLIERS[side])),
        dropout=flags.get("dropout", 0.0),
        channel_mult=MULTIPLIERS[side],
        num_classes=shapes["label_emb.weight"][0] if flags.get("class_cond", False) else None,
        gradient_checkpointing=flags.get("use_checkpoint", False),
        num_heads=flags.get("num_heads", 4),
        num_heads_upsample=flags.get("num_heads_upsample", -1),
        scale_shift_norm=flags.get("use_scale_shift_norm", True),
    )


def _present(factors: Sequence[int], *, num_levels: int) -> list[int]:
    """The factors that some level has: the original passes over the others, ours refuses them."""
    return [factor for factor in factors if factor in [2**level for level in range(num_levels)]]


@torch.no_grad()
def fill_by_formula(model: nn.Module) -> None:
    """Overwrites every tensor with sines of its place among the sorted keys; weights of normalisations are raised by 1."""
    norms = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, GroupNorm)}
    tensors = model.state_dict()
    for place, key in enumerate(sorted(tensors)):
        shape = tensors[key].shape
        k = np.arange(math.prod(shape), dtype=np.int64)
        theta = 0.37 * k + 1.7 * place + 2 * np.pi * ((k * k % 1009) / 1009)
        amplitude = 0.1 if len(shape) == 1 else math.sqrt(2 / (len(k) / shape[0]))
        values = amplitude * np.sin(theta) + (1.0 if key in norms else 0.0)
        tensors[key].copy_(torch.from_numpy(values.astype(np.float32)).reshape(shape))
