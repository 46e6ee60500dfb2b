"""A bar on stderr for a job whose length is known."""

import sys
import time

from iddpm_ray.sinks.progress import duration_text


class Bar:
    """One line on stderr: how far, how fast, how much longer; redrawn on a terminal, every ten seconds elsewhere."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._begin = time.monotonic()
        self._first: int | None = None
        self._shown = -10.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic() - self._begin
        self._first = done if self._first is None else self._first
        if now - self._shown < (0.1 if sys.stderr.isatty() else 10) and done < total:
            return
        self._shown = now
        rate = (done - self._first) / now if now > 0 else 0.0
        left = f"  ETA {duration_text((total - done) / rate)}" if rate and done < total else ""
        filled = 30 * done // total
        far = f"{done:,} of {total:,} {self._unit} ({100 * done // total} %)"
        line = f"[{'#' * filled}{'.' * (30 - filled)}] {far}  {rate:,.0f} {self._unit}/s{left}"
        print(f"\r{line}   " if sys.stderr.isatty() else line, end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
