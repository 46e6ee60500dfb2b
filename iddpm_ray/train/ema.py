"""Exponential moving averages of the weights, several rates at once (Improved DDPM, section 4)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Ema:
    """Averages `average <- rate * average + (1 - rate) * weight`, begun as copies of the weights, without bias correction.

    Attributes:
        parameters: the live weights, in parameter order.
        averages: for each rate, tensors alike.
    """

    parameters: list[Tensor]
    averages: dict[float, list[Tensor]]

    @classmethod
    def begin(cls, parameters: Sequence[Tensor], rates: Sequence[float]) -> "Ema":
        """Averages equal to the weights."""
        live = list(parameters)
        return cls(live, {rate: [parameter.detach().clone() for parameter in live] for rate in rates})

    @torch.no_grad()
    def update(self, skipped: Tensor) -> None:
        """One step of every average; `skipped` = 1 (a float32 scalar on the device) leaves them alone, bit for bit."""
        for rate, averages in self.averages.items():
            weight = (1.0 - rate) * (1.0 - skipped)
            change = torch._foreach_sub(self.parameters, averages)  # pyright: ignore[reportPrivateImportUsage] torch's own optimisers' interface
            torch._foreach_mul_(change, weight)  # pyright: ignore[reportPrivateImportUsage] as above
            torch._foreach_add_(averages, change)  # pyright: ignore[reportPrivateImportUsage] as above

    @contextmanager
    def applied(self, rate: float | None) -> Iterator[None]:
        """Within the block the model computes with the average of `rate`; None leaves the raw weights."""
        if rate is None:
            yield
            return
        raw = [parameter.data for parameter in self.parameters]
        for parameter, average in zip(self.parameters, self.averages[rate], strict=True):
            parameter.data = average
        try:
            yield
        finally:
            for parameter, weight in zip(self.parameters, raw, strict=True):
                parameter.data = weight
