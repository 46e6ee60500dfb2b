"""The peer of the data stream: torch's DataLoader over the same files with the same transform."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Files(Dataset[Tensor]):
    """Picture files, decoded by a given function from bytes to [C, H, W] uint8."""

    def __init__(self, paths: Sequence[Path], decode: Callable[[bytes], Tensor]) -> None:
        self._paths, self._decode = list(paths), decode

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Tensor:
        return self._decode(self._paths[index].read_bytes())


class Rows(Dataset[Tensor]):
    """Rows of shards of raw pixels, mapped into memory; all shards but the last are of one length."""

    def __init__(self, shards: Sequence[Path], shape: tuple[int, int, int]) -> None:
        self._shards = [np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, *shape) for path in shards]

    def __len__(self) -> int:
        return sum(len(shard) for shard in self._shards)

    def __getitem__(self, index: int) -> Tensor:
        shard, row = divmod(index, len(self._shards[0]))
        return torch.from_numpy(np.array(self._shards[shard][row]))


def endless_batches(
    dataset: Any, *, batch: int, workers: int, seed: int = 0, begin: Callable[[int], None] | None = None
) -> Iterator[Tensor]:
    """Shuffled batches [batch, C, H, W] uint8 for ever; the last, smaller one of an epoch is dropped.

    Args:
        begin: called in each worker process with its number.
    """
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        dataset,
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        worker_init_fn=begin,
        generator=generator,
    )
    if len(loader) == 0:
        raise ValueError(f"{len(dataset)} pictures do not fill a batch of {batch}")
    while True:
        yield from loader
