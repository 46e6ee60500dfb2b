"""The only bridge from spec to torch: each section becomes the object it describes."""

from collections.abc import Sequence

import torch

from iddpm_ray.diffusion.gaussian import GaussianDiffusion, LossType, MeanType, VarianceType
from iddpm_ray.diffusion.resample import LossSecondMomentResampler, Resampler, UniformResampler
from iddpm_ray.diffusion.respace import make_diffusion
from iddpm_ray.models.superres import SuperResUNet
from iddpm_ray.models.unet import UNet
from iddpm_ray.spec.diffusion import DiffusionSpec
from iddpm_ray.spec.resampler import ResamplerSpec
from iddpm_ray.spec.spec import JobSpec

MEAN_TYPES = {"eps": MeanType.EPSILON, "x_start": MeanType.START_X, "previous_x": MeanType.PREVIOUS_X}
VARIANCE_TYPES = {
    "fixed_small": VarianceType.FIXED_SMALL,
    "fixed_large": VarianceType.FIXED_LARGE,
    "learned": VarianceType.LEARNED,
    "learned_range": VarianceType.LEARNED_RANGE,
}
LOSS_TYPES = {"mse": LossType.MSE, "rescaled_mse": LossType.RESCALED_MSE, "kl": LossType.KL, "rescaled_kl": LossType.RESCALED_KL}


def diffusion(spec: DiffusionSpec, *, respacing: str | None = None) -> GaussianDiffusion:
    """The diffusion of training, or with `respacing` a shortened one of the same betas for drawing pictures."""
    return make_diffusion(
        schedule=spec.schedule,
        num_timesteps=spec.timesteps,
        sections=(spec.respacing if respacing is None else respacing) or None,
        mean_type=MEAN_TYPES[spec.predicts],
        variance_type=VARIANCE_TYPES[spec.variance],
        loss_type=LOSS_TYPES[spec.loss],
        rescale_timesteps=spec.rescale_timesteps,
    )


def resampler(spec: ResamplerSpec, *, num_timesteps: int, device: torch.device) -> Resampler:
    """The resampler of training, at its beginning."""
    match spec.kind:
        case "uniform":
            return UniformResampler(num_timesteps, device=device)
        case "loss_second_moment":
            return LossSecondMomentResampler(num_timesteps, history=spec.history, uniform_prob=spec.uniform_prob, device=device)


def model(spec: JobSpec, *, num_classes: int | None) -> UNet:
    """The network, without weights worth keeping; under `torch.device("meta")` it costs nothing.

    Args:
        num_classes: size of the label map; None for a network without labels.
    """
    net, picture = spec.model, spec.data
    height, width = picture.height_width()
    learned = spec.diffusion.variance in ("learned", "learned_range")
    arguments = {
        "image_channels": picture.channels,
        "model_channels": net.num_channels,
        "out_channels": picture.channels * (2 if learned else 1),
        "num_res_blocks": net.num_res_blocks,
        "attention_factors": attention_factors(net.attention_resolutions, side=max(height, width)),
        "dropout": net.dropout,
        "channel_mult": spec.channel_mult(),
        "conv_resample": net.conv_resample,
        "num_classes": num_classes,
        "null_class": net.class_dropout > 0,
        "gradient_checkpointing": net.gradient_checkpointing,
        "num_heads": net.num_heads,
        "num_heads_upsample": net.num_heads_upsample,
        "num_head_channels": net.num_head_channels,
        "scale_shift_norm": net.scale_shift_norm,
        "resblock_updown": net.resblock_updown,
        "qkv_order": net.qkv_order,
        "attention": net.attention,
    }
    match net.kind:
        case "unet":
            return UNet(**arguments)
        case "superres":
            return SuperResUNet(**arguments)


def attention_factors(resolutions: Sequence[int], *, side: int) -> tuple[int, ...]:
    """Downsampling factors at which attention sits, from feature-map sizes of the longer side."""
    return tuple(side // resolution for resolution in resolutions)
