"""Whether to save, step on or leave before machines are taken away: a pure function of the deadline and of measured times."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Action(Enum):
    """What to do next, once a preemption is known."""

    SAVE = "save"
    STEP = "step"
    LEAVE = "leave"


@dataclass(frozen=True)
class Outlook:
    """What the decision is made of.

    Attributes:
        seconds_left: until the deadline.
        step_s: that a step takes; the slowest of late ones.
        save_s: that a save takes, 95th percentile; None when none has been measured.
        unsaved_steps: since the last committed save.
        may_save: whether a save is still worth a try; not once one has failed for good.
    """

    seconds_left: float
    step_s: float
    save_s: float | None
    unsaved_steps: int
    may_save: bool = True


def decide(outlook: Outlook) -> Action:
    """Steps on only while after the step a save would still fit twice over; saves what is unsaved; then leaves.

    With no save measured yet the first thing is to save, which measures one.
    """
    unsaved = outlook.unsaved_steps > 0 and outlook.may_save
    if outlook.save_s is None:
        return Action.SAVE if unsaved else Action.LEAVE
    if outlook.may_save and outlook.seconds_left - outlook.step_s >= 2 * outlook.save_s:
        return Action.STEP
    return Action.SAVE if unsaved and outlook.seconds_left > 0 else Action.LEAVE


def percentile95(seconds: Sequence[float]) -> float | None:
    """The smallest of the values that at least 95 % of them do not exceed; None without values."""
    ordered = sorted(seconds)
    return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else None
