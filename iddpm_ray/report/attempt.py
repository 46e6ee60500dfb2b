"""The account of one attempt: its workers' seconds by category, out of what its ranks and its driver recorded. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iddpm_ray.checkpoint.attempts import Attempt

GRACEFUL = ("finished", "stopped", "preempted", "grown")
"""Endings in which the ranks themselves came to an end; all others took them unawares."""


LATEST = 253402300799.0  # wall seconds at the end of the year 9999
MOST_WORKERS = 65536


@dataclass(frozen=True)
class Account:
    """Where the time of one attempt went.

    Attributes:
        why: how it ended, as recorded; `running` or `unknown` where nobody said.
        cause: in one sentence.
        began, ended: wall seconds between which it had its workers, as far as is known; None if not even that is.
        from_step, reached, kept: updates completed when it began, at most, and those the run goes on from.
        redone: steps done again by a later attempt, or that one would have to do again.
        seconds: worker-seconds by category; with `unaccounted` they are workers x (ended - began).
        start: mean seconds a worker of each phase of the start.
        detect, stop: mean seconds a worker from the end of use until the driver knew, and from then to the end.
        stepped: whether it did a step.
        notes: what is not known, or worth a word.
    """

    number: int
    workers: int
    why: str
    cause: str
    began: float | None
    ended: float | None
    from_step: int
    reached: int
    kept: int
    seconds: Mapping[str, float]
    start: Mapping[str, float]
    detect: float = 0.0
    stop: float = 0.0
    price: float | None = None
    driver: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def redone(self) -> int:
        """Steps that were not kept."""
        return max(0, self.reached - self.kept)

    @property
    def stepped(self) -> bool:
        """Whether it did a step."""
        return self.reached > self.from_step

    @property
    def worker_seconds(self) -> float:
        """Workers x time."""
        return 0.0 if self.began is None or self.ended is None else self.workers * (self.ended - self.began)


@dataclass(frozen=True)
class Rank:
    """What one rank said last."""

    began: float
    now: float
    seconds: Mapping[str, float]
    steps: int | None = None
    unfinished: float = 0.0
    notice: float | None = None

    def lost_step(self) -> tuple[float, float]:
        """Seconds in the step that was never done: its work, and waiting for ranks that had gone, which is what exceeds a usual step."""
        if self.steps is None or self.steps < 2:
            return self.unfinished, 0.0
        usual = (self.seconds.get("productive", 0.0) - self.unfinished) / (self.steps - 1)
        half = min(self.unfinished, usual)
        return half, self.unfinished - half


@dataclass
class Spans:
    """What of an attempt is known by the clock."""

    began: float
    ended: float
    noticed: float | None
    graceful: bool
    seconds: dict[str, float] = field(default_factory=dict)
    start: dict[str, float] = field(default_factory=dict)
    detect: float = 0.0
    stop: float = 0.0


def account(attempt: Attempt, *, upto: int | None, in_lineage: bool, newest: bool, start_phases: tuple[str, ...]) -> Account:
    """The account of an attempt.

    Args:
        upto: the step that the lineage left it at; None if it is the lineage's end.
        in_lineage: whether the run goes over it.
        newest: whether no later attempt was taken.
        start_phases: categories that make up a start.
    """
    info, end = attempt.info, attempt.end or {}
    why = str(end.get("why") or ("running" if newest else "unknown"))
    ranks, notes = _ranks(attempt)
    wrong = {key: said[key] for said in (info, end) for key in ("began", "ended", "noticed") if number(said.get(key, 0)) is None}
    if _workers(info.get("workers", 0)) is None:
        wrong["workers"] = info["workers"]
    notes += [f"recorded as {key} = {str(value)[:40]}, which is not believed" for key, value in wrong.items() if value is not None]
    workers = _workers(info.get("workers")) or len(ranks) or 1
    began = number(info.get("began")) or number(end.get("began")) or min((rank.began for rank in ranks.values()), default=None)
    ended = number(end.get("ended")) or max((rank.now for rank in ranks.values()), default=None)
    reached = _reached(attempt)
    kept = _kept(attempt, reached=reached, upto=upto, in_lineage=in_lineage, why=why)
    seconds: dict[str, float] = {}
    spans = None
    if began is None or ended is None:
        notes.append("nothing is known of its time, which is not counted")
    else:
        spans = Spans(began, max(began, ended), number(end.get("noticed")), why in GRACEFUL or not attempt.end)
        _book(spans, ranks, workers, told="ranks" in end)
        seconds = _divide(spans, attempt, ranks.get(0), reached=reached, kept=kept)
        seconds["unaccounted"] = workers * (spans.ended - spans.began) - sum(seconds.values())
        if not attempt.end:
            notes.append("no end was recorded: counted up to what its rank 0 said last, at its last commit")
    told = [rank.notice for rank in ranks.values() if rank.notice is not None]
    if told and ended is not None:
        notes.append(
            f"{len(told)} ranks were told within {max(told) - min(told):.1f} s, {max(0.0, ended - min(told)):.1f} s before the end"
        )
    return Account(
        number=attempt.number,
        workers=workers,
        why=why,
        cause=_cause(end, why),
        began=began,
        ended=None if spans is None else spans.ended,
        from_step=attempt.from_step,
        reached=reached,
        kept=kept,
        seconds=seconds,
        start={} if spans is None else {name: spans.start.get(name, 0.0) / workers for name in start_phases},
        detect=0.0 if spans is None else spans.detect / workers,
        stop=0.0 if spans is None else spans.stop / workers,
        price=number(info.get("price_per_worker_hour")),
        driver=str(info["driver"]) if info.get("driver") else None,
        notes=tuple(notes),
    )


def _ranks(attempt: Attempt) -> tuple[dict[int, Rank], list[str]]:
    """What the ranks said last: all of them to the driver, or rank 0 at its last commit, which then stands for all."""
    end = attempt.end or {}
    told = mapping(end.get("ranks"))
    ranks = {int(name): rank for name, said in told.items() if str(name).isdecimal() and (rank := _rank(mapping(said)))}
    if ranks or told:
        return ranks, []
    first = _rank(mapping(attempt.info.get("ledger")))
    if first is None:
        return {}, ["its ranks recorded nothing of their time"]
    return dict.fromkeys(range(_workers(attempt.info.get("workers")) or 1), first), [
        "rank 0's account at its last commit stands for all ranks"
    ]


def _rank(said: Mapping[str, Any]) -> Rank | None:
    began, now, ledger = number(said.get("began")), number(said.get("now")), mapping(said.get("ledger"))
    if began is None or now is None or not ledger:
        return None
    seconds = {str(name): value for name, spent in ledger.items() if (value := number(spent)) is not None and value >= 0}
    return Rank(began, now, seconds, whole(said.get("steps")), number(said.get("unfinished")) or 0.0, number(said.get("notice")))


def _book(spans: Spans, ranks: Mapping[int, Rank], workers: int, *, told: bool) -> None:
    """Adds up all workers. One that never said anything had not come to its first words: it was being scheduled."""
    noticed = spans.ended if spans.noticed is None else min(max(spans.noticed, spans.began), spans.ended)
    for index in range(workers):
        rank = ranks.get(index)
        own: dict[str, float] = {}
        detect = stop = 0.0
        if rank is not None:
            tail = max(0.0, spans.ended - rank.now) if told else 0.0
            detect = 0.0 if spans.graceful else min(max(0.0, noticed - rank.now), tail)
            stop = tail - detect
            own = dict(rank.seconds)
            own["import"] = max(0.0, own.get("import", 0.0) - max(0.0, spans.began - rank.began))
            own["schedule"] = max(0.0, rank.began - spans.began)
            half, waited = (0.0, 0.0) if spans.graceful else rank.lost_step()
            own["productive"] = own.get("productive", 0.0) - half - waited
            own["redone"] = half
            detect += waited
        elif told:
            own["schedule"] = noticed - spans.began
            stop = spans.ended - noticed
        for name, value in own.items():
            spans.start[name] = spans.start.get(name, 0.0) + value
        own["detect"], own["stopping"] = detect, own.get("stopping", 0.0) + stop
        spans.detect, spans.stop = spans.detect + detect, spans.stop + stop
        for name, value in own.items():
            spans.seconds[name] = spans.seconds.get(name, 0.0) + value


def _divide(spans: Spans, attempt: Attempt, first: Rank | None, *, reached: int, kept: int) -> dict[str, float]:
    """Productive time split into kept and redone: by rank 0's account at the commit gone on from, else by the number of steps."""
    share = 0.0
    if kept < reached:  # the first step of an attempt is booked as part of its start
        share = min(1.0, (reached - kept) / max(1, reached - attempt.from_step - 1))
        ledger = mapping(mapping(attempt.info.get("ledger")).get("ledger"))
        at_commit = number(ledger.get("productive"))
        if attempt.info.get("committed") == kept and at_commit is not None and first is not None:
            done = first.seconds.get("productive", 0.0) - (0.0 if spans.graceful else first.unfinished)
            share = min(1.0, max(0.0, 1 - at_commit / done)) if done > 0 else 1.0
    productive = spans.seconds.get("productive", 0.0)
    redone = spans.seconds.get("redone", 0.0) + productive * share
    return {**spans.seconds, "productive": productive * (1 - share), "redone": redone}


