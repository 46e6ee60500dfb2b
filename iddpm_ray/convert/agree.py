"""Whether two networks say the same: both run on fixed inputs, and the largest difference decides."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray.errors import CheckpointError
from iddpm_ray.models.superres import SuperResUNet
from iddpm_ray.models.unet import UNet

TOLERANCE = 1e-4
"""Largest difference that float32 arithmetic in another order may make, as a share of the largest output (or of 1)."""

SEED = 20210218


@dataclass(frozen=True)
class Inputs:
    """One batch: x [2, C, H, W], whole timesteps t [2] as the network is given them, labels y [2] and small pictures, or None."""

    x: Tensor
    t: Tensor
    y: Tensor | None
    low_res: Tensor | None

    def ours(self, network: UNet) -> Tensor:
        """What a network of ours answers."""
        further = {} if self.low_res is None else {"low_res": self.low_res}
        return network(self.x, self.t, self.y, **further)


@dataclass(frozen=True)
class Agreement:
    """The largest absolute difference of two outputs, and the largest absolute output."""

    difference: float
    largest: float

    def describe(self) -> str:
        """The same in words."""
        return f"largest difference {self.difference:.3g} of outputs up to {self.largest:.3g}"


def fixed_inputs(network: UNet, *, num_timesteps: int) -> Inputs:
    """The same inputs for every network of a kind: as small as its levels allow, at an early and at the last timestep."""
    generator = torch.Generator().manual_seed(SEED)
    side = 2 * network.size_multiple
    shape = (2, network.image_channels, side, side)
    rows = network.label_emb.num_embeddings if network.num_classes is not None else 0
    return Inputs(
        x=torch.randn(shape, generator=generator),
        t=torch.tensor([num_timesteps // 3, num_timesteps - 1]),
        y=torch.tensor([0, rows - 1]) if rows else None,
        low_res=torch.randn((*shape[:2], 1, 1), generator=generator) if isinstance(network, SuperResUNet) else None,
    )


@torch.inference_mode()
def compare(one: Callable[[], Tensor], other: Callable[[], Tensor]) -> Agreement:
    """Runs both; each gives [N, C, H, W]."""
    first, second = one(), other()
    assert first.shape == second.shape, f"{tuple(first.shape)} and {tuple(second.shape)}"
    return Agreement(float((first - second).abs().max()), float(first.abs().max()))


def accept(agreement: Agreement, *, who: str, tolerance: float = TOLERANCE) -> None:
    """Refuses what does not agree.

    Args:
        who: the two, in words.

    Raises:
        CheckpointError: the difference is above the tolerance, or the network says nothing that could be compared.
    """
    if not agreement.largest > 0:
        raise CheckpointError(f"{who}: every output is 0 or not finite, so nothing could be compared", fix="convert trained weights")
    if not agreement.difference <= tolerance * max(1.0, agreement.largest):
        raise CheckpointError(
            f"{who} do not say the same: {agreement.describe()}, tolerated {tolerance * max(1.0, agreement.largest):.3g}",
            fix="nothing was written; a difference like this is a wrong setting (such as heads or qkv_order) or a defect to report",
        )
