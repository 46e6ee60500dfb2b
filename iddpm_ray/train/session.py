"""The seam between the loop and its cluster: who am I, should we stop, here is how far we are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Protocol

import torch


class Wish(IntFlag):
    """What somebody outside wants of the run; any rank may carry it, all ranks learn it one step late."""

    NONE = 0
    STOP = 1
    SAVE = 2


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

    def phase(self, name: str) -> None:
        """Announces that a phase begins: `load`, `data`, `forward`, `backward`, `update`, `row`, `save` and others."""
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

    def wish(self) -> Wish:
        """The wish set from outside."""
        return self.wanted

    def phase(self, name: str) -> None:
        """Nobody listens."""

    def progress(self, row: Mapping[str, object]) -> None:
        """Keeps the row."""
        self.rows.append(dict(row))

    def say(self, message: str) -> None:
        """Keeps the line."""
        self.messages.append(message)
