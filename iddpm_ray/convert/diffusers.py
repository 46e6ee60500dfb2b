"""diffusers' `UNet2DModel`: which of our networks it can express, as what configuration, and which of its own are ours."""

from collections.abc import Mapping
from typing import Any

from iddpm_ray import build
from iddpm_ray.convert.names import Layout
from iddpm_ray.errors import CheckpointError
from iddpm_ray.spec.spec import JobSpec

VERSION = "0.42.1"
"""The version of diffusers whose configuration this is."""

DEFAULTS: dict[str, Any] = {
    "sample_size": None,
    "in_channels": 3,
    "out_channels": 3,
    "center_input_sample": False,
    "time_embedding_type": "positional",
    "time_embedding_dim": None,
    "freq_shift": 0,
    "flip_sin_to_cos": True,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"],
    "mid_block_type": "UNetMidBlock2D",
    "up_block_types": ["AttnUpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"],
    "block_out_channels": [224, 448, 672, 896],
    "layers_per_block": 2,
    "mid_block_scale_factor": 1,
    "downsample_padding": 1,
    "downsample_type": "conv",
    "upsample_type": "conv",
    "dropout": 0.0,
    "act_fn": "silu",
    "attention_head_dim": 8,
    "norm_num_groups": 32,
    "attn_norm_num_groups": None,
    "norm_eps": 1e-5,
    "resnet_time_scale_shift": "default",
    "add_attention": True,
    "class_embed_type": None,
    "num_class_embeds": None,
    "num_train_timesteps": None,
}
"""What UNet2DModel takes where its configuration says nothing."""

FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "center_input_sample": ((False,), "pictures here are never shifted before the network"),
    "time_embedding_type": (("positional",), "timesteps here are embedded as sines and cosines"),
    "freq_shift": ((0,), "its embedding has other frequencies"),
    "flip_sin_to_cos": ((True,), "its embedding has its sines first"),
    "mid_block_type": (("UNetMidBlock2D",), "the middle block here is always there"),
    "mid_block_scale_factor": ((1, 1.0), "blocks here are not scaled"),
    "downsample_padding": ((1,), "convolutions that halve the size here pad both sides"),
    "act_fn": (("silu", "swish"), "activations here are SiLU"),
    "norm_num_groups": ((32,), "normalisations here have 32 groups"),
    "norm_eps": ((1e-5,), "normalisations here have epsilon 1e-5"),
    "add_attention": ((True,), "the middle block here always has attention"),
    "class_embed_type": ((None,), "labels here are looked up in a table"),
    "num_train_timesteps": ((None,), "timesteps here are embedded as sines and cosines"),
}
"""Settings that a network of ours has in one way only, and why another is refused."""


