"""Times two ways of doing one thing, alternately, and speaks only of their ratio: a shared machine has good and bad minutes."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """Paired timings of one benchmark, seconds a call.

    Attributes:
        name: what is compared.
        ours, peer: seconds of each repeat, taken alternately.
        ours_label, peer_label: what the two ways are, in a few words.
        goal: what the ratio ought to be, in words.
    """

    name: str
    ours: tuple[float, ...]
    peer: tuple[float, ...]
    ours_label: str
    peer_label: str
    goal: str = ""

    def ratios(self) -> list[float]:
        """Peer's time over ours, pair by pair: above one, ours is faster."""
        return [peer / ours for ours, peer in zip(self.ours, self.peer, strict=True)]


@dataclass(frozen=True)
class Measurement:
    """A number that is compared with nothing, with the spread of its repeats."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    note: str = ""


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
    goal: str = "",
    repeats: int = 9,
    calls: int = 1,
    sync: Callable[[], object] = lambda: None,
) -> Comparison:
    """Runs both ways by turns, `calls` times each turn; the first turn of both is thrown away, and who begins changes every turn.

    Args:
        sync: waits for the device; called before the clock is read.
    """
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for repeat in range(repeats + 1):
        pair = [("ours", ours), ("peer", peer)]
        for side, call in pair if repeat % 2 else reversed(pair):
            seconds = timed(call, calls=calls, sync=sync)
            if repeat:
                times[side].append(seconds)
    return Comparison(name, tuple(times["ours"]), tuple(times["peer"]), ours_label=ours_label, peer_label=peer_label, goal=goal)


def timed(call: Callable[[], object], *, calls: int = 1, sync: Callable[[], object] = lambda: None) -> float:
    """Seconds a call, over `calls` of them."""
    sync()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    sync()
    return (time.perf_counter() - began) / calls
