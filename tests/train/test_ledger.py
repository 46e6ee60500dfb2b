"""Every second of a rank is in one category, what none of them held is seen, and another thread may look at any time."""

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny

from iddpm_ray.checkpoint.attempts import attempts
from iddpm_ray.sinks.jsonl import read_rows
from iddpm_ray.sinks.rows import volatile
from iddpm_ray.train import ledger as ledgers
from iddpm_ray.train.ledger import Ledger, process_age
from iddpm_ray.train.session import LocalSession


@dataclass
class Clocks:
    """Two clocks that go when told to."""

    wall: float = 1000.0
    steady: float = 50.0

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    it = Clocks()
    monkeypatch.setattr(ledgers, "time", SimpleNamespace(time=lambda: it.wall, monotonic=lambda: it.steady, sleep=lambda seconds: None))
    return it


def unaccounted(report: dict[str, Any]) -> float:
    return report["now"] - report["began"] - sum(report["ledger"].values())


def go(ledger: Ledger, clocks: Clocks, *phases: tuple[str, float]) -> None:
    for name, seconds in phases:
        ledger.phase(name)
        clocks.wait(seconds)


STEP = (("data", 1.0), ("inputs", 0.5), ("forward", 2.0), ("backward", 4.0), ("update", 0.5))


def test_the_start_is_booked_by_phase_until_the_first_step_is_done(clocks: Clocks) -> None:
    ledger = Ledger(age=3.0)
    clocks.wait(0.25)
    go(ledger, clocks, ("build", 1.0), ("compile", 2.0), ("build", 0.5), ("load", 4.0), ("first step", 0.125), *STEP)
    ledger.stepped(41)
    go(ledger, clocks, *STEP)
    ledger.stepped(42)
    go(ledger, clocks, ("validate", 5.0), ("row", 6.0), ("sample", 7.0), ("save", 8.0), ("stop", 9.0))
    report = ledger.report()
    assert report["ledger"] == {
        "import": 3.25,
        "build": 1.5,
        "compile": 2.0,
        "load": 4.0,
        "first_data": 1.0,
        "first_step": 7.125,
        "data_wait": 1.0,
        "productive": 7.0,
        "validation": 5.0,
        "row": 6.0,
        "sampling": 7.0,
        "checkpoint_stall": 8.0,
        "stopping": 9.0,
    }
    assert (report["steps"], report["step"], report["phase"]) == (2, 42, "stop")
    assert report["first_step"] == 1000 + 0.25 + 7.625 + 8
    assert unaccounted(report) == 0
    assert json.loads(json.dumps(report)) == report


def test_the_category_that_is_open_counts_up_to_now(clocks: Clocks) -> None:
    ledger = Ledger(age=0.0)
    ledger.phase("load")
    clocks.wait(2.5)
    assert ledger.report()["ledger"]["load"] == 2.5
    clocks.wait(1.0)
    assert ledger.report()["ledger"]["load"] == 3.5


def test_time_in_no_category_is_unaccounted(clocks: Clocks) -> None:
    ledger = Ledger(age=0.0)
    go(ledger, clocks, ("load", 2.0))
    ledger.close()
    clocks.wait(5.0)
    assert unaccounted(ledger.report()) == 5
    go(ledger, clocks, ("data", 1.0))
    assert unaccounted(ledger.report()) == 5


def test_the_whole_is_measured_by_another_clock_than_the_parts(clocks: Clocks) -> None:
    ledger = Ledger(age=0.0)
    go(ledger, clocks, ("load", 2.0))
    clocks.wall += 3  # the machine slept
    assert unaccounted(ledger.report()) == 3


def test_what_was_done_of_a_step_that_is_not_done_is_told(clocks: Clocks) -> None:
    ledger = Ledger(age=0.0)
    for number in range(1, 4):
        go(ledger, clocks, *STEP)
        ledger.stepped(number)
    assert ledger.report()["unfinished"] == 0
    go(ledger, clocks, ("row", 9.0), *STEP[:3])
    assert ledger.report()["unfinished"] == 2.5


def test_a_phase_nobody_listed_keeps_its_name(clocks: Clocks) -> None:
    ledger = Ledger(age=0.0)
    ledger.stepped(1)
    go(ledger, clocks, ("rest", 2.0))
    assert ledger.report()["ledger"]["rest"] == 2


