"""Every step once, in order, whichever stream is faster; and both closed."""

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import pytest
import torch

from iddpm_ray.data.batch import Batch
from iddpm_ray.runtime.bridge import Batches, bridged


def batch(step: int, *, rank: int) -> Batch:
    return Batch(step, rank, np.zeros(1, dtype=np.int64), torch.zeros(1, 1, 1, 1), torch.zeros(1), 0)


class Gone(Exception):
    """The machines of the far stream went."""


class Streams:
    """A near and a far stream of the steps 3 to 9; `rank` says which of the two gave a batch."""

    def __init__(self, *, far_waits: Callable[[int], None] = lambda step: None, stop: int = 10, fails_at: int | None = None) -> None:
        self.opened: list[tuple[str, int]] = []
        self.closed: list[str] = []
        self.reached = -1
        self._far_waits, self._stop, self._fails_at = far_waits, stop, fails_at
        self.error: Exception = Gone("far away")

    def bridged(self) -> Batches:
        return bridged(self.near, self.far, start_step=3, broken=(Gone,))

    def end(self) -> None:
        """Both are closed, the far one perhaps a moment later."""
        until = time.monotonic() + 30
        while sorted(self.closed) != ["far", "near"] and time.monotonic() < until:
            time.sleep(0.01)
        assert sorted(self.closed) == ["far", "near"]

    def far_comes_to(self, step: int) -> None:
        """Waits until the far stream is there, and a moment more for its thread to hand it over."""
        until = time.monotonic() + 30
        while self.reached < step and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.2)

    def near(self, step: int) -> Batches:
        return self._steps("near", step, rank=0, wait=lambda step: None)

    def far(self, step: int) -> Batches:
        return self._steps("far", step, rank=1, wait=self._far_waits)

    def _steps(self, name: str, first: int, *, rank: int, wait: Callable[[int], None]) -> Generator[Batch, None, None]:
        self.opened.append((name, first))
        try:
            for step in range(first, self._stop):
                wait(step)
                if name == "far":
                    self.reached = step
                if step == self._fails_at and name == "far":
                    raise self.error
                yield batch(step, rank=rank)
        finally:
            self.closed.append(name)


def test_a_far_stream_that_begins_late_takes_over_where_the_near_one_is() -> None:
    begin, given = threading.Event(), []
    streams = Streams(far_waits=lambda step: bool(begin.wait(30)) and None)
    for one in streams.bridged():
        given.append((one.step, one.rank))
        if one.step == 5:
            begin.set()
            streams.far_comes_to(6)
    assert [step for step, _ in given] == list(range(3, 10))
    assert given[:3] == [(3, 0), (4, 0), (5, 0)]
    assert given[-1][1] == 1
    streams.end()


def test_a_far_stream_that_never_catches_up_is_not_waited_for() -> None:
    reached = threading.Semaphore(0)
    streams = Streams(far_waits=lambda step: bool(reached.acquire(timeout=30)) and None)
    given = []
    for one in streams.bridged():
        given.append(one.step)
        reached.release()  # always behind
    assert given == list(range(3, 10))
    streams.end()


def test_a_far_stream_that_breaks_is_replaced_at_once_and_opened_anew() -> None:
    """Every step still once, in order."""
    streams, given = Streams(fails_at=6), []
    for one in streams.bridged():
        given.append((one.step, one.rank))
        if one.step == 3:
            streams.far_comes_to(4)
    assert [step for step, _ in given] == list(range(3, 10))
    assert (5, 1) in given
    assert given[3:] == [(step, 0) for step in range(6, 10)]
    assert ("near", 6) in streams.opened
    assert streams.opened.count(("far", 6)) == 1  # not again before some seconds have passed


def test_a_far_stream_that_is_a_step_ahead_when_it_is_asked_for_waits_for_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread sees the next step wanted while this one is still being asked for."""
    go = threading.Event()

    class Asked(Future[Any]):
        """What lets the far stream go on at the very moment when it is looked at."""

        def done(self) -> bool:
            go.set()
            wait([self], timeout=30)
            return super().done()

    monkeypatch.setattr("concurrent.futures.thread._base.Future", Asked)
    streams = Streams(far_waits=lambda step: (step > 3 and go.wait(30)) and None)
    given = [(one.step, one.rank) for one in streams.bridged()]
    assert given == [(3, 0), (4, 0), *((step, 1) for step in range(5, 10))]
    streams.end()


def test_a_stream_that_breaks_is_told_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    streams = Streams(fails_at=6)
    streams.error = Gone("https://store/x?X-Signature=abc123 says no")
    for one in streams.bridged():
        if one.step == 3:
            streams.far_comes_to(4)
    assert "the stream of pictures broke at step 6: Gone: https://store/x says no" in caplog.text
    assert "abc123" not in caplog.text


def test_closing_early_closes_both() -> None:
    streams = Streams()
    stream = streams.bridged()
    next(stream)
    streams.far_comes_to(3)
    stream.close()
    streams.end()


def test_an_error_that_no_other_machine_would_mend_surfaces() -> None:
    streams = Streams(fails_at=4)
    streams.error = ValueError("a picture cannot be read")
    with pytest.raises(ValueError, match="cannot be read"):
        [streams.far_comes_to(3) for _ in streams.bridged()]


def test_an_empty_run_gives_nothing() -> None:
    assert list(Streams(stop=3).bridged()) == []
