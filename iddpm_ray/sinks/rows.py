"""Rows of numbers: what one is, which rows make a run's history, and what every sink does with them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

# One row of a run: `step` (updates completed) and `samples` (seen) first, then whatever was measured since the row before.
Row = dict[str, float | int | str]

# Times, rates, memory and the attempt differ between two runs of one spec; every other number of a row may not.
VOLATILE = re.compile(r"attempt|time|mfu|.*_(s|seconds|per_second|gib|bytes|share)")


class Sink(Protocol):
    """A place that rows and pictures go to; made on rank 0 alone, one for each attempt.

    Nothing reaches the run's directory before a `commit`, so that what a sink shows never runs ahead of the checkpoints for long.
    """

    def row(self, row: Mapping[str, float | int | str]) -> None:
        """Takes a row; steps rise from row to row."""
        ...

    def picture(self, name: str, step: int, picture: Tensor) -> None:
        """Takes a picture [C, H, W] uint8, C 1 or 3, as it was after `step` updates."""
        ...

    def commit(self, step: int) -> None:
        """Puts everything taken so far in its place, whole.

        Called before the checkpoint of `step` is marked, so that the rows of a marked checkpoint are always there; perhaps on a thread
        of its own while rows of later steps come in. May raise whatever the storage raises; the next commit then brings what this one
        could not.
        """
        ...

    def close(self) -> None:
        """Lets go of local resources; safe at any time, also twice."""
        ...


@dataclass(frozen=True)
class Begun:
    """How an attempt began: from the checkpoint after `from_step` updates that attempt `from_attempt` wrote, or fresh (0, None).

    Attributes:
        init: the URL of the weights of a fresh start, of that very checkpoint or commit; None for the seed's.
    """

    attempt: int
    from_step: int = 0
    from_attempt: int | None = None
    init: str | None = None


@dataclass(frozen=True)
class Span:
    """The part of an attempt that belongs to a run's history: rows with `after < step`, and `step <= upto` unless that is None."""

    attempt: int
    after: int
    upto: int | None

    def holds(self, step: int) -> bool:
        """Whether the row of `step` belongs to the history."""
        return self.after < step and (self.upto is None or step <= self.upto)


def lineage_spans(lineage: Sequence[Begun], *, upto: int | None = None) -> list[Span]:
    """The parts that the newest attempt stands on, oldest first; attempts it does not descend from have none.

    Args:
        lineage: how each attempt began, the newest last; attempts may be missing in between, or be dead ends.
        upto: the last step of interest; None for all of the newest attempt.
    """
    began = {begun.attempt: begun for begun in lineage}
    spans: list[Span] = []
    current = lineage[-1] if lineage else None
    while current is not None:
        spans.append(Span(current.attempt, current.from_step, upto))
        upto = current.from_step if upto is None else min(upto, current.from_step)
        parent = current.from_attempt
        current = began.get(parent) if parent is not None and parent < current.attempt else None
    return spans[::-1]


def lineage_rows(rows_by_attempt: Mapping[int, Sequence[Row]], lineage: Sequence[Begun], *, upto: int | None = None) -> list[Row]:
    """The rows of a run's history in step order: rows that a restart rewound are left out, so that none is doubled.

    Args:
        rows_by_attempt: each attempt's rows; an attempt without any may be absent.
        lineage, upto: as in `lineage_spans`.
    """
    return [row for span in lineage_spans(lineage, upto=upto) for row in rows_by_attempt.get(span.attempt, ()) if span.holds(row_step(row))]


def row_step(row: Mapping[str, float | int | str]) -> int:
    """Updates completed when the row was made."""
    return int(row["step"])


def volatile(key: str) -> bool:
    """Whether a column may differ between a run and its undisturbed twin: times, rates, memory, who made the row."""
    return VOLATILE.fullmatch(key) is not None