def head_channels(spec: JobSpec) -> tuple[int, dict[str, int]]:
    """The width of a head, and by place every width that there is (one, where diffusers can express it)."""
    model, mult = spec.model, spec.channel_mult()
    widths = [int(model.num_channels * times) for times in mult]
    if model.num_head_channels is not None:
        return model.num_head_channels, {"everywhere": model.num_head_channels}
    found = {"in the middle": widths[-1] // model.num_heads}
    up = model.num_heads if model.num_heads_upsample == -1 else model.num_heads_upsample
    side = max(spec.data.height_width())
    for level, width in enumerate(widths):
        if side // 2**level in model.attention_resolutions:
            found[f"at {side // 2**level} pixels"] = width // model.num_heads
            if up != model.num_heads:
                found[f"on the way up at {side // 2**level} pixels"] = width // up
    return found["in the middle"], found


def layout_of(spec: JobSpec) -> Layout:
    """What decides the names of its weights in diffusers."""
    side = max(spec.data.height_width())
    factors = build.attention_factors(spec.model.attention_resolutions, side=side)
    return Layout(
        levels=len(spec.channel_mult()),
        num_res_blocks=spec.model.num_res_blocks,
        attention=frozenset(factor.bit_length() - 1 for factor in factors),
        resblock_updown=spec.model.resblock_updown,
        head_channels=head_channels(spec)[0],
        qkv_order=spec.model.qkv_order,
    )


def unet_config(spec: JobSpec, *, label_rows: int | None) -> dict[str, Any]:
    """The configuration of the same network in diffusers.

    Args:
        label_rows: of the class embedding, the one for "no label" included; None without labels.

    Raises:
        CheckpointError: diffusers cannot express it; gives every reason.
    """
    model, mult = spec.model, spec.channel_mult()
    first = mult[0]
    width, found = head_channels(spec)
    reasons: list[str] = []
    if model.kind == "superres":
        reasons.append("model.kind=superres: UNet2DModel is given no small picture")
    if not model.conv_resample and len(mult) > 1:
        reasons.append("model.conv_resample=false: UNet2DModel resamples by convolutions or residual blocks only")
    if first != 1:
        reasons.append(f"model.channel_mult begins with {first:g}: UNet2DModel embeds timesteps in as many channels as its first level has")
    if len(set(found.values())) > 1:
        said = ", ".join(f"{channels} {where}" for where, channels in found.items()).replace(" ", " channels ", 1)
        heads = f"model.num_heads={model.num_heads}" + (
            "" if model.num_heads_upsample == -1 else f", num_heads_upsample={model.num_heads_upsample}"
        )
        reasons.append(f"{heads}: heads have {said}, and UNet2DModel has one width for all (model.num_head_channels)")
    if reasons:
        raise CheckpointError("diffusers cannot express this network: " + "; ".join(reasons), fix="export it as .pt or .safetensors")
    layout = layout_of(spec)
    learned = spec.diffusion.variance in ("learned", "learned_range")
    resampling = "resnet" if model.resblock_updown else "conv"
    plain = ("ResnetDownsampleBlock2D", "ResnetUpsampleBlock2D") if model.resblock_updown else ("DownBlock2D", "UpBlock2D")
    down = ["AttnDownBlock2D" if level in layout.attention else plain[0] for level in range(layout.levels)]
    up = ["AttnUpBlock2D" if level in layout.attention else plain[1] for level in reversed(range(layout.levels))]
    height, across = spec.data.height_width()
    return {
        "_class_name": "UNet2DModel",
        "_diffusers_version": VERSION,
        **DEFAULTS,
        "sample_size": height if height == across else [height, across],
        "in_channels": spec.data.channels,
        "out_channels": spec.data.channels * (2 if learned else 1),
        "down_block_types": down,
        "up_block_types": up,
        "block_out_channels": [int(model.num_channels * times) for times in mult],
        "layers_per_block": model.num_res_blocks,
        "downsample_type": resampling,
        "upsample_type": resampling,
        "dropout": model.dropout,
        "attention_head_dim": width,
        "attn_norm_num_groups": 32,
        "resnet_time_scale_shift": "scale_shift" if model.scale_shift_norm else "default",
        "num_class_embeds": label_rows,
    }


def fields_of_config(config: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    """Spec fields of a UNet2DModel of theirs, by dotted path; `data.image_size` only where the configuration has it.

    Raises:
        CheckpointError: it is no UNet2DModel, or one that differs from every network of ours; gives every reason.
    """
    if config.get("_class_name") != "UNet2DModel":
        raise CheckpointError(f"{name} configures a {config.get('_class_name')}", fix="name the folder of a UNet2DModel")
    unknown = [key for key, value in config.items() if key not in DEFAULTS and not key.startswith("_") and value is not None]
    has = {**DEFAULTS, **config}
    reasons = [f"{key}: there is no such setting in diffusers {VERSION}" for key in unknown]
    reasons += [f"{key}={has[key]}: {why}" for key, (fitting, why) in FIXED.items() if has[key] not in fitting]
    blocks, down, up = list(has["block_out_channels"]), list(has["down_block_types"]), list(has["up_block_types"])
    updown = "ResnetDownsampleBlock2D" in down or (has["downsample_type"], has["upsample_type"]) == ("resnet", "resnet")
    plain = ("ResnetDownsampleBlock2D", "ResnetUpsampleBlock2D") if updown else ("DownBlock2D", "UpBlock2D")
    attention = [level for level, kind in enumerate(down) if kind == "AttnDownBlock2D"]
    mirrored = ["AttnUpBlock2D" if level in attention else plain[1] for level in reversed(range(len(down)))]
    if any(kind not in ("AttnDownBlock2D", plain[0]) for kind in down) or up != mirrored or len(blocks) != len(down):
        reasons.append(f"down_block_types={down}, up_block_types={up}: a network here has {plain[0]} or AttnDownBlock2D, and mirrors them")
    if attention and has["downsample_type"] != has["upsample_type"]:
        reasons.append(f"downsample_type={has['downsample_type']}, upsample_type={has['upsample_type']}: they are the same here")
    scale_shift = has["resnet_time_scale_shift"] == "scale_shift"
    if has["attn_norm_num_groups"] not in ((32,) if scale_shift else (None, 32)):
        reasons.append(f"attn_norm_num_groups={has['attn_norm_num_groups']}: the middle attention here is normalised in 32 groups")
    if has["time_embedding_dim"] not in (None, 4 * blocks[0]):
        reasons.append(f"time_embedding_dim={has['time_embedding_dim']}: it is four times the first width here, {4 * blocks[0]}")
    channels, out = has["in_channels"], has["out_channels"]
    if channels not in (1, 3) or out not in (channels, 2 * channels):
        reasons.append(
            f"in_channels={channels}, out_channels={out}: pictures here have 1 or 3 channels, and predictions as many or twice that"
        )
    head = has["attention_head_dim"]
    if head is None and len({blocks[level] for level in [*attention, len(blocks) - 1]}) == 1:
        head = blocks[-1]
    if head is None:
        reasons.append(
            "attention_head_dim=null at attention of several widths: a network here has one width of heads or one number of them"
        )
    if reasons:
        raise CheckpointError(f"{name} is no network of this package: " + "; ".join(reasons), fix="there is no conversion for it")
    base = blocks[0]
    size = has["sample_size"]
    fields: dict[str, Any] = {
        "data.channels": channels,
        "model.num_channels": base,
        "model.channel_mult": [width // base if width % base == 0 else width / base for width in blocks],
        "model.num_res_blocks": has["layers_per_block"],
        "model.num_head_channels": head,
        "model.dropout": has["dropout"],
        "model.scale_shift_norm": scale_shift,
        "model.resblock_updown": updown,
        "model.class_cond": has["num_class_embeds"] is not None,
    }
    if size is not None:
        fields["data.image_size"] = size if isinstance(size, int) else list(size)
    return fields


def attention_levels(config: Mapping[str, Any]) -> list[int]:
    """Levels of a UNet2DModel that have attention."""
    kinds = config.get("down_block_types", DEFAULTS["down_block_types"])
    return [level for level, kind in enumerate(kinds) if kind == "AttnDownBlock2D"]
