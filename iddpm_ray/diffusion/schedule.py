"""The betas over timesteps, and every table that follows from them.

Sources: linear from Ho et al. 2020 (arXiv:2006.11239, section 4), cosine from Nichol & Dhariwal 2021 (arXiv:2102.09672, eq. 17).
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from iddpm_ray.errors import SpecError


@dataclass(frozen=True, eq=False)
class Tables:
    """Coefficients of a process of T timesteps, each float64 [T]; index 0 is the least noisy timestep.

    With a = 1 - betas: alphas_cumprod A = prod a, its neighbours `_prev` (1 before the first) and `_next` (0 after the last).

    Attributes:
        posterior_variance: of q(x_{t-1} given x_t, x_start); 0 at t = 0.
        posterior_log_variance_clipped: its logarithm, with element 1 in place of the infinite element 0.
        posterior_mean_coef1, posterior_mean_coef2: what multiplies x_start and x_t in the mean of the same.
        fixed_large_variance, fixed_large_log_variance: betas, with posterior_variance[1] in place of element 0.
        previous_coef, previous_x_t_coef: the two inverted: x_start = previous_coef x_{t-1} - previous_x_t_coef x_t.
    """

    betas: Tensor
    log_betas: Tensor
    alphas_cumprod: Tensor
    alphas_cumprod_prev: Tensor
    alphas_cumprod_next: Tensor
    sqrt_alphas_cumprod: Tensor
    one_minus_alphas_cumprod: Tensor
    sqrt_one_minus_alphas_cumprod: Tensor
    log_one_minus_alphas_cumprod: Tensor
    sqrt_recip_alphas_cumprod: Tensor
    sqrt_recipm1_alphas_cumprod: Tensor
    posterior_variance: Tensor
    posterior_log_variance_clipped: Tensor
    posterior_mean_coef1: Tensor
    posterior_mean_coef2: Tensor
    fixed_large_variance: Tensor
    fixed_large_log_variance: Tensor
    previous_coef: Tensor
    previous_x_t_coef: Tensor

    def to(self, device: torch.device | str) -> "Tables":
        """The same tables on a device, still float64."""
        return Tables(**{field.name: getattr(self, field.name).to(device) for field in dataclasses.fields(self)})


def make_betas(schedule: str, *, num_timesteps: int) -> np.ndarray:
    """The betas of a named schedule, float64 [T]; nothing is refused but an unknown name or no timesteps at all.

    Raises:
        SpecError: if `schedule` is neither "linear" nor "cosine", or `num_timesteps` is below 1.
    """
    if num_timesteps < 1:
        raise SpecError("diffusion.timesteps", value=num_timesteps, fix="a process needs at least 2 timesteps")
    match schedule:
        case "linear":
            return linear_betas(num_timesteps)
        case "cosine":
            return cosine_betas(num_timesteps)
        case _:
            raise SpecError("diffusion.schedule", value=schedule, fix='say "linear" or "cosine"')


def linear_betas(num_timesteps: int) -> np.ndarray:
    """Equally spaced betas, 1e-4 to 0.02 at 1000 timesteps and scaled so that any number of them adds as much noise; float64 [T]."""
    scale = 1000 / num_timesteps
    return np.linspace(scale * 1e-4, scale * 0.02, num_timesteps, dtype=np.float64)


def cosine_betas(num_timesteps: int) -> np.ndarray:
    """Betas by which alphas_cumprod falls as a squared cosine, none above 0.999; float64 [T]."""

    # One by one in Python: numpy's vectorised cosine is off by an ulp here and there, which 1 - ratio makes 1e-11.
    def kept(u: float) -> float:
        return math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [min(1 - kept((i + 1) / num_timesteps) / kept(i / num_timesteps), 0.999) for i in range(num_timesteps)]
    return np.array(betas, dtype=np.float64)


def check_schedule(schedule: str, *, num_timesteps: int) -> None:
    """Refuses a process that could not be trained: one timestep only, or betas that reach 1 and leave nothing of the picture.

    Raises:
        SpecError: for fewer than 2 timesteps, for linear with 20 or fewer, for an unknown schedule.
    """
    betas = make_betas(schedule, num_timesteps=num_timesteps)
    if num_timesteps == 1:
        raise SpecError(
            "diffusion.timesteps", value=1, fix="train with at least 2 timesteps; to draw in one step, respace a longer process to 1"
        )
    if not (betas.min() > 0 and betas.max() < 1):
        raise SpecError(
            f"diffusion.timesteps of a {schedule} schedule",
            value=num_timesteps,
            fix="its last beta, 20 / timesteps, must be below 1: use at least 21 timesteps, or the cosine schedule",
        )


def tables_of(betas: np.ndarray) -> Tables:
    """Every table of the process with these betas, float64 [T] each in (0, 1] (Nichol & Dhariwal 2021, eq. 8 to 15).

    A one-step process has no posterior variance but 0, so its clipped logarithm and fixed large variance are those of its beta.
    """
    # A beta of 1 leaves no picture: its reciprocals are infinite, and a caller who accepted it knows.
    with np.errstate(divide="ignore", invalid="ignore"):
        alphas = 1.0 - betas
        kept = np.cumprod(alphas)
        kept_prev = np.append(1.0, kept[:-1])
        variance = betas * (1.0 - kept_prev) / (1.0 - kept)
        first = variance[1] if len(betas) > 1 else betas[0]
        large = np.append(first, betas[1:])
        coef1 = betas * np.sqrt(kept_prev) / (1.0 - kept)
        coef2 = (1.0 - kept_prev) * np.sqrt(alphas) / (1.0 - kept)
        tables = {
            "betas": betas,
            "log_betas": np.log(betas),
            "alphas_cumprod": kept,
            "alphas_cumprod_prev": kept_prev,
            "alphas_cumprod_next": np.append(kept[1:], 0.0),
            "sqrt_alphas_cumprod": np.sqrt(kept),
            "one_minus_alphas_cumprod": 1.0 - kept,
            "sqrt_one_minus_alphas_cumprod": np.sqrt(1.0 - kept),
            "log_one_minus_alphas_cumprod": np.log(1.0 - kept),
            "sqrt_recip_alphas_cumprod": np.sqrt(1.0 / kept),
            "sqrt_recipm1_alphas_cumprod": np.sqrt(1.0 / kept - 1),
            "posterior_variance": variance,
            "posterior_log_variance_clipped": np.log(np.append(first, variance[1:])),
            "posterior_mean_coef1": coef1,
            "posterior_mean_coef2": coef2,
            "fixed_large_variance": large,
            "fixed_large_log_variance": np.log(large),
            "previous_coef": 1.0 / coef1,
            "previous_x_t_coef": coef2 / coef1,
        }
    return Tables(**{name: torch.from_numpy(np.array(table, dtype=np.float64)) for name, table in tables.items()})
