"""The Gaussian process q that adds noise, and the model's step p that takes it away, as functions of one frozen object.

Names and equations of Ho et al. 2020 (arXiv:2006.11239) and Nichol & Dhariwal 2021 (arXiv:2102.09672). Pictures are [N, C, H, W],
timesteps t are int64 [N] on the tables' device. Coefficients are looked up in float64 and rounded to the dtype of the pictures
they meet; nothing here waits for the device.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from iddpm_ray.diffusion.schedule import Tables


class MeanType(Enum):
    """What the network predicts."""

    EPSILON = "eps"
    START_X = "x_start"
    PREVIOUS_X = "previous_x"


class VarianceType(Enum):
    """Where the variance of a model step comes from."""

    LEARNED = "learned"
    LEARNED_RANGE = "learned_range"
    FIXED_SMALL = "fixed_small"
    FIXED_LARGE = "fixed_large"

    @property
    def learned(self) -> bool:
        """Whether the network has a second half of channels for it."""
        return self in (VarianceType.LEARNED, VarianceType.LEARNED_RANGE)


class LossType(Enum):
    """The training objective; rescaled_mse is L_hybrid, rescaled_kl is L_vlb (Nichol & Dhariwal 2021, eq. 16)."""

    MSE = "mse"
    RESCALED_MSE = "rescaled_mse"
    KL = "kl"
    RESCALED_KL = "rescaled_kl"


@dataclass(frozen=True, eq=False)
class GaussianDiffusion:
    """A process of `num_timesteps` timesteps and what its network means.

    Attributes:
        tables: its coefficients.
        timestep_map: int64 [num_timesteps], each timestep's index in the process the network was made for.
        original_num_timesteps: timesteps of that process.
        rescale_timesteps: the network is told t * 1000 / original_num_timesteps instead of t.
    """

    tables: Tables
    timestep_map: Tensor
    original_num_timesteps: int
    mean_type: MeanType
    variance_type: VarianceType
    loss_type: LossType
    rescale_timesteps: bool

    @property
    def num_timesteps(self) -> int:
        """Timesteps of this process, which respacing may have shortened."""
        return self.tables.betas.shape[0]

    def to(self, device: torch.device | str) -> "GaussianDiffusion":
        """The same process with its tables on a device."""
        return dataclasses.replace(self, tables=self.tables.to(device), timestep_map=self.timestep_map.to(device))


@dataclass(frozen=True)
class Moments:
    """A Gaussian: mean [N, C, H, W]; variance and its logarithm [N, 1, 1, 1]."""

    mean: Tensor
    variance: Tensor
    log_variance: Tensor


@dataclass(frozen=True)
class ModelMoments:
    """p(x_{t-1} given x_t): mean and pred_xstart [N, C, H, W]; log_variance likewise if learned, [N, 1, 1, 1] if fixed."""

    mean: Tensor
    log_variance: Tensor
    pred_xstart: Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """x itself if float64, else float32: the precision of all loss and sampling arithmetic, whatever the network computes in."""
    return x if x.dtype == torch.float64 else x.float()


def lookup(table: Tensor, t: Tensor, *, like: Tensor) -> Tensor:
    """Entries t [N] of a float64 table [T], rounded to the dtype of `like` [N, ...] and shaped [N, 1, ...] to meet it."""
    return table.gather(0, t).to(like.dtype).view(-1, *[1] * (like.ndim - 1))


def model_timesteps(diffusion: GaussianDiffusion, t: Tensor) -> Tensor:
    """What the network is told for timesteps t [N]: the original index, int64; rescaled to 0..1000, float32."""
    original = diffusion.timestep_map.gather(0, t)
    return original.float() * (1000.0 / diffusion.original_num_timesteps) if diffusion.rescale_timesteps else original


def predict(diffusion: GaussianDiffusion, model: Callable[..., Tensor], *, x_t: Tensor, t: Tensor, cond: Mapping[str, Tensor]) -> Tensor:
    """The network's output in the dtype of x_t, [N, C, H, W] or, with a learned variance, [N, 2C, H, W]: mean part, then variance part."""
    output = model(x_t, model_timesteps(diffusion, t), **cond).to(x_t.dtype)
    channels = x_t.shape[1] * (2 if diffusion.variance_type.learned else 1)
    assert output.shape == (x_t.shape[0], channels, *x_t.shape[2:]), f"network gave {tuple(output.shape)} for {tuple(x_t.shape)}"
    return output


def q_moments(diffusion: GaussianDiffusion, *, x_start: Tensor, t: Tensor) -> Moments:
    """q(x_t given x_start) (Ho et al. 2020, eq. 4)."""
    tables = diffusion.tables
    return Moments(
        mean=lookup(tables.sqrt_alphas_cumprod, t, like=x_start) * x_start,
        variance=lookup(tables.one_minus_alphas_cumprod, t, like=x_start),
        log_variance=lookup(tables.log_one_minus_alphas_cumprod, t, like=x_start),
    )


