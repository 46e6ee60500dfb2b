"""The only bridge from spec to torch: each section becomes the object it describes."""

from collections.abc import Sequence

import torch

from iddpm_ray.diffusion.condition import ConditionNoise
from iddpm_ray.diffusion.gaussian import GaussianDiffusion, LossType, MeanType, VarianceType
from iddpm_ray.diffusion.resample import LossSecondMomentResampler, Resampler, UniformResampler
from iddpm_ray.diffusion.respace import make_diffusion
from iddpm_ray.diffusion.seeded import Way
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


def way(spec: JobSpec, *, num_classes: int | None) -> Way:
    """How section `sample` says that pictures are drawn.

    Args:
        num_classes: size of the label map; the index after its last is the null class of a network that has one.
    """
    sample, process = spec.sample, spec.diffusion
    interval = None
    if sample.guidance_interval is not None:
        scale = 1000.0 / process.timesteps if process.rescale_timesteps else 1.0
        low, high = sample.guidance_interval
        interval = ((low - 0.5) * scale, (high + 0.5) * scale)  # halfway to its neighbours: told rescaled, a timestep is a rounded number
    null_class = num_classes if spec.model.class_dropout > 0 else None
    return Way(sample.method, eta=sample.eta, guidance=sample.guidance, interval=interval, null_class=null_class)


def condition_noise(spec: JobSpec) -> ConditionNoise | None:
    """The noise levels of a super-resolution network's small picture; None for a network that knows none."""
    if not spec.model.low_res_noise:
        return None
    return ConditionNoise.of(diffusion(spec.diffusion, respacing=""), highest=spec.model.low_res_noise)


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
            return SuperResUNet(**arguments, low_res_levels=net.low_res_noise > 0)


def attention_factors(resolutions: Sequence[int], *, side: int) -> tuple[int, ...]:
    """Downsampling factors at which attention sits, from feature-map sizes of the longer side."""
    return tuple(side // resolution for resolution in resolutions)
