"""Ranks as threads of one process, with an all-gather that insists that all ranks bring the same shape at the same time."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_PATIENCE_S = 20.0


class FakeWorld:
    """`world.run(function)` calls function(rank, exchange) on every rank and returns the results in rank order.

    `shapes` lists what was exchanged, call by call. A rank that raises or leaves early breaks the others' waiting at once.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.shapes: list[tuple[int, ...]] = []
        self._slots: list[Tensor | None] = [None] * size
        self._barrier = threading.Barrier(size, timeout=_PATIENCE_S)

    def run(self, function: Callable[[int, Callable[[Tensor], Tensor]], Any]) -> list[Any]:
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                results[rank] = function(rank, lambda tensor: self._exchange(rank, tensor))
            except BaseException as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)] or errors
        if first:
            raise first[0]
        return results

    def _exchange(self, rank: int, tensor: Tensor) -> Tensor:
        self._slots[rank] = tensor
        self._barrier.wait()
        everyone = [slot for slot in self._slots if slot is not None]
        if {(slot.shape, slot.dtype) for slot in everyone} != {(tensor.shape, tensor.dtype)}:
            raise AssertionError(f"ranks brought different shapes: {[(list(slot.shape), slot.dtype) for slot in everyone]}")
        together = torch.stack(everyone)
        if rank == 0:
            self.shapes.append(tuple(tensor.shape))
        self._barrier.wait()
        return together
