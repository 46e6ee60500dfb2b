"""SIGINT and SIGTERM of a whole program: they interrupt it before its work and change nothing after it; a second one leaves at once."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, TextIO

INTERRUPTED = 130
_BOTH = (signal.SIGINT, signal.SIGTERM)
_REARM_S = 0.002


@dataclass
class Outermost:
    """The handler of a program outside of the block that `runtime.progress.signals_to` wraps.

    Attributes:
        seen: signals so far.
        last_line, code: how the work ended; `last_line` is None while it has not.
        interrupted: the last line where a signal cuts an import short.
    """

    seen: int = 0
    last_line: str | None = None
    code: int = 0
    interrupted: str = "interrupted"

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Interrupts what has not begun, lets what has ended close; in the middle of an import, and at a second signal, leaves at once.

        Raises:
            KeyboardInterrupt: at the first signal, before the work has ended.
        """
        self.note(number)
        if self.last_line is not None:
            return
        if _imports(frame):  # raised there it may be swallowed, and torch's C++ aborts at it
            _say(self.interrupted)
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    def note(self, number: int, *, until: str | None = None) -> None:
        """Counts a signal, and says so where the program goes on for a while; a second one leaves at once.

        Args:
            until: up to what it goes on before it ends.
        """
        self.seen += 1
        name = signal.Signals(number).name
        if self.seen > 1:
            self._leave(name)
        elif self.last_line is not None:
            _say(f"{name}: the run has ended and is closing (again to leave at once)")
        elif until is not None:
            _say(f"{name}: ending as soon as {until} (again to leave at once)")

    def _leave(self, name: str) -> None:
        if self.last_line is None:
            _say(f"{name} again: leaving at once")
            os._exit(INTERRUPTED)
        _say(self.last_line, file=sys.stderr if self.code else sys.stdout)
        os._exit(self.code)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


_outermost = Outermost()


def ended(last_line: str, *, code: int) -> None:
    """From here on a signal does not change how the program ends: this line, which it will print itself, and this exit code."""
    _outermost.last_line, _outermost.code = last_line, code


def seen() -> bool:
    """Whether a signal came outside of the work; its interrupt may have been swallowed, as in a callback."""
    return _outermost.seen > 0


def run_main(main: Callable[[list[str]], int], *, interrupted: str = "interrupted") -> NoReturn:
    """Runs a program on its command line and exits with its code; no signal ends it without a word.

    Args:
        interrupted: the last line where `main` cannot say it.
    """
    _outermost.interrupted = interrupted
    for number in _BOTH:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _outermost)
    try:
        code = main(sys.argv[1:])
    except (Exception, KeyboardInterrupt):
        if not _outermost.seen or _outermost.last_line is not None:
            raise
        _say(interrupted)  # a library in the middle of which it came may make another error of it
        code = INTERRUPTED
    for number in _BOTH:
        signal.signal(number, signal.SIG_IGN)  # how it ended is said; what is left is the interpreter's own end
    sys.exit(code)


@contextmanager
def kept(until: str) -> Iterator[Callable[[], bool]]:
    """Within the block, Ray's start or its end, a signal is noted and raises nothing: Ray swallows what is raised in it, with locks held.

    Args:
        until: what the program waits for before it heeds the signal.

    Yields:
        whether a signal came in the block.

    Raises:
        KeyboardInterrupt: at the end of the block, if one came and the work has not ended.
    """
    before = {number: handler for number in _BOTH if (handler := signal.getsignal(number)) not in (signal.SIG_DFL, None)}
    if threading.current_thread() is not threading.main_thread() or not before:
        yield lambda: False
        return
    program = _outermost if _outermost in before.values() else Outermost()
    already = program.seen
    try:
        with _noted(before, lambda number: program.note(number, until=until)), _armed(signal.SIGTERM in before):
            yield lambda: program.seen > already
    finally:
        if program.seen > already and program.last_line is None:
            raise KeyboardInterrupt from None


@contextmanager
def _noted(before: Mapping[signal.Signals, Any], note: Callable[[int], None]) -> Iterator[None]:
    """Has the signals noted that are not ignored, whoever else sets a handler for them."""
    inside, put = True, signal.signal

    def handle(number: int, frame: FrameType | None) -> None:
        if inside:
            signal.alarm(0)  # Ray's C++ handler, where it was quicker than `_rearm`, calls this one but has set an alarm that aborts
            note(number)
        else:  # while the handlers are put back
            before[signal.Signals(number)](number, frame)

    def put_others(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if number in before else put(number, handler)

    try:
        for number, handler in before.items():
            put(number, handle if callable(handler) else handler)
        signal.signal = put_others  # ray.init sets a handler for SIGTERM that exits
        yield
    finally:
        signal.signal = put
        inside = False  # from here on the handlers from before may raise
        for number, handler in before.items():
            put(number, handler)


@contextmanager
def _armed(wanted: bool) -> Iterator[None]:
    """Keeps SIGTERM with this process: Ray's C++ part takes it over as it starts, and lets it kill as it ends. It leaves SIGINT alone."""
    if not wanted:
        yield
        return
    end = threading.Event()
    thread = threading.Thread(target=_rearm, args=(_in_force(), end), name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _rearm(ours: int | None, end: threading.Event) -> None:
    """Python allows `signal.signal` in the main thread alone, which is inside Ray."""
    put = ctypes.pythonapi.PyOS_setsig
    put.restype, put.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    while not end.wait(_REARM_S):
        if _in_force() != ours:
            put(signal.SIGTERM, ours)


def _in_force() -> int | None:
    """The address of the C function that SIGTERM calls."""
    get = ctypes.pythonapi.PyOS_getsig
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_int]
    return get(signal.SIGTERM)


def _say(line: str, *, file: TextIO | None = None) -> None:
    with suppress(RuntimeError, OSError):  # in the middle of another print to the same file, or nobody reads any more
        sys.stdout.flush()
        print(line, file=file or sys.stderr, flush=True)
