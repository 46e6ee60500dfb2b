"""The one small tensor that ranks exchange each step: per-sample values of unequal slices, and a word from each rank."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Gathered:
    """Every rank's part, equal on all ranks.

    Attributes:
        values: [K, G] float32, samples in rank order, which is position order.
        words: [world_size] float32, each rank's word.
    """

    values: Tensor
    words: Tensor


class SampleGather:
    """Gathers [K, n_r] per-sample values and a word from ranks whose slices are `counts` samples long.

    One all-gather of one shape that all ranks know beforehand, whatever the slices; it runs beside the optimiser until `wait`.
    """

    def __init__(self, counts: Sequence[int], *, rank: int, num_values: int, device: torch.device) -> None:
        width = max(counts)
        self._own = torch.zeros(num_values * width + 1, dtype=torch.float32, device=device)
        self._all = torch.zeros(len(counts), num_values * width + 1, dtype=torch.float32, device=device)
        self._shape = (num_values, width)
        self._count = counts[rank]
        order = [r * width + i for r, count in enumerate(counts) for i in range(count)]
        self._order = torch.tensor(order, dtype=torch.int64, device=device)
        self._work: dist.Work | None = None

    def start(self, values: Tensor, word: float) -> None:
        """Sends this rank's [K, n_r] values and its word on their way."""
        num_values, width = self._shape
        self._own[:-1].view(num_values, width)[:, : self._count].copy_(values)
        self._own[-1].fill_(word)
        if self._all.shape[0] == 1:
            self._all[0].copy_(self._own)
        else:
            self._work = dist.all_gather_single(self._all.view(-1), self._own, async_op=True)

    def wait(self) -> Gathered:
        """The gathered values; copies, so the next `start` may follow at once."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        num_values, width = self._shape
        table = self._all[:, :-1].view(-1, num_values, width).transpose(0, 1).reshape(num_values, -1)
        return Gathered(values=table.index_select(1, self._order), words=self._all[:, -1].clone())
