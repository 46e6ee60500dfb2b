"""The peer of the data stream: torch's DataLoader over the same files with the same transform."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

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


def endless_batches(
    paths: Sequence[Path], decode: Callable[[bytes], Tensor], *, batch: int, workers: int, seed: int = 0
) -> Iterator[Tensor]:
    """Shuffled batches [batch, C, H, W] uint8 for ever; the last, smaller one of an epoch is dropped."""
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        Files(paths, decode),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=generator,
    )
    if len(loader) == 0:
        raise ValueError(f"{len(paths)} files do not fill a batch of {batch}")
    while True:
        yield from loader
