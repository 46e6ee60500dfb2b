"""Batches without a cluster: the same rows and pixels, loaded by threads of this process; and the held-out rows."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from iddpm_ray.data.batch import Batch, cut
from iddpm_ray.data.blocks import Block, Share, block_ranges, load_block
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.load import OnError, load
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose


def local_stream(
    manifest: Manifest, share: Share, *, start_step: int = 0, stop_step: int | None = None, tasks: int = 1, prefetch_blocks: int = 2
) -> Generator[Batch, None, None]:
    """This rank's batch of every step from `start_step` on, endless without `stop_step`; blocks are loaded ahead by threads.

    Args:
        tasks: blocks loaded at a time.
        prefetch_blocks: blocks kept ready besides.

    Raises:
        DataError: from the `next` that comes to the block in question.
    """
    ranges = block_ranges(share, start_step=start_step, stop_step=stop_step)
    pool = ThreadPoolExecutor(tasks, thread_name_prefix="data")
    ahead: deque[Future[Block]] = deque()
    try:
        while True:
            while len(ahead) < tasks + prefetch_blocks and (steps := next(ranges, None)) is not None:
                ahead.append(pool.submit(load_block, manifest, share, steps))
            if not ahead:
                return
            yield from cut(ahead.popleft().result())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def held_out(manifest: Manifest, *, limit: int, seed: int) -> NDArray[np.int64]:
    """At most `limit` validation rows, ascending: those with the smallest draws of the split, so no class or file is preferred."""
    rows = manifest.validation_rows
    if len(rows) <= limit:
        return rows
    keys = torch.from_numpy(manifest.table.column("key").to_numpy()[rows].copy())
    chosen = torch.argsort(draws.uniforms(seed, Purpose.SPLIT, keys).squeeze(1), stable=True)[:limit]
    return rows[np.sort(chosen.numpy())]


def validation_batches(
    manifest: Manifest, rows: NDArray[np.int64], *, size: int, decoding: Decoding, on_error: OnError = "fail", rank: int = 0
) -> Generator[Batch, None, None]:
    """The given held-out rows in order, `size` at a time; `step` counts the pieces, the last may be smaller."""
    for piece, start in enumerate(range(0, len(rows), size)):
        own = rows[start : start + size]
        loaded = load(manifest, own, decoding=decoding, on_error=on_error)
        yield Batch(
            step=piece,
            rank=rank,
            rows=own.copy(),
            pixels=torch.from_numpy(loaded.pixels),
            labels=torch.from_numpy(loaded.labels),
            substituted=int(loaded.substituted.sum()),
        )
