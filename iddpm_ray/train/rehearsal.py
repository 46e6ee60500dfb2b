"""Throw-away forward and backward passes: to settle the order of the all-reduce, to compile, and to see what fits into memory."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from iddpm_ray.diffusion.gaussian import GaussianDiffusion
from iddpm_ray.diffusion.loss import training_losses
from iddpm_ray.train.inputs import Augmentation, condition
from iddpm_ray.train.step import under_autocast


@dataclass(frozen=True)
class Rehearsal:
    """A pass over zeros that looks to the network exactly like one of the run; its gradients mean nothing."""

    diffusion: GaussianDiffusion
    picture: tuple[int, int, int]
    augmentation: Augmentation
    autocast: torch.dtype | None
    device: torch.device

    def backward(self, network: Callable[..., Tensor], *, samples: int) -> None:
        """Forward and backward of `samples` pictures."""
        layout = torch.channels_last if self.augmentation.channels_last else torch.contiguous_format
        x_start = torch.zeros(samples, *self.picture, device=self.device).contiguous(memory_format=layout)
        labels = torch.zeros(samples, dtype=torch.int64, device=self.device)
        terms = training_losses(
            self.diffusion,
            under_autocast(network, self.autocast, self.device),
            x_start=x_start,
            t=torch.zeros(samples, dtype=torch.int64, device=self.device),
            noise=torch.zeros_like(x_start),
            cond=condition(x_start, labels, augmentation=self.augmentation),
        )
        terms.loss.sum().backward()

    def alone(self, network: nn.Module, *, samples: int) -> None:
        """The same on the bare network, no rank waiting for another.

        All gradients are there before and after, as they are for all but a step's first microbatch, and always where ranks average them.
        """
        for parameter in network.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.backward(network, samples=samples)
