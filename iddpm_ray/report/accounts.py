"""The account of a whole run: every attempt's, the gaps between them, and what it adds up to. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from iddpm_ray.checkpoint.attempts import Attempt, lineage
from iddpm_ray.report.attempt import Account, account
from iddpm_ray.report.categories import START, in_order

GOES_ON = ("preempted", "grown", "lost", "failed", "hung")
"""Endings after which the driver itself begins the next attempt."""

COUNTED = {
    "preempted": ("preemption", "preemptions"),
    "lost": ("machine lost", "machines lost"),
    "failed": ("failure", "failures"),
    "hung": ("hang", "hangs"),
    "grown": ("growth", "growths"),
}
"""Endings that interrupt a run, each counted by itself: one, and several."""


@dataclass(frozen=True)
class Restart:
    """From the end of use of one attempt to the first step of the next.

    Attributes:
        attempt: the one that began.
        phases: seconds by phase; without those before it where the run was started anew by a person.
        stepped: whether its first step was reached; if not, the phases end where it did.
    """

    attempt: int
    phases: Mapping[str, float]
    stepped: bool

    @property
    def seconds(self) -> float:
        """All phases."""
        return sum(self.phases.values())


@dataclass(frozen=True)
class RunAccount:
    """Where the time of a run went.

    Attributes:
        seconds: worker-seconds by category; they add up to `total`.
        goodput: the productive part of all; None if there is no time.
        step: updates completed that count.
        redone: steps that were done again, or would have to be.
        endings: how often attempts ended in which way.
        worker_hours: all worker-seconds, gaps included.
        cost: money; None without a price.
    """

    attempts: tuple[Account, ...]
    restarts: tuple[Restart, ...]
    seconds: Mapping[str, float]
    step: int
    endings: Mapping[str, int]
    cost: float | None

    @property
    def total(self) -> float:
        """All worker-seconds."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float | None:
        """The productive part of all worker-seconds."""
        return self.seconds.get("productive", 0.0) / self.total if self.total > 0 else None

    @property
    def unaccounted(self) -> float:
        """The part of all worker-seconds that is in no category."""
        return self.seconds.get("unaccounted", 0.0) / self.total if self.total > 0 else 0.0

    @property
    def worker_hours(self) -> float:
        """All worker-seconds in hours."""
        return self.total / 3600

    @property
    def redone(self) -> int:
        """Steps done again."""
        return sum(each.redone for each in self.attempts)

    @property
    def step_s(self) -> float | None:
        """Mean seconds of a step, those done again included; None if none was done."""
        steps = sum(each.workers * max(0, each.reached - each.from_step) for each in self.attempts)
        spent = sum(each.seconds.get("productive", 0.0) + each.seconds.get("redone", 0.0) for each in self.attempts)
        return spent / steps if steps else None


def run_account(known: Sequence[Attempt], *, price: float | None = None) -> RunAccount:
    """Adds everything up.

    Args:
        known: the run's attempts by number.
        price: of a worker for an hour, where an attempt's own record has none.
    """
    chain = {link.attempt: link for link in lineage(list(known))}
    each = tuple(
        account(
            attempt,
            upto=chain[attempt.number].upto_step if attempt.number in chain else None,
            in_lineage=attempt.number in chain,
            newest=attempt is known[-1],
            start_phases=START,
        )
        for attempt in known
    )
    idle = {later.number: _idle(one, later) for one, later in pairwise(each)}
    seconds = {name: sum(one.seconds.get(name, 0.0) for one in each) for name in in_order({name for one in each for name in one.seconds})}
    seconds["idle"] = sum(gap * workers for gap, workers in idle.values())
    prices = [one.price if one.price is not None else price for one in each]
    cost = None
    if any(amount is not None for amount in prices):
        cost = sum(
            (one.worker_seconds + _product(idle.get(one.number, (0.0, 0)))) / 3600 * (amount or 0.0)
            for one, amount in zip(each, prices, strict=True)
        )
    return RunAccount(
        attempts=each,
        restarts=tuple(_restart(one, before, idle) for before, one in zip([None, *each], each, strict=False)),
        seconds=seconds,
        step=max((one.kept for one in each if one.number in chain), default=0),
        endings=Counter(one.why for one in each),
        cost=cost,
    )


def _idle(one: Account, later: Account) -> tuple[float, int]:
    """Seconds between two attempts of one driver, and how many workers both had; a person's pause is no part of the run."""
    same = one.driver is None or later.driver is None or one.driver == later.driver
    if one.why not in GOES_ON or not same or one.ended is None or later.began is None:
        return 0.0, 0
    return max(0.0, later.began - one.ended), min(one.workers, later.workers)


def _restart(one: Account, before: Account | None, idle: Mapping[int, tuple[float, int]]) -> Restart:
    gap, workers = idle.get(one.number, (0.0, 0))
    ended = {"detect": before.detect, "stop": before.stop, "idle": gap} if before is not None and workers else {}
    return Restart(one.number, {**ended, **one.start}, one.stepped)


def _product(gap: tuple[float, int]) -> float:
    return gap[0] * gap[1]
