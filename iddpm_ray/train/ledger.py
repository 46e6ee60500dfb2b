"""Where a rank's seconds go: one category is open at a time, each is timed by itself, and what none of them held shows as the rest.

The seconds are the host's. On a GPU the host waits for a step in the step after it (or, at a row, before the row), so that the
device's time is found where the host waits for it.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STARTING: Mapping[str, str] = {
    "import": "import",
    "build": "build",
    "compile": "compile",
    "load": "load",
    "data": "first_data",
    "inputs": "first_step",
    "forward": "first_step",
    "backward": "first_step",
    "update": "first_step",
    "first step": "first_step",
}
"""What a phase is booked under until the first step is done."""

GOING: Mapping[str, str] = {
    "data": "data_wait",
    "inputs": "productive",
    "forward": "productive",
    "backward": "productive",
    "update": "productive",
    "row": "row",
    "validate": "validation",
    "sample": "sampling",
    "save": "checkpoint_stall",
    "stop": "stopping",
}
"""What a phase is booked under from then on; a phase that is not listed is a category of its own name."""

IN_ROWS = ("productive", "data_wait", "row", "validation", "sampling", "checkpoint_stall")


class Ledger:
    """The books of one rank. `phase` and `stepped` belong to the loop; `report` may be called from another thread at any time."""

    def __init__(self, announce: Callable[[str], None] = lambda name: None, *, age: float | None = None) -> None:
        """Args:
        announce: told the name of each phase once it has begun.
        age: seconds since this process was born; None asks the system.
        """
        age = process_age() if age is None else age
        self._announce = announce
        self._began = time.time() - age
        self._seconds: dict[str, float] = {"import": age}
        self._categories: Mapping[str, str] = {**GOING, **STARTING}
        self._open: tuple[str, float] | None = ("import", time.monotonic())
        self._version = 0  # odd while the books are being changed
        self._phase = "import"
        self._step: int | None = None
        self._steps = 0
        self._first_step: float | None = None
        self._productive_before = 0.0
        self._row: dict[str, float] = {}
        self._row_at = time.monotonic()

    def phase(self, name: str) -> None:
        """Closes the category that is open and opens that of the phase `name`."""
        self._close(name)
        self._open = (self._categories.get(name, name), time.monotonic())
        self._version += 1
        self._announce(name)

    def close(self) -> None:
        """Closes the category that is open and opens none; time from here to the next phase is unaccounted."""
        self._close(self._phase)
        self._version += 1

    def stepped(self, step: int) -> None:
        """A step is done: `step` updates are completed. With the first one the start is over."""
        if self._first_step is None:
            self._first_step = time.time()
            self._categories = GOING
        self._step = step
        self._steps += 1
        self._productive_before = self._productive()

    def report(self) -> dict[str, Any]:
        """The books at this moment, as JSON knows them.

        Returns:
            `began` and `now`, wall seconds by a clock that the categories do not use; `ledger`, seconds by category, of which
            `now - began` less the sum is unaccounted; `step`, updates completed; `steps` done by this process and the wall second
            `first_step` at which the first was; `phase`; `unfinished`, productive seconds since the last step that was done.
        """
        opened, seconds, before, moment = self._glance()
        now = time.time()
        if opened is not None:
            seconds[opened[0]] = seconds.get(opened[0], 0.0) + moment - opened[1]
        return {
            "began": self._began,
            "now": now,
            "step": self._step,
            "phase": self._phase,
            "ledger": {name: round(value, 6) for name, value in seconds.items()},
            "steps": self._steps,
            "first_step": self._first_step,
            "unfinished": round(max(0.0, seconds.get("productive", 0.0) - before), 6),
        }

    def _glance(self) -> tuple[tuple[str, float] | None, dict[str, float], float, float]:
        """The books between two changes and the moment of the look; the loop never waits, so this looks again if it was at them."""
        for _ in range(1000):
            version = self._version
            seen = self._open, dict(self._seconds), self._productive_before, time.monotonic()
            if version % 2 == 0 and version == self._version:  # the next change reads its clock after this look, never before
                return seen
            time.sleep(0)
        return self._open, dict(self._seconds), self._productive_before, time.monotonic()

    def step_s(self) -> float:
        """Seconds that a step has taken in this process, on average, waiting for data included; 0 before the first was booked as such."""
        report = self.report()
        spent = sum(report["ledger"].get(name, 0.0) for name in ("productive", "data_wait"))
        return spent / max(1, self._steps - 1)

    def interval(self) -> dict[str, float]:
        """Seconds by category since the last call, and the rest of that time as `other`; for rows, so the same names each time."""
        seconds = self.report()["ledger"]
        spent = {name: seconds.get(name, 0.0) - self._row.get(name, 0.0) for name in IN_ROWS}
        now = time.monotonic()
        spent["other"] = max(0.0, now - self._row_at - sum(spent.values()))
        self._row, self._row_at = seconds, now
        return spent

    def _close(self, next_phase: str) -> None:
        self._version += 1  # before the clock is read: a look that saw the version unchanged is older than `now`
        now = time.monotonic()
        if self._open is not None:
            category, since = self._open
            self._seconds[category] = self._seconds.get(category, 0.0) + now - since
        self._open = None
        self._phase = next_phase

    def _productive(self) -> float:
        running = time.monotonic() - self._open[1] if self._open is not None and self._open[0] == "productive" else 0.0
        return self._seconds.get("productive", 0.0) + running


def process_age() -> float:
    """Seconds since this process was born; 0 where the system does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):  # no Linux
        return 0.0
