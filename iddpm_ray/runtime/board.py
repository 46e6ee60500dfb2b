"""The small actor between driver and workers: wishes go down, rows and lines come up; nothing waits on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from iddpm_ray.train.session import Wish


@dataclass(frozen=True)
class News:
    """What came up since the driver last asked.

    Attributes:
        row: the newest row of numbers, if any came.
        lines: what was said, in order.
        phases: for each rank that spoke, its step and phase.
    """

    row: dict[str, Any] | None = None
    lines: list[str] = field(default_factory=list)
    phases: dict[int, str] = field(default_factory=dict)


@ray.remote(num_cpus=0)
class Board:
    """One a job, held by the driver; its methods return at once."""

    def __init__(self) -> None:
        self._wish = Wish.NONE
        self._row: dict[str, Any] | None = None
        self._lines: list[str] = []
        self._phases: dict[int, str] = {}

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

    def post_phase(self, rank: int, phase: str) -> None:
        """Where a rank is, for the report if it dies there."""
        self._phases[rank] = phase

    def news(self) -> News:
        """What came up since the last call."""
        news = News(self._row, self._lines, dict(self._phases))
        self._row, self._lines = None, []
        return news
