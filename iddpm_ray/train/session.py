"""The seam between the loop and its cluster: who am I, should we stop, here is how far we are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Protocol

import torch


class Wish(IntFlag):
    """What somebody outside wants of the run; any rank may carry it, all ranks learn it one step late."""

    NONE = 0
    STOP = 1  # save and end the run
    SAVE = 2  # save and go on
    LEAVE = 4  # save and end the attempt: a larger one follows
    LOOK = 8  # all ranks ask for a notice of preemption, together


@dataclass(frozen=True)
class Notice:
    """Machines are about to be taken away.

    Attributes:
        seconds_left: until they are, by this rank's clock.
        leaving: ranks on them; the others stay.
        deadline: the moment as it was told, the same on all ranks; what it counts from is nobody's business.
    """

    seconds_left: float
    leaving: tuple[int, ...]
    deadline: float = 0.0


class Session(Protocol):
    """What the loop needs of its surroundings; the Ray one lives in `runtime/`, tests bring their own."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def wish(self) -> Wish:
        """What this rank has been asked for so far; must not block, and is called once a step."""
        ...

    def notice(self) -> Notice | None:
        """What is known of a preemption, the same on all ranks but for the seconds; may wait for the others.

        All ranks call it after the same step.
        """
        ...

    def phase(self, name: str) -> None:
        """Announces that a phase begins: `load`, `data`, `forward`, `backward`, `update`, `row`, `save` and others."""
        ...

    def follow(self, report: Callable[[], Mapping[str, object]]) -> None:
        """Lets the cluster ask, at any time and from another thread, how this rank spends its time."""
        ...

    def progress(self, row: Mapping[str, object]) -> None:
        """Shows a row to whoever watches; must not block."""
        ...

    def say(self, message: str) -> None:
        """Shows one line to whoever watches."""
        ...


@dataclass
class LocalSession:
    """A session without a cluster: one process, or plain process-group ranks."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    messages: list[str] = field(default_factory=list)
    rows: list[dict[str, object]] = field(default_factory=list)
    wanted: Wish = Wish.NONE
    noticed: Notice | None = None
    report: Callable[[], Mapping[str, object]] = dict

    def wish(self) -> Wish:
        """The wish set from outside."""
        return self.wanted

    def notice(self) -> Notice | None:
        """The notice set from outside."""
        return self.noticed

    def phase(self, name: str) -> None:
        """Nobody listens."""

    def follow(self, report: Callable[[], Mapping[str, object]]) -> None:
        """Keeps what to ask."""
        self.report = report

    def progress(self, row: Mapping[str, object]) -> None:
        """Keeps the row."""
        self.rows.append(dict(row))

    def say(self, message: str) -> None:
        """Keeps the line."""
        self.messages.append(message)
