"""Section `sample`: pictures drawn during training, on fixed noise, and the defaults of drawing them afterwards."""

from typing import Annotated, Literal

from pydantic import Field

from iddpm_ray.spec.diffusion import Respacing
from iddpm_ray.spec.duration import Interval
from iddpm_ray.spec.mark import AsTuple, Section, may_change

ClassIndex = Annotated[int, Field(ge=0)]
Timestep = Annotated[int, Field(ge=0)]


class SampleSpec(Section):
    """Pictures drawn during training, on fixed noise, and the defaults of drawing them afterwards."""

    every: Interval | None = may_change(None, "between two grids of pictures; null: none during training", unit="duration")
    count: int = may_change(16, "pictures in a grid", unit="pictures", ge=1)
    method: Literal["ddpm", "ddim", "dpmpp"] = may_change(
        "ddpm", "ancestral sampling, DDIM (Song et al. 2020), or DPM-Solver++ 2M (Lu et al. 2022)", unit="choice"
    )
    respacing: Respacing = may_change("", 'draw in fewer timesteps: "250", "ddim50"; empty: as in training', unit="text")
    eta: float = may_change(0.0, "DDIM: share of fresh noise, 0 (none) to 1 (as ancestral)", unit="fraction", ge=0, le=1)
    ema: Annotated[float, Field(ge=0, lt=1)] | None = may_change(
        None, "which of optim.ema_rates to draw with; null: the raw weights", unit="per step"
    )
    guidance: float = may_change(1.0, "classifier-free guidance; 1: none (needs model.class_dropout)", unit="factor", ge=0)
    guidance_interval: Annotated[tuple[Timestep, Timestep], AsTuple] | None = may_change(
        None, "guide at timesteps low .. high of the whole process alone; null: at all of them", unit="timesteps"
    )
    low_res_noise: int = may_change(
        0, "superres: noise level given to the small picture, at most model.low_res_noise", unit="timesteps", ge=0
    )
    classes: Annotated[tuple[ClassIndex, ...], Field(min_length=1), AsTuple] | None = may_change(
        None, "class indices to draw, in turn; null: every class", unit="class indices"
    )