def q_sample(diffusion: GaussianDiffusion, *, x_start: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """x_t of this noise."""
    tables = diffusion.tables
    return (
        lookup(tables.sqrt_alphas_cumprod, t, like=x_start) * x_start
        + lookup(tables.sqrt_one_minus_alphas_cumprod, t, like=x_start) * noise
    )


def q_posterior(diffusion: GaussianDiffusion, *, x_start: Tensor, x_t: Tensor, t: Tensor) -> Moments:
    """q(x_{t-1} given x_t, x_start) (Ho et al. 2020, eq. 6 and 7); the logarithm is the clipped one, so exp of it is not 0 at t = 0."""
    tables = diffusion.tables
    return Moments(
        mean=lookup(tables.posterior_mean_coef1, t, like=x_t) * x_start + lookup(tables.posterior_mean_coef2, t, like=x_t) * x_t,
        variance=lookup(tables.posterior_variance, t, like=x_t),
        log_variance=lookup(tables.posterior_log_variance_clipped, t, like=x_t),
    )


def xstart_from_eps(diffusion: GaussianDiffusion, *, x_t: Tensor, t: Tensor, eps: Tensor) -> Tensor:
    """The x_start from which this eps leads to x_t."""
    tables = diffusion.tables
    return lookup(tables.sqrt_recip_alphas_cumprod, t, like=x_t) * x_t - lookup(tables.sqrt_recipm1_alphas_cumprod, t, like=x_t) * eps


def xstart_from_previous(diffusion: GaussianDiffusion, *, x_t: Tensor, t: Tensor, x_previous: Tensor) -> Tensor:
    """The x_start whose posterior mean at x_t is this x_{t-1}."""
    tables = diffusion.tables
    return lookup(tables.previous_coef, t, like=x_t) * x_previous - lookup(tables.previous_x_t_coef, t, like=x_t) * x_t


def eps_from_xstart(diffusion: GaussianDiffusion, *, x_t: Tensor, t: Tensor, x_start: Tensor) -> Tensor:
    """The eps that leads from this x_start to x_t."""
    tables = diffusion.tables
    scaled = lookup(tables.sqrt_recip_alphas_cumprod, t, like=x_t) * x_t
    return (scaled - x_start) / lookup(tables.sqrt_recipm1_alphas_cumprod, t, like=x_t)


def p_moments(
    diffusion: GaussianDiffusion,
    *,
    output: Tensor,
    x_t: Tensor,
    t: Tensor,
    clip: bool,
    denoised: Callable[[Tensor], Tensor] | None = None,
) -> ModelMoments:
    """One model step, given the network's output at x_t.

    Args:
        output: [N, C, H, W] or, with a learned variance, [N, 2C, H, W].
        clip: clamp the prediction of x_start to [-1, 1].
        denoised: applied to that prediction before it is clamped.
    """
    predicted = output[:, : x_t.shape[1]]
    match diffusion.mean_type:
        case MeanType.EPSILON:
            pred_xstart = xstart_from_eps(diffusion, x_t=x_t, t=t, eps=predicted)
        case MeanType.START_X:
            pred_xstart = predicted
        case MeanType.PREVIOUS_X:
            pred_xstart = xstart_from_previous(diffusion, x_t=x_t, t=t, x_previous=predicted)
    if denoised is not None:
        pred_xstart = denoised(pred_xstart)
    if clip:
        pred_xstart = pred_xstart.clamp(-1, 1)
    given = diffusion.mean_type is MeanType.PREVIOUS_X
    mean = predicted if given else q_posterior(diffusion, x_start=pred_xstart, x_t=x_t, t=t).mean
    return ModelMoments(mean, p_log_variance(diffusion, output=output, x_t=x_t, t=t), pred_xstart)


def p_log_variance(diffusion: GaussianDiffusion, *, output: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
    """Log-variance of a model step, [N, C, H, W] if learned, [N, 1, 1, 1] if fixed (Nichol & Dhariwal 2021, eq. 15)."""
    tables = diffusion.tables
    match diffusion.variance_type:
        case VarianceType.LEARNED:
            return output[:, x_t.shape[1] :]
        case VarianceType.LEARNED_RANGE:
            fraction = (output[:, x_t.shape[1] :] + 1) / 2
            largest = lookup(tables.log_betas, t, like=x_t)
            smallest = lookup(tables.posterior_log_variance_clipped, t, like=x_t)
            return fraction * largest + (1 - fraction) * smallest
        case VarianceType.FIXED_SMALL:
            return lookup(tables.posterior_log_variance_clipped, t, like=x_t)
        case VarianceType.FIXED_LARGE:
            return lookup(tables.fixed_large_log_variance, t, like=x_t)


def p_variance(diffusion: GaussianDiffusion, *, log_variance: Tensor, t: Tensor) -> Tensor:
    """Variance of a model step of that log-variance; the exponential of it but for FIXED_SMALL, which is 0 at t = 0."""
    match diffusion.variance_type:
        case VarianceType.LEARNED | VarianceType.LEARNED_RANGE:
            return log_variance.exp()
        case VarianceType.FIXED_SMALL:
            return lookup(diffusion.tables.posterior_variance, t, like=log_variance)
        case VarianceType.FIXED_LARGE:
            return lookup(diffusion.tables.fixed_large_variance, t, like=log_variance)