def _reached(attempt: Attempt) -> int:
    if not attempt.began:
        return attempt.from_step
    end = attempt.end or {}
    said = [whole(end.get("reached")), whole(end.get("step")), whole(attempt.info.get("committed"))]
    return max([attempt.from_step, *(step for step in said if step is not None)])


def _kept(attempt: Attempt, *, reached: int, upto: int | None, in_lineage: bool, why: str) -> int:
    if not in_lineage:
        return attempt.from_step
    if upto is not None:
        return min(upto, reached)
    if why in ("finished", "stopped", "running"):
        return reached
    committed = whole(attempt.info.get("committed"))
    saved = whole((attempt.end or {}).get("step")) if committed is None else committed
    return min(reached, max(attempt.from_step, saved or 0))


def _cause(end: Mapping[str, Any], why: str) -> str:
    said = end.get("cause") or end.get("error")
    if said:
        return " ".join(str(said).split())
    return {"running": "no end is recorded yet", "unknown": "its end was not recorded", "finished": "the run's duration was over"}.get(
        why, ""
    )


def number(value: object) -> float | None:
    """A time, a length of time or a price, or None for anything else and for what is too large to be one."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LATEST else None


def whole(value: object) -> int | None:
    """A whole number that is not negative, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _workers(value: object) -> int | None:
    count = whole(value)
    return count if count is not None and count <= MOST_WORKERS else None


def mapping(value: object) -> Mapping[str, Any]:
    """A mapping, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}
