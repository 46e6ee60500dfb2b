"""Shorter processes: a subset of timesteps is again a Gaussian diffusion, with new betas (Nichol & Dhariwal 2021, section 4)."""

from collections.abc import Sequence

import numpy as np
import torch

from iddpm_ray.diffusion.gaussian import GaussianDiffusion, LossType, MeanType, VarianceType
from iddpm_ray.diffusion.schedule import Tables, check_schedule, make_betas, tables_of
from iddpm_ray.errors import SpecError

# Both diffusion.respacing and sample.respacing come here.
_FIELD = "respacing"


def make_diffusion(
    *,
    schedule: str,
    num_timesteps: int,
    sections: str | Sequence[int] | None,
    mean_type: MeanType,
    variance_type: VarianceType,
    loss_type: LossType,
    rescale_timesteps: bool,
) -> GaussianDiffusion:
    """A process by the name of its schedule, on the CPU.

    Args:
        schedule: "linear" or "cosine".
        sections: which timesteps to keep, as `space_timesteps` reads them; None or "" keeps the process as it is.

    Raises:
        SpecError: for a schedule that cannot be trained, whatever is kept of it, or sections that do not fit.
    """
    check_schedule(schedule, num_timesteps=num_timesteps)
    kept = _kept(num_timesteps, sections)
    return GaussianDiffusion(
        tables=_tables(make_betas(schedule, num_timesteps=num_timesteps), kept),
        timestep_map=torch.arange(num_timesteps) if kept is None else torch.from_numpy(kept),
        original_num_timesteps=num_timesteps,
        mean_type=mean_type,
        variance_type=variance_type,
        loss_type=loss_type,
        rescale_timesteps=rescale_timesteps,
    )


def make_diffusion_as_original(*, schedule: str, num_timesteps: int, sections: str | Sequence[int] | None = None) -> GaussianDiffusion:
    """A process by what the code of Improved DDPM accepts: a last beta of 1, no process of one step. Only to compare with that code.

    Returns:
        One that predicts eps at FIXED_SMALL variance under MSE, timesteps not rescaled; `dataclasses.replace` makes any other of it.

    Raises:
        SpecError: if a beta lies outside (0, 1] or one step is left.
    """
    betas, kept = make_betas(schedule, num_timesteps=num_timesteps), _kept(num_timesteps, sections)
    if not (betas.min() > 0 and betas.max() <= 1):
        raise SpecError("diffusion.timesteps", value=num_timesteps, fix="every beta must lie in (0, 1]")
    if num_timesteps == 1 or (kept is not None and kept.size == 1):
        raise SpecError("diffusion.timesteps", value=1, fix="there is no second posterior variance")
    return GaussianDiffusion(
        tables=_tables(betas, kept),
        timestep_map=torch.arange(num_timesteps) if kept is None else torch.from_numpy(kept),
        original_num_timesteps=num_timesteps,
        mean_type=MeanType.EPSILON,
        variance_type=VarianceType.FIXED_SMALL,
        loss_type=LossType.MSE,
        rescale_timesteps=False,
    )


def _kept(num_timesteps: int, sections: str | Sequence[int] | None) -> np.ndarray | None:
    if sections is None or sections == "":
        return None
    kept = np.array(space_timesteps(num_timesteps, sections), dtype=np.int64)
    if kept.size == 0:
        raise SpecError(_FIELD, value=sections, fix="keep at least one timestep")
    return kept


def _tables(betas: np.ndarray, kept: np.ndarray | None) -> Tables:
    # Betas that nothing is taken from stay as they are: recomputed, they would be off by 1e-12.
    return tables_of(betas if kept is None else respaced_betas(betas, kept))


def respaced_betas(betas: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Betas float64 [n] under which the kept timesteps, int64 [n] ascending, have the noise they have under `betas` [T]."""
    alphas_cumprod = np.cumprod(1.0 - betas)[kept]
    return 1.0 - alphas_cumprod / np.append(1.0, alphas_cumprod[:-1])


def space_timesteps(num_timesteps: int, sections: str | Sequence[int]) -> list[int]:
    """The timesteps to keep, ascending.

    Args:
        sections: "ddimN" for N of them at a whole-numbered stride (Song et al. 2020, arXiv:2010.02502, appendix D.2); otherwise
            counts, "250", "10,15,20" or a list: the timesteps are cut into as many nearly equal sections as there are counts and
            each count is spread evenly over its section, its ends included.

    Raises:
        SpecError: if N is impossible, a count exceeds its section, or is no whole number of at least 0.
    """
    if isinstance(sections, str) and sections.startswith("ddim"):
        return _strided(num_timesteps, sections)
    counts = _counts(sections)
    size, longer = divmod(num_timesteps, len(counts))
    lengths = [size + 1 if number < longer else size for number in range(len(counts))]
    steps: list[int] = []
    begin = 0
    for count, length in zip(counts, lengths, strict=True):
        if count > length:
            raise SpecError(
                f"{_FIELD} asks for {count} timesteps in a section that has {length}",
                value=sections,
                fix=f"ask for no more than {', '.join(map(str, lengths))}",
            )
        # The running sum, not number * stride, decides ties: checkpoints are compared on these very timesteps.
        stride = (length - 1) / (count - 1) if count > 1 else 1.0
        position = 0.0
        for _ in range(count):
            steps.append(begin + round(position))
            position += stride
        begin += length
    return steps


def _counts(sections: str | Sequence[int]) -> list[int]:
    parts = sections.split(",") if isinstance(sections, str) else list(sections)
    try:
        counts = [int(part) if isinstance(part, str) else _whole(part) for part in parts]
    except ValueError:
        counts = []
    if not counts or min(counts) < 0:
        raise SpecError(_FIELD, value=repr(sections), fix='give counts such as "250" or "10,15,20", or "ddim50"')
    return counts


def _whole(value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(value)
    return value


def _strided(num_timesteps: int, sections: str) -> list[int]:
    text = sections.removeprefix("ddim")
    if not text.isdecimal():
        raise SpecError(_FIELD, value=repr(sections), fix='after "ddim" comes a whole number, as in "ddim50"')
    wanted = int(text)
    possible = {len(range(0, num_timesteps, stride)): stride for stride in reversed(range(1, num_timesteps))}
    if wanted in possible:
        return list(range(0, num_timesteps, possible[wanted]))
    nearest = sorted(sorted(possible, key=lambda count: abs(count - wanted))[:2])
    uneven = f', or "{wanted}" for an uneven spread' if 1 <= wanted <= num_timesteps else ""
    raise SpecError(
        f"{_FIELD} asks for {wanted} timesteps, which no whole-numbered stride through {num_timesteps} takes",
        value=sections,
        fix=f"try {' or '.join(f'ddim{count}' for count in nearest)}{uneven}" if nearest else "the process has one timestep only",
    )
