"""What a rank gets for one step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


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
