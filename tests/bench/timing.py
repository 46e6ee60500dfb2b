"""Times two ways of doing one thing, by turns, and speaks only of their ratio: a shared machine has good and bad minutes."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Effort:
    """How long to measure; a quick look says only that a benchmark runs.

    Attributes:
        quick: as few repeats and as little work as possible.
    """

    quick: bool = False

    def of(self, full: int, *, quick: int = 2) -> int:
        """A number of repeats, steps or pictures."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Comparison:
    """Paired measurements of one benchmark.

    Attributes:
        name: what is compared.
        ours, peer: seconds a call of each repeat, taken by turns; or bytes.
        ours_label, peer_label: what the two ways are, in a few words.
        at_most: what the ratio ought not to exceed; None where nothing was promised.
        note: what else a reader must know.
        unit: of both.
    """

    name: str
    ours: tuple[float, ...]
    peer: tuple[float, ...]
    ours_label: str
    peer_label: str
    at_most: float | None = None
    note: str = ""
    unit: Literal["s", "bytes"] = "s"

    def ratios(self) -> list[float]:
        """Our time over the peer's, pair by pair: below one, ours is faster."""
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    def verdict(self) -> str:
        """Whether the median ratio is what it ought to be."""
        if self.at_most is None:
            return ""
        return f"at most {self.at_most:g}: {'met' if spread(self.ratios()).median <= self.at_most else 'MISSED'}"


@dataclass(frozen=True)
class NotRun:
    """A benchmark that this machine cannot make, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Spread:
    """Median and the middle half (first and third quartile) of some numbers."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; of a single value, that value thrice."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def compare(
    name: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    ours_label: str,
    peer_label: str,
    at_most: float | None = None,
    note: str = "",
    repeats: int = 9,
    calls: int = 1,
    sync: Callable[[], object] = lambda: None,
) -> Comparison:
    """Runs both ways by turns, `calls` times each turn.

    Args:
        sync: waits for the device; called before the clock is read.
    """
    times = by_turns(
        {"ours": lambda: timed(ours, calls=calls, sync=sync), "peer": lambda: timed(peer, calls=calls, sync=sync)}, repeats=repeats
    )
    return Comparison(name, times["ours"], times["peer"], ours_label=ours_label, peer_label=peer_label, at_most=at_most, note=note)


def by_turns(ways: dict[str, Callable[[], float]], *, repeats: int) -> dict[str, tuple[float, ...]]:
    """The seconds that each way says it took; the first turn of all is thrown away, and every turn goes the other way round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name in list(ways) if repeat % 2 else reversed(list(ways)):
            seconds = ways[name]()
            if repeat:
                times[name].append(seconds)
    return {name: tuple(values) for name, values in times.items()}


def timed(call: Callable[[], object], *, calls: int = 1, sync: Callable[[], object] = lambda: None) -> float:
    """Seconds a call, over `calls` of them."""
    sync()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    sync()
    return (time.perf_counter() - began) / calls
