"""Signs of life: what each rank says of itself once a second, and, out of that, who has hung."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STARTING_FACTOR = 4  # until the first step is done: it compiles
# A save has bounds of its own (the saver's patience, the time-out of its exchanges); a slow store is no hang.
BOUNDED = ("save", "stop")


@dataclass(frozen=True)
class Pulse:
    """What a rank says of itself.

    Attributes:
        moves: phases that it has begun; it moves on as long as this rises.
        node, pid: where it can be found.
        notice: wall second at which it learnt of a preemption; None if of none.
        report: its ledger, with its step and phase.
    """

    rank: int
    moves: int
    node: str
    pid: int
    notice: float | None = None
    report: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """As the attempt's record keeps it."""
        return {**self.report, "node": self.node, "pid": self.pid, "notice": self.notice}


@dataclass(frozen=True)
class Heard:
    """The last pulse of a rank, and how long ago, by one clock, it came and it last told of a move."""

    pulse: Pulse
    silent_s: float = 0.0
    still_s: float = 0.0


@dataclass(frozen=True)
class Hang:
    """The rank that holds up the group, in words."""

    rank: int
    sentence: str


@dataclass
class Listener:
    """Keeps the last pulse of every rank."""

    _pulses: dict[int, Pulse] = field(default_factory=dict)
    _came: dict[int, float] = field(default_factory=dict)
    _moved: dict[int, float] = field(default_factory=dict)

    def hear(self, pulse: Pulse, *, now: float) -> None:
        """A pulse has come at that moment."""
        before = self._pulses.get(pulse.rank)
        if before is None or before.moves != pulse.moves:
            self._moved[pulse.rank] = now
        self._pulses[pulse.rank], self._came[pulse.rank] = pulse, now

    def heard(self, *, now: float) -> dict[int, Heard]:
        """What is known of every rank that has spoken."""
        return {rank: Heard(pulse, now - self._came[rank], now - self._moved[rank]) for rank, pulse in sorted(self._pulses.items())}


def find_hang(heard: Mapping[int, Heard], *, timeout_s: float, workers: int | None = None, since_s: float = 0.0) -> Hang | None:
    """The rank that shows no sign of life, or the one furthest behind when no rank has moved on for the time-out.

    Args:
        heard: of every rank that has spoken.
        timeout_s: `cluster.hang_timeout_s`.
        workers: ranks of the group; None if it is not known who is missing.
        since_s: how long ago the first rank spoke for the first time.
    """
    if not heard:
        return None
    missing = sorted(set(range(workers or 0)) - set(heard))
    if missing and since_s > timeout_s * STARTING_FACTOR:
        return Hang(missing[0], f"rank {missing[0]} has shown no sign of life since its group began {since_s:.0f} s ago")
    started = all(one.pulse.report.get("first_step") is not None for one in heard.values())
    bound = timeout_s if started else timeout_s * STARTING_FACTOR
    silent = max(heard.values(), key=lambda one: one.silent_s)
    if silent.silent_s > min(bound, timeout_s):
        return Hang(silent.pulse.rank, f"rank {silent.pulse.rank} shows no sign of life for {silent.silent_s:.0f} s, {where(silent.pulse)}")
    saving = any(one.pulse.report.get("phase") in BOUNDED for one in heard.values())
    if not saving and min(one.still_s for one in heard.values()) > bound:  # whoever is stuck, the others soon wait for
        culprit = furthest_behind(heard)
        return Hang(culprit.rank, f"rank {culprit.rank} has not moved on for {heard[culprit.rank].still_s:.0f} s, {where(culprit)}")
    return None


def furthest_behind(heard: Mapping[int, Heard]) -> Pulse:
    """The rank that the others wait for: the fewest steps, then the fewest phases begun, then the longest silence."""
    return min(heard.values(), key=lambda one: (one.pulse.report.get("step") or 0, one.pulse.moves, -one.silent_s)).pulse


def where(pulse: Pulse) -> str:
    """The place of a rank in words."""
    step, phase = pulse.report.get("step"), pulse.report.get("phase", "start")
    return f"in phase {phase!r}" + ("" if step is None else f" after step {step}")
