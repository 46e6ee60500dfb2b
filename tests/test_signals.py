"""A program and its signals: never a silent end, whatever else in the process wants SIGTERM for itself."""

import runpy
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from iddpm_ray import signals
from iddpm_ray.signals import Outermost

ROOT = Path(__file__).parents[1]


class LeftError(Exception):
    """In the place of the process's end."""


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise LeftError

    monkeypatch.setattr(signals.os, "_exit", leave)
    return codes


def ends(program: str, number: signal.Signals) -> tuple[int, str]:
    """Code and words of a program that is sent a signal once it says `ready`."""
    command = [sys.executable, "-u", "-c", textwrap.dedent(program)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def test_before_the_work_the_first_signal_interrupts_and_the_second_leaves(left: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    handler = Outermost()
    with pytest.raises(KeyboardInterrupt):
        handler(signal.SIGTERM, None)
    with pytest.raises(LeftError):
        handler(signal.SIGTERM, None)
    assert (left, capsys.readouterr().err) == ([130], "SIGTERM again: leaving at once\n")


@pytest.mark.parametrize(("line", "code"), [("finished at step 3: runs/a", 0), ("error: no", 2)])
def test_after_the_work_the_end_stays_what_it_is(line: str, code: int, left: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    handler = Outermost(last_line=line, code=code)
    handler(signal.SIGINT, None)
    assert capsys.readouterr().err == "SIGINT: the run has ended and is closing (again to leave at once)\n"
    with pytest.raises(LeftError):
        handler(signal.SIGINT, None)
    said = capsys.readouterr()
    assert (left, said.err if code else said.out) == ([code], f"{line}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "ImportError"])
def test_a_signal_ends_a_program_with_a_word_and_130(number: signal.Signals, raised: str) -> None:
    """A library may make another error of the interrupt, as some do whose import it cuts short."""
    program = f"""
        import time
        from iddpm_ray import signals

        def main(argv):
            try:
                print("ready")
                time.sleep(60)
            except KeyboardInterrupt:
                raise {raised} from None

        signals.run_main(main)
    """
    assert ends(program, number) == (130, "interrupted\n")


def test_a_signal_in_the_interpreters_own_end_does_not_change_the_code() -> None:
    program = """
        import atexit, time
        from iddpm_ray import signals

        atexit.register(lambda: (print("ready"), time.sleep(0.5)))
        signals.run_main(lambda argv: 0)
    """
    assert ends(program, signal.SIGTERM) == (0, "")


def test_sigterm_stays_ours_where_a_c_library_takes_it() -> None:
    """As Ray does: its start sets a handler of C++ and one of Python, its end the default, which kills."""
    program = """
        import ctypes, signal, time
        from iddpm_ray import signals

        def main(argv):
            ours = signal.getsignal(signal.SIGTERM)
            with signals.kept():
                ctypes.CDLL(None).signal(signal.SIGTERM, None)
                time.sleep(0.5)
                try:
                    print("ready")
                    time.sleep(60)
                except KeyboardInterrupt:
                    print("heard")
                signal.signal(signal.SIGTERM, lambda number, frame: None)
            assert signal.getsignal(signal.SIGTERM) is ours
            return 0

        signals.run_main(main)
    """
    assert ends(program, signal.SIGTERM) == (0, "heard\n")


@pytest.mark.parametrize("name", ["train", "sample", "nll", "evaluate", "replay", "prepare", "cluster"])
def test_every_program_that_documents_130_hears_both_signals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[Any] = []
    monkeypatch.setattr(signals, "run_main", run.append)
    runpy.run_path(str(ROOT / "jobs" / f"{name}.py"), run_name="__main__")
    assert [main.__name__ for main in run] == ["main"]
