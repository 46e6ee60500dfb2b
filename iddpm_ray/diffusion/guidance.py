"""Classifier-free guidance (Ho & Salimans 2022, arXiv:2207.12598): a conditional network and its null class, as one network."""

from collections.abc import Callable

import torch
from torch import Tensor

from iddpm_ray.diffusion.gaussian import at_least_float32


def guided(
    model: Callable[..., Tensor],
    *,
    scale: float,
    null_class: int,
    channels: int,
    interval: tuple[float, float] | None = None,
) -> Callable[..., Tensor]:
    """Wraps a network that was trained with dropped labels into one that leans towards its labels.

    The first `channels` channels become unconditional + scale * (conditional - unconditional); the variance part stays the
    conditional one. Scale 1 is the network itself, 0 ignores the labels (the paper's w is scale - 1).

    Args:
        model: called as model(x, t, y=..., ...), with y [N] int64; called once on a batch of 2N.
        null_class: the label that stands for none.
        channels: of a picture, C.
        interval: guide only where t, as the network is given it, lies in [low, high] (Kynkäänniemi et al. 2024, arXiv:2404.07724).

    Returns:
        model(x, t, y=..., ...) -> [N, C or 2C, H, W].
    """

    def forward(x: Tensor, t: Tensor, *, y: Tensor, **cond: Tensor) -> Tensor:
        doubled = {name: torch.cat([value, value]) for name, value in cond.items()}
        labels = torch.cat([y, torch.full_like(y, null_class)])
        output = at_least_float32(model(torch.cat([x, x]), torch.cat([t, t]), y=labels, **doubled))
        conditional, unconditional = output.chunk(2)
        with_label, without = conditional[:, :channels], unconditional[:, :channels]
        mean = without + scale * (with_label - without)
        if interval is not None:
            low, high = interval
            inside = ((t >= low) & (t <= high)).view(-1, *[1] * (x.ndim - 1))
            mean = torch.where(inside, mean, with_label)
        return torch.cat([mean, conditional[:, channels:]], dim=1)

    return forward
