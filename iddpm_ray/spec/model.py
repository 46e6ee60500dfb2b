"""Section `model`: the network."""

from typing import Annotated, Literal

from pydantic import Field

from iddpm_ray.spec.mark import AsTuple, Section, identity, may_change

Multiplier = Annotated[float, Field(gt=0, le=1024)]
Resolution = Annotated[int, Field(ge=1)]

CHANNEL_MULT: dict[int, tuple[float, ...]] = {
    256: (1, 1, 2, 2, 4, 4),
    64: (1, 2, 3, 4),
    32: (1, 2, 2, 2),
    16: (1, 2, 2),
}
"""Width multipliers by the longer side of the picture, where `model.channel_mult` says nothing."""


class ModelSpec(Section):
    """The network: the U-Net of Improved DDPM, or the super-resolution one."""

    kind: Literal["unet", "superres"] = identity(
        "unet", "unet, or superres, which is given a small picture and draws the large one", unit="choice"
    )
    num_channels: int = identity(
        128, "channels of the first level; a multiple of 32 (group normalisation)", unit="channels", ge=1, le=65536
    )
    num_res_blocks: int = identity(2, "residual blocks at each level on the way down, one more on the way up", unit="blocks", ge=1, le=1000)
    channel_mult: Annotated[tuple[Multiplier, ...], Field(min_length=1), AsTuple] | None = identity(
        None, "width of each level as a multiple of num_channels; null: by picture size (256, 64, 32 and 16 are known)", unit="factors"
    )
    num_heads: int = identity(4, "attention heads", unit="heads", ge=1)
    num_heads_upsample: int = identity(-1, "attention heads on the way up; -1: as many as num_heads", unit="heads", ge=-1)
    num_head_channels: int | None = identity(
        None, "channels of every attention head, in place of a number of heads; null: by num_heads", unit="channels", ge=1, later=True
    )
    attention_resolutions: Annotated[tuple[Resolution, ...], AsTuple] = identity(
        (16, 8), "feature-map sizes (longer side) that get attention; the middle block always has it", unit="pixels"
    )
    dropout: float = identity(0.0, "dropout probability inside residual blocks", unit="probability", ge=0, lt=1)
    class_cond: bool = identity(False, "give the network the class label (needs data.labels)", unit="yes or no")
    num_classes: int | None = identity(
        None, "rows of the class embedding; null: as many as the data set has classes", unit="classes", ge=1, le=10**9
    )
    class_dropout: float = identity(
        0.0, "probability of hiding a label in training, which makes guidance possible", unit="probability", ge=0, lt=1
    )
    conv_resample: bool = identity(True, "resample with learned convolutions; false: mean pooling and plain enlargement", unit="yes or no")
    resblock_updown: bool = identity(
        False, "resample inside residual blocks, as guided-diffusion's flag of this name", unit="yes or no", later=True
    )
    scale_shift_norm: bool = identity(
        True, "timestep and class scale and shift the normalised features; false: are added", unit="yes or no"
    )
    gradient_checkpointing: bool = may_change(False, "recompute activations in the backward pass: less memory, more time", unit="yes or no")
    attention: Literal["sdpa", "math"] = may_change(
        "sdpa", "attention by torch's fused kernel, or written out as in the paper", unit="choice"
    )
    qkv_order: Literal["heads_first", "qkv_first"] = identity(
        "heads_first",
        "channels of attention's qkv: by head, or q, k and v first (guided-diffusion's new attention order)",
        unit="choice",
        later=True,
    )
    low_res_size: int | None = identity(None, "superres: longer side of the small picture it is given", unit="pixels", ge=1)
    low_res_noise: int = identity(
        0, "superres: noisiest level given to the small picture in training, and told; 0: none", unit="timesteps", ge=0, later=True
    )
