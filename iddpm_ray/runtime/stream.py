"""Batches through Ray Data: one read task is some consecutive steps of one rank, loaded wherever the cluster has a CPU to spare.

Each rank reads datasets of its own, whose executor lives in an actor beside the trainer process. Blocks come back whole and in order
and are cut here. A run may have a million steps, but planning costs milliseconds a block, so datasets are made a segment at a time, the
next one before the last is used up.
"""

import itertools
import queue
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import get_or_create_autoscaling_coordinator
from ray.data._internal.stats import get_or_create_stats_actor
from ray.data._internal.usage.actor import get_or_create_usage_collection_actor
from ray.exceptions import RayTaskError

from iddpm_ray.data import manifest as manifests
from iddpm_ray.data import order
from iddpm_ray.data.batch import Batch, cut
from iddpm_ray.data.blocks import Block, Share, block_ranges
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.runtime.plan_source import PlanSource, from_table

# Ray's executor spins, at a core a rank, while blocks of a dataset wait to be taken. So they are taken at once, and what is decoded ahead
# is bounded by how long a dataset is.
_LEAST_SEGMENT_BYTES = 96 << 20
_MOST_SEGMENT_BYTES = 512 << 20
_MOST_BLOCKS = 64  # planning costs milliseconds a block
_FIRST_BLOCKS = 16  # a run should begin soon
# A dataset takes seconds to begin, so the next one does when the last is estimated to be used up in less than this.
_HEAD_START_S = 20.0


@dataclass(frozen=True)
class Tasks:
    """What read tasks may take.

    Attributes:
        count: blocks loaded at a time by all ranks together; every rank has at least one.
        cpus: CPUs that Ray sets aside for each.
        prefetch_blocks: finished blocks that a rank keeps besides.
    """

    count: int = 1
    cpus: float = 1.0
    prefetch_blocks: int = 2

    def of_rank(self, share: Share) -> int:
        """Blocks that a rank loads at a time."""
        own = order.slice_of(self.count, rank=share.rank, world_size=share.world_size)
        return max(1, own.stop - own.start)


def put_manifest(manifest: Manifest) -> ray.ObjectRef:
    """The manifest in the object store, where the tasks of a node share one copy."""
    return ray.put(np.frombuffer(manifests.to_bytes(manifest), dtype=np.uint8))


def keep_ray_data_here() -> None:
    """Makes on this process's node what Ray Data keeps for good: the machine of the first rank to read would never be idle again."""
    get_or_create_autoscaling_coordinator()
    get_or_create_stats_actor()
    get_or_create_usage_collection_actor()


def open_stream(
    manifest: ray.ObjectRef, share: Share, *, start_step: int = 0, stop_step: int | None = None, tasks: Tasks
) -> Generator[Batch, None, None]:
    """This rank's batch of every step from `start_step` on, endless without `stop_step`; the same as `local_stream` gives.

    Close it to free what it holds in the cluster.

    Args:
        manifest: from `put_manifest`.

    Raises:
        DataError: the original error of a task, from a `next` not later than the one that comes to its block.
    """
    begin = partial(_begin, manifest, share, tasks)
    segments = _segments(share, start_step=start_step, stop_step=stop_step, segment_bytes=_segment_bytes(share))
    in_flight = tasks.of_rank(share) + tasks.prefetch_blocks + 1
    expected = start_step
    upcoming: Future[Generator[Block, None, None]] | None = None
    pool = ThreadPoolExecutor(1, thread_name_prefix="next-segment")
    try:
        segment = next(segments, None)
        upcoming = pool.submit(begin, segment) if segment else None
        while upcoming is not None:
            left, current, upcoming = len(segment or ()), upcoming.result(), None
            began = time.monotonic()
            with closing(current):
                for used, block in enumerate(current, start=1):
                    left -= 1
                    soon = left < in_flight or left * (time.monotonic() - began) / used < _HEAD_START_S
                    if upcoming is None and soon and (segment := next(segments, None)):
                        upcoming = pool.submit(begin, segment)
                    for batch in cut(block):
                        assert (batch.step, batch.rank, len(batch.rows)) == (expected, share.rank, share.rows_per_step)
                        expected += 1
                        yield batch
    finally:
        if upcoming is not None and not upcoming.cancel():
            upcoming.add_done_callback(_close)  # nobody waits for a dataset to begin only to be closed
        pool.shutdown(wait=False)


