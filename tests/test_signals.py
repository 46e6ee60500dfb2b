"""A program and its signals: never a silent end, whatever else in the process wants SIGTERM for itself."""

import runpy
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
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


def test_in_the_middle_of_an_import_nothing_is_raised(tmp_path: Path) -> None:
    """torch's C++ aborts at an interrupt in its import; others swallow it."""
    (tmp_path / "slow.py").write_text(
        "import time\ntry:\n    print('ready')\n    time.sleep(60)\nexcept BaseException:\n    print('raised')\n"
    )
    program = f"""
        import sys
        from iddpm_ray import signals

        sys.path.insert(0, {str(tmp_path)!r})

        def main(argv):
            import slow

        signals.run_main(main, interrupted="interrupted: nothing was begun")
    """
    assert ends(program, signal.SIGINT) == (130, "interrupted: nothing was begun\n")


def test_a_signal_in_the_interpreters_own_end_does_not_change_the_code() -> None:
    program = """
        import atexit, time
        from iddpm_ray import signals

        atexit.register(lambda: (print("ready"), time.sleep(0.5)))
        signals.run_main(lambda argv: 0)
    """
    assert ends(program, signal.SIGTERM) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_inside_ray_a_signal_is_noted_and_interrupts_after_it(number: signal.Signals) -> None:
    """Ray's start sets a handler of C++ and one of Python, its end the default, which kills."""
    program = """
        import ctypes, signal, sys, time
        from iddpm_ray import signals

        def main(argv):
            ours = signal.getsignal(signal.SIGTERM)
            try:
                with signals.kept("Ray has started") as came:
                    ctypes.CDLL(None).signal(signal.SIGTERM, None)
                    for number in (signal.SIGINT, signal.SIGTERM):
                        signal.signal(number, lambda number, frame: sys.exit(number))
                    time.sleep(0.5)
                    print("ready")
                    while not came():
                        time.sleep(0.01)
                    print("whole")
                    raise OSError
            finally:
                assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT) is ours

        signals.run_main(main)
    """
    said = f"{number.name}: ending as soon as Ray has started (again to leave at once)\nwhole\ninterrupted\n"
    assert ends(program, number) == (130, said)


@pytest.fixture
def outermost(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outermost]:
    """In force for SIGTERM, as in a program."""
    handler = Outermost()
    monkeypatch.setattr(signals, "_outermost", handler)
    was = signal.signal(signal.SIGTERM, handler)
    yield handler
    signal.signal(signal.SIGTERM, was)


def test_inside_ray_a_second_signal_leaves_at_once(outermost: Outermost, left: list[int]) -> None:
    with pytest.raises(KeyboardInterrupt), signals.kept("Ray has started") as came:  # noqa: PT012 what is inside must not raise it
        before = came()
        signal.raise_signal(signal.SIGTERM)
        assert (before, came(), signals.seen()) == (False, True, True)
        with pytest.raises(LeftError):
            signal.raise_signal(signal.SIGTERM)
    assert left == [130]


def test_the_alarm_of_rays_handler_does_not_end_the_program(outermost: Outermost) -> None:
    """It aborts three seconds after a signal that came before the handler was this process's again."""
    with pytest.raises(KeyboardInterrupt), signals.kept("Ray has started"):  # noqa: PT012 what is inside must not raise it
        signal.alarm(100)
        signal.raise_signal(signal.SIGTERM)
        assert signal.alarm(0) == 0


def test_a_signal_while_ray_closes_after_the_end_changes_nothing(outermost: Outermost, capsys: pytest.CaptureFixture[str]) -> None:
    signals.ended("finished at step 3: runs/a", code=0)
    with signals.kept("Ray has ended"):
        signal.raise_signal(signal.SIGTERM)
    assert capsys.readouterr().err == "SIGTERM: the run has ended and is closing (again to leave at once)\n"


def test_an_ignored_signal_stays_ignored_inside_ray(outermost: Outermost) -> None:
    """As a shell without job control starts what it puts into the background."""
    was = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.kept("Ray has started") as came:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.raise_signal(signal.SIGINT)
            assert not came()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, was)


def test_a_handler_that_is_not_the_programs_is_put_back_and_what_it_missed_interrupts_once() -> None:
    """As in a notebook, which goes on after an interrupt."""
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), signals.kept("Ray has started"):
            signal.raise_signal(signal.SIGINT)
        assert not signals.seen()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_off_the_main_thread_no_handler_is_touched(outermost: Outermost) -> None:
    found: list[Any] = []

    def inside() -> None:
        with signals.kept("Ray has started") as came:
            found.extend([came(), signal.getsignal(signal.SIGTERM)])

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [False, outermost]


@pytest.mark.parametrize("name", ["train", "sample", "nll", "evaluate", "replay", "prepare", "cluster"])
def test_every_program_that_documents_130_hears_both_signals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[Any] = []
    monkeypatch.setattr(signals, "run_main", lambda main, **_: run.append(main))
    runpy.run_path(str(ROOT / "jobs" / f"{name}.py"), run_name="__main__")
    assert [main.__name__ for main in run] == ["main"]
