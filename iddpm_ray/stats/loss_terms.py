"""Reports the per-sample training losses: as a whole, by quartile of the timestep, and by finer bins for a plot."""

from functools import lru_cache

import torch
from torch import Tensor

from iddpm_ray.stats.report import current

_NUM_QUARTILES = 4


def timestep_group(t: Tensor, *, num_timesteps: int, num_groups: int) -> Tensor:
    """Which of `num_groups` equal parts of [0, T) each timestep lies in: floor(num_groups * t / T), int64 [N]."""
    return (t.to(torch.int64) * num_groups).div(num_timesteps, rounding_mode="floor")


def report_loss_terms(
    t: Tensor,
    *,
    loss: Tensor,
    weights: Tensor,
    num_timesteps: int,
    mse: Tensor | None = None,
    vb: Tensor | None = None,
    num_bins: int = 10,
) -> None:
    """Counts the losses of a whole global batch, on rank 0 alone since every rank holds it.

    Keys are `loss`, `mse` and `vb`, weighted by importance as the original logs them, and `loss_unweighted`. A plain key averages the means
    of calls; `{key}_q0` to `_q3` (quartiles) and `{key}_bin00`, `_bin01`, ... average single samples over all calls. Nothing here waits for
    the device.

    Args:
        t: int64 [N] timesteps.
        loss, mse, vb: [N] terms before weighting; None where the loss has no such term.
        weights: [N] importance weights.
        num_timesteps: T.
        num_bins: how many finer bins.
    """
    weighted = {"loss": loss, "mse": mse, "vb": vb}
    values = {key: term * weights for key, term in weighted.items() if term is not None}
    values["loss_unweighted"] = loss
    terms = torch.stack([term.detach().to(torch.float64) for term in values.values()])
    names = _names(tuple(values), num_bins)
    if t.shape[0] == 0:
        current().register(names)
        return
    # Every sample goes to its quartile and to its bin, and the mean of the call, one element more, to the last group.
    quartile = timestep_group(t, num_timesteps=num_timesteps, num_groups=_NUM_QUARTILES)
    finer = timestep_group(t, num_timesteps=num_timesteps, num_groups=num_bins) + _NUM_QUARTILES
    whole = torch.full_like(t[:1], _NUM_QUARTILES + num_bins)
    elements = torch.cat((terms, terms, terms.mean(dim=1, keepdim=True)), dim=1)
    current().report0_groups(names, elements, torch.cat((quartile, finer, whole)))


@lru_cache
def _names(keys: tuple[str, ...], num_bins: int) -> tuple[str, ...]:
    digits = max(2, len(str(num_bins - 1)))
    parts = [f"_q{i}" for i in range(_NUM_QUARTILES)] + [f"_bin{i:0{digits}}" for i in range(num_bins)] + [""]
    return tuple(key + part for key in keys for part in parts)
