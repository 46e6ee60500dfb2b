"""Pictures as a function of (seed, index): picture i is the same whoever draws it, in whatever company."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.diffusion.gaussian import GaussianDiffusion
from iddpm_ray.diffusion.guidance import guided
from iddpm_ray.diffusion.multistep import dpmpp_steps
from iddpm_ray.diffusion.sample import Denoised, StepSample, ddim_steps, ddpm_steps, to_bytes

# Positions of one picture's noises; more than any process has steps.
NOISES_A_PICTURE = 2**20

Method = Literal["ddpm", "ddim", "dpmpp"]


@dataclass(frozen=True)
class Way:
    """How pictures are drawn.

    Attributes:
        method: ancestral sampling, DDIM, or DPM-Solver++ 2M.
        eta: of DDIM, 0 (deterministic) to 1.
        guidance: scale of classifier-free guidance; 1 for none.
        interval: guide only where t, as the network is given it, lies in [low, high]; None: everywhere.
        null_class: the label that stands for none; needed for guidance.
    """

    method: Method = "ddpm"
    eta: float = 0.0
    guidance: float = 1.0
    interval: tuple[float, float] | None = None
    null_class: int | None = None


def chain(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    method: Method,
    start: Tensor,
    noise: Callable[[int], Tensor],
    cond: Mapping[str, Tensor],
    eta: float = 0.0,
    clip: bool = True,
    denoised: Denoised | None = None,
) -> Iterator[StepSample]:
    """Every step of a method from pure noise to a picture; arguments as of `ddpm_steps`."""
    match method:
        case "ddpm":
            return ddpm_steps(diffusion, model, start=start, noise=noise, cond=cond, clip=clip, denoised=denoised)
        case "ddim":
            return ddim_steps(diffusion, model, start=start, noise=noise, cond=cond, eta=eta, clip=clip, denoised=denoised)
        case "dpmpp":
            return dpmpp_steps(diffusion, model, start=start, cond=cond, clip=clip, denoised=denoised)


def draw_pictures(
    diffusion: GaussianDiffusion,
    model: Callable[..., Tensor],
    *,
    indices: Tensor,
    shape: tuple[int, int, int],
    seed: int,
    cond: Mapping[str, Tensor],
    way: Way,
) -> Tensor:
    """Draws the pictures of the given indices.

    Args:
        indices: [N] int64 on the device; only (seed, index) decides a picture's start and noises. A network that enlarges has others
            than one that does not, so a cascade's two pictures of an index have nothing in common but what the second is given.
        shape: (C, H, W) of a picture.
        cond: further inputs of the network, [N, ...] each.

    Returns:
        [N, C, H, W] uint8.
    """
    enlarges = "low_res" in cond
    start = draws.normals(seed, Purpose.UPSAMPLE_START if enlarges else Purpose.SAMPLE_START, indices, shape)
    purpose = Purpose.UPSAMPLE_NOISE if enlarges else Purpose.SAMPLE_NOISE

    def noise(step: int) -> Tensor:
        return draws.normals(seed, purpose, indices * NOISES_A_PICTURE + step, shape)

    if way.guidance != 1.0:
        assert way.null_class is not None, "guidance leans away from a class that stands for none"
        model = guided(model, scale=way.guidance, null_class=way.null_class, channels=shape[0], interval=way.interval)
    sample = start
    for step in chain(diffusion, model, method=way.method, start=start, noise=noise, cond=cond, eta=way.eta):
        sample = step.sample
    return to_bytes(sample)