def _close(begun: Future[Generator[Block, None, None]]) -> None:
    if begun.exception() is None:
        begun.result().close()


def _segment_bytes(share: Share) -> int:
    """An eighth of a rank's part of the object store: the dataset in use and the next one lie there, and Ray needs room to move."""
    store = ray.cluster_resources().get("object_store_memory", 0.0)
    return int(min(max(store / share.world_size / 8, _LEAST_SEGMENT_BYTES), _MOST_SEGMENT_BYTES))


def _segments(share: Share, *, start_step: int, stop_step: int | None, segment_bytes: int) -> Iterator[list[range]]:
    """The blocks of each dataset, as their steps."""
    blocks = block_ranges(share, start_step=start_step, stop_step=stop_step)
    block_bytes = share.block_steps * share.rows_per_step * share.decoding.num_bytes
    most = max(1, min(_MOST_BLOCKS, segment_bytes // block_bytes))
    for count in itertools.chain((min(_FIRST_BLOCKS, most),), itertools.repeat(most)):
        segment = list(itertools.islice(blocks, count))
        if not segment:
            return
        yield segment


def _begin(manifest: ray.ObjectRef, share: Share, tasks: Tasks, segment: list[range]) -> Generator[Block, None, None]:
    """Starts a dataset and waits for its first block."""
    count = tasks.of_rank(share)
    source = PlanSource(manifest, share, segment)
    dataset = ray.data.read_datasource(source, override_num_blocks=len(segment), num_cpus=tasks.cpus, concurrency=count)
    context = dataset.context
    context.execution_options.preserve_order = True
    context.execution_no_progress_timeout_s = -1  # a long evaluation between two steps is no hang
    context.target_max_block_size = None  # blocks are cut here, never there
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # Through a split of one, the executor runs in an actor of its own and not in the trainer process.
    reader = dataset.streaming_split(1, equal=True)[0]
    whole_blocks: Any = None  # allowed, though not declared so
    tables = iter(reader.iter_batches(batch_size=whole_blocks, batch_format="pyarrow", prefetch_batches=tasks.prefetch_blocks))
    blocks = _taken_over(_blocks(tables, share))
    return _after(next(blocks), blocks)


def _blocks(tables: Iterator[pa.Table], share: Share) -> Generator[Block, None, None]:
    try:
        for table in tables:
            yield from_table(table, share)
    except RayTaskError as error:
        raise _original(error) from None
    finally:
        tables.close()  # type: ignore[attr-defined]  # a generator, though not declared as one


def _taken_over(blocks: Generator[Block, None, None]) -> Generator[Block, None, None]:
    """The same blocks, taken by a thread as soon as they are ready: Ray's executor spins until the last of a dataset is taken."""
    ready: queue.SimpleQueue[Block | BaseException | None] = queue.SimpleQueue()
    closed = threading.Event()

    def take() -> None:
        try:
            with closing(blocks):
                for block in blocks:
                    if closed.is_set():
                        return
                    ready.put(block)
            ready.put(None)
        except BaseException as error:  # raised where the block was wanted
            ready.put(error)

    thread = threading.Thread(target=take, name="blocks", daemon=True)
    thread.start()
    try:
        while (got := ready.get()) is not None:
            if isinstance(got, BaseException):
                raise got
            yield got
    finally:
        closed.set()
        thread.join(timeout=60)


def _after(first: Block, rest: Generator[Block, None, None]) -> Generator[Block, None, None]:
    """A generator that has been started, given back its first value."""
    with closing(rest):
        yield first
        yield from rest


def _original(error: RayTaskError) -> Exception:
    """What a task raised, out of what Ray wrapped around it."""
    inner: Exception = error
    while isinstance(inner, RayTaskError) and isinstance(inner.cause, Exception) and inner.cause is not inner:
        inner = inner.cause
    return inner
