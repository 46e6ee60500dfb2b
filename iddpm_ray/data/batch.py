"""What a rank gets for one step, cut from a block of several."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iddpm_ray.data.blocks import Block


@dataclass(frozen=True, eq=False)
class Batch:
    """A rank's slice of one global batch, in position order.

    Attributes:
        step: updates completed before this batch is used.
        rank: whose slice it is.
        rows: [n] rows of the manifest that the order asked for.
        pixels: [n, C, H, W] uint8, writable memory of its own.
        labels: [n] int64, -1 without labels.
        substituted: how many of the n are another row's picture because their own could not be read.
    """

    step: int
    rank: int
    rows: NDArray[np.int64]
    pixels: Tensor
    labels: Tensor
    substituted: int


def cut(block: Block) -> Iterator[Batch]:
    """The batches of a block, each with memory of its own."""
    firsts = np.flatnonzero(np.diff(block.steps, prepend=-1))
    for start, stop in zip(firsts, [*firsts[1:], len(block.steps)], strict=True):
        own = slice(start, stop)
        yield Batch(
            step=int(block.steps[start]),
            rank=block.rank,
            rows=block.rows[own].copy(),
            pixels=torch.from_numpy(block.pixels[own].copy()),
            labels=torch.from_numpy(block.labels[own].copy()),
            substituted=int(block.substituted[own].sum()),
        )
