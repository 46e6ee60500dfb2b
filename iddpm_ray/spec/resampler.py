"""Section `resampler`: which timesteps are trained on."""

from typing import Literal

from iddpm_ray.spec.mark import Section, identity


class ResamplerSpec(Section):
    """Which timesteps are trained on (Improved DDPM, section 3.3)."""

    kind: Literal["uniform", "loss_second_moment"] = identity(
        "uniform", "all timesteps alike, or in proportion to the root mean square of their losses", unit="choice"
    )
    history: int = identity(10, "losses kept for each timestep, with loss_second_moment", unit="losses", ge=1)
    uniform_prob: float = identity(0.001, "share of the draws that stays uniform, with loss_second_moment", unit="probability", gt=0, le=1)
