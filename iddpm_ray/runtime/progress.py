"""What the driver shows: one live line of numbers, lines that stay, and signals turned into wishes."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TextIO

from iddpm_ray.sinks.progress import progress_line


@dataclass
class Display:
    """Prints to a terminal (one line, rewritten) or to a log (a line at most every few seconds)."""

    total_samples: int | None
    enabled: bool = True
    out: TextIO = field(default_factory=lambda: sys.stdout)
    log_interval_s: float = 10.0
    _live: bool = False
    _shown: float = 0.0

    def line(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        print(text, file=self.out, flush=True)

    def row(self, row: dict[str, Any]) -> None:
        """The newest numbers."""
        if not self.enabled:
            return
        text = progress_line(row, total_samples=self.total_samples)
        if self.out.isatty():
            self._clear()
            print(text, end="", file=self.out, flush=True)
            self._live = True
        elif time.monotonic() - self._shown >= self.log_interval_s:
            self._shown = time.monotonic()
            print(text, file=self.out, flush=True)

    def _clear(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=self.out)
            self._live = False


@contextmanager
def signals_to(
    stop: Callable[[], None],
    say: Callable[[str], None],
    *,
    first: str = "finishing this step, saving, then ending (again to leave at once)",
    again: str = "leaving at once; the next start goes on from the newest checkpoint",
) -> Iterator[None]:
    """Within the block the first SIGINT or SIGTERM asks the run to save and end; a second one leaves at once."""
    seen = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        name = signal.Signals(number).name
        with suppress(RuntimeError):  # the signal may have come in the middle of another print to the same file
            if seen > 1:
                say(f"{name} again: {again}")
            else:
                say(f"{name}: {first}")
        if seen > 1:
            os._exit(128 + number)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
