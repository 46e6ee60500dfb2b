"""Whether a process can be shortened as asked, by arithmetic alone (Improved DDPM, section 4; DDIM, appendix D)."""

import re


def count_timesteps(num_timesteps: int, respacing: str) -> int:
    """How many timesteps are left of `num_timesteps` after respacing; the empty text keeps them all.

    Raises:
        ValueError: if no such choice of timesteps exists; says which would.
    """
    if not respacing:
        return num_timesteps
    if respacing.startswith("ddim"):
        return _count_ddim(num_timesteps, respacing)
    if not re.fullmatch(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*", respacing):
        raise ValueError('should be a count such as "250", counts a section such as "10,15,20", or "ddim50"')
    counts = [int(count) for count in respacing.split(",")]
    small, larger = divmod(num_timesteps, len(counts))
    for index, count in enumerate(counts):
        size = small + (index < larger)
        if count > size:
            where = f"there are {size}" if len(counts) == 1 else f"section {index + 1} of {len(counts)} has {size} (of {num_timesteps})"
            raise ValueError(f"asks for {count} timesteps where {where}")
    if sum(counts) == 0:
        raise ValueError("keeps no timestep at all")
    return sum(counts)


def _count_ddim(num_timesteps: int, respacing: str) -> int:
    """A stride i in 1..T-1 whose multiples below T are exactly n: there are ceil(T / i) of them."""
    digits = respacing.removeprefix("ddim")
    if not re.fullmatch(r"[0-9]+", digits):
        raise ValueError('should be "ddim" and a count, such as "ddim50"')
    wanted = int(digits)
    if _is_reachable(num_timesteps, wanted):
        return wanted
    near = _nearest(num_timesteps, wanted)
    would = " or ".join(f'"ddim{count}"' for count in near) or "no ddim count"
    raise ValueError(f"is impossible: no whole stride through {num_timesteps} timesteps takes exactly {wanted} of them; {would} would do")


def _is_reachable(num_timesteps: int, wanted: int) -> bool:
    if wanted < 1:
        return False
    stride = max(-(-num_timesteps // wanted), 1)  # the smallest one that takes at most so many
    return stride < num_timesteps and -(-num_timesteps // stride) == wanted


def _nearest(num_timesteps: int, wanted: int) -> list[int]:
    below = next((count for count in range(min(wanted, num_timesteps), 0, -1) if _is_reachable(num_timesteps, count)), None)
    above = next((count for count in range(wanted + 1, num_timesteps + 1) if _is_reachable(num_timesteps, count)), None)
    return [count for count in (below, above) if count is not None]
