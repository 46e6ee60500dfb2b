"""Blocks of a rank's batches as read tasks of Ray Data. Needs no torch: every process that decodes pictures imports this."""

from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.blocks import Block, Share, load_block
from iddpm_ray.data.manifest import Manifest


class PlanSource(Datasource):
    """One read task a block; a task knows its steps and where the manifest is, nothing else."""

    def __init__(self, manifest: ray.ObjectRef, share: Share, blocks: list[range]) -> None:
        self._manifest, self._share, self._blocks = manifest, share, blocks
        self.block_bytes = max(len(steps) for steps in blocks) * share.rows_per_step * share.decoding.num_bytes

    def get_name(self) -> str:
        return "Pictures"

    def estimate_inmemory_data_size(self) -> int:
        return self.block_bytes * len(self._blocks)

    def get_read_tasks(self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None) -> list[ReadTask]:
        return [self._task(steps) for steps in self._blocks]

    def _task(self, steps: range) -> ReadTask:
        num_rows = len(steps) * self._share.rows_per_step
        metadata = BlockMetadata(num_rows=num_rows, size_bytes=num_rows * self._share.decoding.num_bytes, exec_stats=None, input_files=None)
        return ReadTask(partial(_load, self._manifest, self._share, steps), metadata)


def _load(manifest: ray.ObjectRef, share: Share, steps: range) -> list[pa.Table]:
    """What a read task does."""
    return [to_table(load_block(open_manifest(manifest), share, steps))]


@lru_cache(maxsize=2)
def open_manifest(reference: ray.ObjectRef) -> Manifest:
    """The manifest, opened once a process, its columns in the object store."""
    return manifests.from_bytes(ray.get(reference))


def to_table(block: Block) -> pa.Table:
    """A block as Ray Data carries it: a row a picture, with its step, rank and row."""
    count = len(block.rows)
    stride = block.pixels.nbytes // count
    columns = {
        "step": pa.array(block.steps),
        "rank": pa.array(np.full(count, block.rank, dtype=np.int32)),
        "row": pa.array(block.rows),
        "label": pa.array(block.labels),
        "substituted": pa.array(block.substituted),
        "pixels": pa.FixedSizeBinaryArray.from_buffers(pa.binary(stride), count, [None, pa.py_buffer(block.pixels)]),
    }
    return pa.table(columns)


def from_table(table: pa.Table, share: Share) -> Block:
    """The block again; its pixels point into the table."""
    pixels = table.column("pixels").combine_chunks()
    start = pixels.offset * share.decoding.num_bytes
    flat = np.frombuffer(pixels.buffers()[1], dtype=np.uint8)[start : start + len(pixels) * share.decoding.num_bytes]
    ranks = table.column("rank").to_numpy()
    assert (ranks == ranks[0]).all()
    return Block(
        rank=int(ranks[0]),
        steps=table.column("step").to_numpy(),
        rows=table.column("row").to_numpy(),
        pixels=flat.reshape(-1, *share.decoding.shape),
        labels=table.column("label").to_numpy(),
        substituted=table.column("substituted").to_numpy(),
    )