def test_rows_hear_of_their_own_interval(clocks: Clocks) -> None:
    ledger = Ledger(age=100.0)
    go(ledger, clocks, ("load", 4.0), *STEP)
    ledger.stepped(1)
    first = ledger.interval()
    assert first == {**dict.fromkeys(ledgers.IN_ROWS, 0.0), "other": 12.0}
    go(ledger, clocks, ("row", 3.0), *STEP)
    second = ledger.interval()
    assert second == {**first, "row": 3.0, "data_wait": 1.0, "productive": 7.0, "other": 0.0}


def test_phases_are_announced_once_they_are_open(clocks: Clocks) -> None:
    heard: list[tuple[str, float]] = []
    ledger = Ledger(lambda name: heard.append((name, ledger.report()["ledger"].get("load", -1))), age=0.0)
    ledger.phase("load")
    assert heard == [("load", 0.0)]


def test_another_thread_sees_no_second_twice_and_none_vanish() -> None:
    ledger = Ledger(age=0.0)
    done = threading.Event()

    def run() -> None:
        for number in range(1, 6000):
            for name in ("data", "forward", "backward", "update"):
                ledger.phase(name)
            ledger.stepped(number)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    before: dict[str, float] = {}
    while not done.is_set():
        report = ledger.report()
        assert sum(report["ledger"].values()) <= report["now"] - report["began"] + 0.01
        assert all(report["ledger"][name] >= seconds for name, seconds in before.items())
        before = report["ledger"]
    thread.join()


def test_a_process_is_as_old_as_the_system_says() -> None:
    young = process_age()
    time.sleep(0.05)
    assert young > 0
    assert process_age() > young


def test_a_run_books_its_whole_time_and_records_it_with_each_commit(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path / "pictures")
    changes: dict[str, Any] = {"train__duration": "6 steps", "checkpoint__every": "4 steps", "log__every": "2 steps"}
    spec = tiny.tiny_spec(tmp_path, **changes, data__validation_fraction=0.25, log__validate_every="3 steps", sample__every="5 steps")
    session = LocalSession()
    tiny.attempt(spec, session)
    report: Any = session.report()
    own = report["now"] - report["began"] - report["ledger"]["import"]
    assert abs(unaccounted(report)) <= 0.01 * own
    assert {"build", "compile", "load", "first_data", "first_step", "stopping"} <= report["ledger"].keys()
    assert {"productive", "data_wait", "row", "validation", "sampling", "checkpoint_stall"} <= report["ledger"].keys()
    assert (report["step"], report["steps"]) == (6, 6)
    (attempt,) = attempts(str(tiny.run_folder(spec)))
    assert attempt.info["committed"] == 6
    recorded = attempt.info["ledger"]
    assert recorded["step"] == 6
    assert recorded["ledger"].keys() <= report["ledger"].keys()
    assert all(seconds <= report["ledger"][name] for name, seconds in recorded["ledger"].items())
    assert attempt.info["conditions"]["torch"]
    assert attempt.info["code"]["ray"]
    assert attempt.info["workers"] == 1
    rows = read_rows(str(tiny.run_folder(spec) / "metrics" / "train.jsonl"))
    assert all(0 < row["productive_share"] < 1 for row in rows[1:])
    assert all(volatile(name) for name in rows[0] if name.startswith(("time_", "productive")))


def test_what_was_recorded_at_a_commit_is_of_the_steps_that_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save is written while training goes on; the record must not count what came after."""
    from iddpm_ray.train import save

    said: list[tuple[int, int]] = []
    real = save.say_committed

    def heard(*given: Any, **options: Any) -> None:
        time.sleep(0.2)
        said.append((options["step"], options["ledger"]["steps"]))
        real(*given, **options)

    monkeypatch.setattr(save, "say_committed", heard)
    tiny.write_pictures(tmp_path / "pictures")
    spec = tiny.tiny_spec(tmp_path, train__duration="8 steps", checkpoint__every="4 steps", log__every="8 steps")
    tiny.attempt(spec)
    assert said == [(4, 4), (8, 8)]
