"""Processes, pictures and networks for tests of the diffusion mathematics."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from iddpm_ray.diffusion.gaussian import GaussianDiffusion, LossType, MeanType, VarianceType
from iddpm_ray.diffusion.respace import make_diffusion

torch.set_num_threads(1)


def make(
    schedule: str = "cosine",
    num_timesteps: int = 50,
    sections: str | Sequence[int] | None = None,
    *,
    mean: MeanType = MeanType.EPSILON,
    variance: VarianceType = VarianceType.LEARNED_RANGE,
    loss: LossType = LossType.RESCALED_MSE,
    rescale: bool = True,
) -> GaussianDiffusion:
    """A small process."""
    return make_diffusion(
        schedule=schedule,
        num_timesteps=num_timesteps,
        sections=sections,
        mean_type=mean,
        variance_type=variance,
        loss_type=loss,
        rescale_timesteps=rescale,
    )


def pictures(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Values of pixels, multiples of 2/255 in [-1, 1]."""
    levels = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed))
    return (levels.double() / 127.5 - 1).to(dtype)


def gaussians(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normals."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def answering(output: Tensor) -> Callable[..., Tensor]:
    """A network that always says the same."""
    return lambda x, t, **cond: output


def knowing(diffusion: GaussianDiffusion, x_start: Tensor) -> Callable[..., Tensor]:
    """A network that knows the picture: predicts the eps that leads from it to x; for processes whose timesteps are not rescaled."""
    kept = diffusion.tables.alphas_cumprod
    of = {int(original): index for index, original in enumerate(diffusion.timestep_map)}

    def network(x: Tensor, t: Tensor, **cond: Tensor) -> Tensor:
        a = kept[torch.tensor([of[int(original)] for original in t])].view(-1, 1, 1, 1)
        return ((x.double() - a.sqrt() * x_start) / (1 - a).sqrt()).to(x.dtype)

    return network
