"""What the driver shows, and what a signal does to it."""

import io
import os
import re
import signal
from contextlib import suppress
from typing import Any

import pytest

from iddpm_ray.runtime import progress
from iddpm_ray.runtime.progress import Display, signals_to

ROW = {"step": 4, "samples": 16, "loss": 0.5, "images_per_second": 20.0}


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminals_live_line_is_rewritten_and_never_mixes_with_lines_that_stay() -> None:
    out = Terminal()
    display = Display(48, out=out)
    display.row(ROW)
    display.row({**ROW, "step": 8})
    display.line("saved")
    shown = re.split(r"\r\x1b\[K", out.getvalue())
    assert len(shown) == 3
    assert "\n" not in shown[0] + shown[1]
    assert "4" in shown[0]
    assert "8" in shown[1]
    assert shown[2] == "saved\n"


def test_a_log_gets_whole_lines_and_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    out = io.StringIO()
    display = Display(48, out=out, log_interval_s=10.0)
    for second in range(25):
        now = 1000.0 + second
        display.row({**ROW, "step": second})
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert "\r" not in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_disabled_display_shows_no_numbers_but_all_lines() -> None:
    out = Terminal()
    display = Display(None, enabled=False, out=out)
    display.row(ROW)
    display.line("resuming")
    assert out.getvalue() == "resuming\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_leaves(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    stopped: list[None] = []
    said: list[str] = []
    monkeypatch.setattr(progress.os, "_exit", left.append)
    with signals_to(lambda: stopped.append(None), said.append):
        os.kill(os.getpid(), number)
        assert (len(stopped), left) == (1, [])
        assert said == [f"{number.name}: finishing this step, saving, then ending (again to leave at once)"]
        os.kill(os.getpid(), number)
        assert left == [128 + number]
        assert said[1] == f"{number.name} again: leaving at once; the next start goes on from the newest checkpoint"


def test_a_signal_in_the_middle_of_a_print_still_asks() -> None:
    def say(text: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    stopped: list[None] = []
    with signals_to(lambda: stopped.append(None), say):
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(stopped) == 1


def test_handlers_are_put_back_whatever_happens() -> None:
    before: list[Any] = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    with suppress(ZeroDivisionError), signals_to(lambda: None, lambda text: None):
        assert signal.getsignal(signal.SIGINT) is not before[0]
        raise ZeroDivisionError
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before
