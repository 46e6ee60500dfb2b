"""Reporting: values are folded into rows of moments where they lie, on their own device, without waiting for it.

Since the last reading there is one open segment: a block of rows [n, 6] a set of names reported together, and host rows for Python
numbers. A reading closes it: one copy to the host, merged into the interval of every collector. So reporting costs the same however many
collectors there are, no interval is ever computed by subtraction, and a checkpoint (which closes nothing) leaves no trace in the sums.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Complex, Real
from typing import SupportsFloat, TypeGuard, TypeVar

import torch
from torch import Tensor

from iddpm_ray.stats import moments
from iddpm_ray.stats.table import Table

Value = TypeVar("Value")


@dataclass
class Books:
    """What is kept for one collector: its open interval on this rank, and what its last update found on all ranks together."""

    interval: Table = field(default_factory=Table)
    latest: Table = field(default_factory=Table)


class Statistics:
    """All that one rank has reported.

    Args:
        rank: `report0` counts on rank 0 only.
        device: where tensors must lie to be exchanged with other ranks; values may lie anywhere.
    """

    def __init__(self, *, rank: int = 0, device: torch.device | str = "cpu") -> None:
        self.rank = rank
        self.device = torch.device(device)
        self.names: set[str] = set()
        self.blocks: dict[tuple[str, tuple[str, ...]], Tensor] = {}
        self.numbers: dict[str, list[float]] = {}
        self.books: dict[str, Books] = {}
        self._attached: dict[str, int] = {}
        self._lock = threading.Lock()

    def report(self, name: str, value: Value) -> Value:
        """Counts every element of a tensor, array, number or (nested, possibly empty) sequence under `name`, and returns the value.

        Raises:
            TypeError: complex values.
        """
        if _is_number(value):
            self._add_number(name, _as_float(value))
            return value
        tensor = _as_tensor(value, name)
        if tensor.numel() == 0:
            self.register((name,))
        else:
            self._add((name,), moments.of_values(tensor)[None])
        return value

    def report0(self, name: str, value: Value) -> Value:
        """As `report` on rank 0; elsewhere the name becomes known and nothing is counted."""
        if self.rank == 0:
            return self.report(name, value)
        self.register((name,))
        return value

    def report_groups(self, names: Sequence[str], values: Tensor, index: Tensor) -> None:
        """Counts element i under names[index[i]], all in one pass.

        Args:
            names: G different names. With leading axes of `values`, G for each of their entries, the last axis fastest.
            values: [n] or [..., n].
            index: int64 [n] on the device of `values`; an element whose index is outside [0, G) is left out.

        Raises:
            TypeError: complex values.
        """
        names = tuple(names)
        _check_real(values, ", ".join(names[:3]))
        num_groups, over = divmod(len(names), max(values.shape[:-1].numel(), 1))
        if over:
            raise ValueError(f"{len(names)} names do not divide among values {list(values.shape)}")
        if values.numel() == 0 or num_groups == 0:
            self.register(names)
        else:
            self._add(names, moments.of_groups(values, index, num_groups=num_groups).reshape(len(names), moments.WIDTH))

    def report0_groups(self, names: Sequence[str], values: Tensor, index: Tensor) -> None:
        """As `report_groups` on rank 0; elsewhere the names become known and nothing is counted."""
        if self.rank == 0:
            self.report_groups(names, values, index)
        else:
            self.register(names)

    def register(self, names: Sequence[str]) -> None:
        """Makes names known, without a value."""
        self.names.update(names)

    def attach(self, regex: str) -> Books:
        """The books of a new collector: empty from here on, or restored ones where a restored run had a collector of the same regex.

        Collectors of one regex are told apart by the order in which they attach.
        """
        number = self._attached.get(regex, 0)
        self._attached[regex] = number + 1
        key = f"{number}:{regex}"
        if key not in self.books:
            self.close_segment()
            self.books[key] = Books()
        return self.books[key]

    def close_segment(self) -> None:
        """Reads everything reported since the last call (waits for the devices) and merges it into all intervals."""
        with self._lock:
            blocks, self.blocks = self.blocks, {}
            numbers, self.numbers = self.numbers, {}
        # Sorted, because a restored run may have met the names in another order.
        keys = sorted(blocks)
        closed: list[tuple[Sequence[str], Tensor]] = []
        for device in sorted({key[0] for key in keys}):
            mine = [key for key in keys if key[0] == device]
            rows = torch.cat([blocks[key] for key in mine]).cpu()
            closed += [(key[1], part) for key, part in zip(mine, rows.split([len(key[1]) for key in mine]), strict=True)]
        if numbers:
            names = sorted(numbers)
            closed.append((names, torch.stack([moments.rows_of_number(numbers[name])[0] for name in names])))
        for books in self.books.values():
            for names, rows in closed:
                books.interval.merge(names, rows)

    def _add(self, names: tuple[str, ...], rows: Tensor) -> None:
        key = (rows.device.type, names)
        with self._lock:
            block = self.blocks.get(key)
            if block is None:
                if len(set(names)) != len(names):
                    raise ValueError(f"names reported together must differ: {list(names)}")
                self.names.update(names)
                self.blocks[key] = rows
            else:
                # A restored block lies on the host until its first value comes.
                self.blocks[key] = moments.merge(block.to(rows.device, non_blocking=True), rows)

    def _add_number(self, name: str, value: float) -> None:
        with self._lock:
            row = self.numbers.get(name)
            if row is None:
                self.names.add(name)
                row = self.numbers[name] = moments.empty_number()
            moments.add_number(row, value)


_current = Statistics()


def use(statistics: Statistics) -> Statistics:
    """Makes these the statistics that `report` counts in, for this whole process; returns them."""
    global _current
    _current = statistics
    return statistics


def current() -> Statistics:
    """The statistics in use: before any `use`, those of a lone rank 0."""
    return _current


def report(name: str, value: Value) -> Value:
    """Counts every element of `value` under `name` in the current statistics, and returns it."""
    return _current.report(name, value)


def report0(name: str, value: Value) -> Value:
    """As `report`, but only rank 0 counts."""
    return _current.report0(name, value)


def report_groups(names: Sequence[str], values: Tensor, index: Tensor) -> None:
    """Counts element i of `values` under names[index[i]] in the current statistics."""
    _current.report_groups(names, values, index)


def _is_number(value: object) -> TypeGuard[SupportsFloat]:
    return hasattr(value, "__float__") and not hasattr(value, "__len__") and (isinstance(value, Real) or not isinstance(value, Complex))


def _as_float(value: SupportsFloat) -> float:
    """The number, or infinity for a whole number that is larger than any float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _as_tensor(value: object, name: str) -> Tensor:
    """A tensor of whatever can be reported; Python numbers keep their 64 bits."""
    if isinstance(value, (list, tuple)):
        parts = [_as_tensor(part, name).to(torch.float64).flatten() for part in value]
        return torch.cat(parts) if parts else torch.empty(0, device="cpu")
    if _is_number(value):
        return torch.tensor(_as_float(value), dtype=torch.float64, device="cpu")
    tensor = value.detach() if isinstance(value, Tensor) else torch.as_tensor(value)
    _check_real(tensor, name)
    return tensor


def _check_real(values: Tensor, name: str) -> None:
    if values.is_complex():
        raise TypeError(f"{name}: complex values have no order: report their absolute values, or real and imaginary parts by themselves")
