"""The small actor between driver and workers: wishes go down, rows, lines and pulses come up; nothing waits on it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from iddpm_ray.runtime.pulse import Heard, Listener, Pulse
from iddpm_ray.train.session import Wish


@dataclass(frozen=True)
class News:
    """What came up since the driver last asked.

    Attributes:
        row: the newest row of numbers, if any came.
        lines: what was said, in order.
        heard: the last pulse of each rank that has spoken.
    """

    row: dict[str, Any] | None = None
    lines: list[str] = field(default_factory=list)
    heard: dict[int, Heard] = field(default_factory=dict)


@ray.remote(num_cpus=0)
class Board:
    """One an attempt, held by the driver on its own node; its methods return at once."""

    def __init__(self) -> None:
        self._wish = Wish.NONE
        self._row: dict[str, Any] | None = None
        self._lines: list[str] = []
        self._listener = Listener()

    def ask(self, wish: Wish) -> None:
        """The driver wants something of the run."""
        self._wish |= wish

    def wish(self) -> Wish:
        """Rank 0 asks what is wanted; a wish to save is granted once."""
        wish = self._wish
        self._wish &= ~Wish.SAVE
        return wish

    def post_row(self, row: Mapping[str, Any]) -> None:
        """A row of numbers from rank 0."""
        self._row = dict(row)

    def post_line(self, line: str) -> None:
        """A line for the person watching."""
        self._lines.append(line)

    def post_pulse(self, pulse: Pulse) -> None:
        """A sign of life from a rank; ages are by this actor's clock alone."""
        self._listener.hear(pulse, now=time.monotonic())

    def news(self) -> News:
        """What came up since the last call."""
        news = News(self._row, self._lines, self._listener.heard(now=time.monotonic()))
        self._row, self._lines = None, []
        return news
