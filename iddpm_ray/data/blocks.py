"""Several steps of one rank at a time: the unit that is loaded by one task. Needs no torch, so that tasks begin quickly."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iddpm_ray.data import order
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.load import OnError, load
from iddpm_ray.data.manifest import Manifest

_ROWS = 512
_BYTES = 64 << 20


@dataclass(frozen=True)
class Share:
    """Which rows one rank sees, and how: everything that its batches are a function of, besides the manifest and the step.

    Attributes:
        steps_per_block: steps loaded by one task; None for about 512 rows, but at most 64 MiB. Changes no batch.
        threads: pictures that one task reads at a time.
    """

    seed: int
    global_batch: int
    decoding: Decoding
    rank: int = 0
    world_size: int = 1
    on_error: OnError = "fail"
    steps_per_block: int | None = None
    threads: int = 8

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world_size <= self.global_batch, "every rank needs a row of every step"

    @property
    def rows_per_step(self) -> int:
        """Rows of this rank in every step."""
        own = order.slice_of(self.global_batch, rank=self.rank, world_size=self.world_size)
        return own.stop - own.start

    @property
    def block_steps(self) -> int:
        """Steps of one block."""
        if self.steps_per_block is not None:
            return self.steps_per_block
        rows = self.rows_per_step
        return max(1, min(_ROWS // rows, _BYTES // (rows * self.decoding.num_bytes)))


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive steps of one rank; arrays are [steps * n, ...], in step order.

    Attributes:
        steps: the step of each row.
        rows, pixels, labels, substituted: as in `Batch`, a flag a row for the last.
    """

    rank: int
    steps: NDArray[np.int64]
    rows: NDArray[np.int64]
    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    substituted: NDArray[np.bool_]


def block_ranges(share: Share, *, start_step: int, stop_step: int | None) -> Iterator[range]:
    """Steps of each block, from `start_step` on; endless without `stop_step`."""
    start = start_step
    while stop_step is None or start < stop_step:
        end = start + share.block_steps
        stop = end if stop_step is None else min(end, stop_step)
        yield range(start, stop)
        start = stop


def load_block(manifest: Manifest, share: Share, steps: range) -> Block:
    """Loads every row of this rank in some consecutive steps.

    Raises:
        DataError: as `load`.
    """
    positions = order.positions(
        steps.start, global_batch=share.global_batch, rank=share.rank, world_size=share.world_size, num_steps=len(steps)
    )
    training = manifest.training_rows
    rows = training[order.rows(share.seed, positions, len(training))]
    loaded = load(manifest, rows, decoding=share.decoding, on_error=share.on_error, threads=share.threads)
    which = np.repeat(np.arange(steps.start, steps.stop, dtype=np.int64), share.rows_per_step)
    return Block(share.rank, which, rows, loaded.pixels, loaded.labels, loaded.substituted)
