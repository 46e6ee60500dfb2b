"""Rows of moments: made from values, merged with each other, and read.

The last axis of a row is (count, num_nonfinite, m2, mean, -minimum, maximum): three that add, the mean, two that take the larger. m2 is
the sum of squared distances from the mean. Everything is float64 on the device of the values, masked by `where`, so nothing waits for the
device and no shape depends on data. Rows merge as Chan, Golub & LeVeque (1983, "Algorithms for computing the sample variance") and Welford
(1962) do, so a spread survives next to a mean many orders larger.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

WIDTH = 6


EMPTY = (0.0, 0.0, 0.0, 0.0, -math.inf, -math.inf)


@dataclass(frozen=True)
class Summary:
    """What one name's values amount to over an interval; NaN where no finite value was reported.

    Attributes:
        num: how many finite values.
        std: of the values themselves, divided by `num`: 0 for one value.
        num_nonfinite: infinities and NaNs, which enter nothing else.
    """

    num: int
    mean: float
    std: float
    minimum: float
    maximum: float
    num_nonfinite: int


def summary(row: list[float]) -> Summary:
    """Reads one row."""
    num, num_nonfinite, m2, mean, negated_minimum, maximum = row
    if num == 0:
        return Summary(0, math.nan, math.nan, math.nan, math.nan, int(num_nonfinite))
    return Summary(int(num), mean, math.sqrt(max(m2, 0.0) / num), -negated_minimum, maximum, int(num_nonfinite))


def empty(num_rows: int) -> Tensor:
    """Rows of no values, [num_rows, 6] on the CPU; merging one changes nothing."""
    return torch.tensor([EMPTY], dtype=torch.float64, device="cpu").repeat(num_rows, 1)


def something(rows: Tensor) -> Tensor:
    """Which rows [..., 6] any value went into: bool [...]."""
    return rows[..., 0] + rows[..., 1] > 0


def of_values(values: Tensor) -> Tensor:
    """The row of all values of a non-empty tensor of any shape and real dtype: [6]."""
    values = values.detach().to(torch.float64).flatten()
    finite = torch.isfinite(values)
    if values.shape[0] == 1:
        count = finite.to(torch.float64)
        mean = torch.where(finite, values, 0.0)
        extremes = torch.where(finite, torch.cat((-values, values)), -math.inf)
        return torch.cat((count, 1.0 - count, torch.zeros_like(count), mean, extremes))
    return _masked(values, finite, values.shape[0])


def of_groups(values: Tensor, index: Tensor, *, num_groups: int) -> Tensor:
    """A row a group: element i of the last axis belongs to group index[i].

    A dense mask and no scatter, whose order of additions a GPU would choose anew each time.

    Args:
        values: [..., n] of any real dtype, n > 0.
        index: int64 [n]; an element whose index is outside [0, num_groups) is left out.

    Returns:
        [..., num_groups, 6].
    """
    values = values.detach().to(torch.float64).unsqueeze(-2)
    member = index == torch.arange(num_groups, device=index.device)[:, None]
    return _masked(values, member & torch.isfinite(values), member.sum(dim=-1))


def merge(first: Tensor, second: Tensor) -> Tensor:
    """The rows of both sets of values together: [..., 6] and [..., 6] to [..., 6]."""
    added = first[..., :3] + second[..., :3]
    share = second[..., :1] / added[..., :1].clamp(min=1.0)
    mean = first[..., 3:4]
    distance = second[..., 3:4] - mean
    shift = distance * share
    added[..., 2:3] += distance * (first[..., :1] * shift)
    return torch.cat((added, mean + shift, torch.maximum(first[..., 4:], second[..., 4:])), dim=-1)


def fold(rows: Tensor) -> Tensor:
    """All rows of the first axis merged, in its order: [W, n, 6] to [n, 6]."""
    merged = rows[0]
    for other in rows[1:]:
        merged = merge(merged, other)
    return merged


def empty_number() -> list[float]:
    """A row of no values kept on the host: after its six numbers, what rounding took from the mean."""
    return [*EMPTY, 0.0]


def add_number(row: list[float], value: float) -> None:
    """Merges one Python number into a row kept on the host.

    The mean is kept in two parts, as Knuth's TwoSum splits a sum, so that a mean whose rounding is as large as the spread does not stand
    still while values come.
    """
    if not math.isfinite(value):
        row[1] += 1.0
        return
    row[0] += 1.0
    distance = (value - row[3]) - row[6]
    before, step = row[3], distance / row[0] + row[6]
    row[3] = before + step
    taken = row[3] - before
    row[6] = (before - (row[3] - taken)) + (step - taken)
    row[2] += distance * ((value - row[3]) - row[6])
    row[4], row[5] = max(row[4], -value), max(row[5], value)


def rows_of_number(row: list[float]) -> Tensor:
    """A row kept on the host as rows that merge with those of other ranks, the row and what rounding took from its mean: [2, 6]."""
    rest = (row[0], 0.0, 0.0, row[6], -math.inf, -math.inf)
    return torch.tensor([row[:WIDTH], rest], dtype=torch.float64, device="cpu")


def number_of_rows(rows: Tensor) -> list[float]:
    """The row kept on the host that `rows_of_number` gave; of the row alone [1, 6], as it was once saved, without the rest."""
    return [*rows[0].tolist(), rows[1, 3].item() if rows.shape[0] > 1 else 0.0]


def _masked(values: Tensor, mask: Tensor, size: Tensor | int) -> Tensor:
    """Rows over the last axis of the values that `mask` keeps, of `size` candidates each."""
    count = mask.sum(dim=-1, dtype=torch.float64)
    mean = torch.where(mask, values, 0.0).sum(dim=-1) / count.clamp(min=1.0)
    distance = torch.where(mask, values - mean.unsqueeze(-1), 0.0)
    m2 = (distance * distance).sum(dim=-1)
    negated_minimum = torch.where(mask, -values, -math.inf).amax(dim=-1)
    maximum = torch.where(mask, values, -math.inf).amax(dim=-1)
    return torch.stack((count, size - count, m2, mean, negated_minimum, maximum), dim=-1)
