"""What the driver publishes about a run as it goes, without Ray: an attempt that is lost, a checkpoint, an end."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny
import torch

from iddpm_ray.checkpoint.attempts import end_attempt
from iddpm_ray.runtime import metrics, session
from iddpm_ray.runtime.metrics import RunMetrics
from iddpm_ray.runtime.pulse import Heard, Pulse
from iddpm_ray.sinks.metrics import METRICS, Values
from iddpm_ray.train.directory import inspect_run, take_place, write_run
from iddpm_ray.train.session import LocalSession


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PUBLISH_S", 0.02)
    monkeypatch.setattr(metrics, "LOOK_S", 0.05)


class Shown:
    """What a monitor would see."""

    def __init__(self) -> None:
        self.values: Values = {}

    def __call__(self, values: Values) -> None:
        self.values = {**self.values, **values}

    def __getitem__(self, name: str) -> float | None:
        name, _, which = name.partition(":")
        return self.values.get((f"iddpm_{name}", which))

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not true():
            assert time.monotonic() < deadline, self.values
            time.sleep(0.01)


@contextmanager
def watched(root: Path, **changes: object) -> Iterator[tuple[RunMetrics, Shown, str]]:
    tiny.write_pictures(root / "pictures")
    spec = tiny.tiny_spec(root, **changes)
    opening = inspect_run(spec)
    write_run(opening)
    shown = Shown()
    running = RunMetrics(spec, run_url=opening.url, rows_per_epoch=12, publish=shown)
    try:
        yield running, shown, opening.url
    finally:
        running.close()


def pulse(step: int | None, **ledger: float) -> dict[int, Heard]:
    now = time.time()
    report = {"step": step, "began": now - sum(ledger.values()), "now": now, "ledger": ledger}
    return {0: Heard(Pulse(0, 1, "node", 1, report=report))}


def test_a_run_is_shown_from_before_its_first_step_to_its_end(tmp_path: Path) -> None:
    with watched(tmp_path, train__duration="20 steps", checkpoint__every="5 steps") as (running, shown, _):
        shown.until(lambda: shown["running"] == 1)
        assert (shown["step"], shown["saved_step"], shown["total_steps"], shown["save_interval_steps"]) == (0, 0, 20, 5)
        assert shown["save_interval_seconds"] is None
        assert shown["saved_time_seconds"] is None
        assert shown["workers"] == 0
        before = shown["step_time_seconds"]
        running.begins(3)
        running.heard(pulse(None))
        running.heard(pulse(1, productive=2.0))
        running.row({"step": 1, "samples": 4, "loss": 0.25, "images_per_second": 9.0})
        shown.until(lambda: shown["step"] == 1 and shown["loss"] == 0.25)
        assert (shown["attempt"], shown["workers"], shown["images_per_second"]) == (3, 1, 9)
        assert shown["worker_seconds:productive"] == pytest.approx(2.0)
        assert before is not None
        assert (shown["step_time_seconds"] or 0) > before
    assert (shown["running"], shown["workers"], shown["images_per_second"]) == (0, 0, 0)


def test_a_pulse_without_a_new_step_is_no_step(tmp_path: Path) -> None:
    with watched(tmp_path) as (running, shown, _):
        running.begins(1)
        running.heard(pulse(4))
        shown.until(lambda: shown["step"] == 4)
        at = shown["step_time_seconds"]
        for _ in range(5):
            running.heard(pulse(4))
            time.sleep(0.02)
        running.row({"step": 4, "samples": 16, "loss": 1.0})
        shown.until(lambda: shown["loss"] == 1.0)
        assert shown["step_time_seconds"] == at


def test_what_a_lost_attempt_did_beyond_its_checkpoint_does_not_count_any_more(tmp_path: Path) -> None:
    with watched(tmp_path, checkpoint__every="1 min") as (running, shown, url):
        assert shown["save_interval_steps"] is None
        spec = tiny.tiny_spec(tmp_path, checkpoint__every="1 min")
        tiny.attempt(spec)  # attempt 1: two steps, saved
        shown.until(lambda: shown["saved_step"] == 2)
        assert shown["save_interval_seconds"] == 60
        assert abs((shown["saved_time_seconds"] or 0) - time.time()) < 60

        place = take_place(inspect_run(spec), info={"workers": 1})
        running.begins(place.attempt)
        running.heard(pulse(7, productive=3.0))
        shown.until(lambda: shown["step"] == 7)
        since = shown["unsaved_since_seconds"]
        assert abs((since or 0) - time.time()) < 30
        end_attempt(url, place.attempt, info={"why": "lost", "step": None, "reached": 7, "began": time.time() - 5, "ended": time.time()})
        running.ended()
        shown.until(lambda: shown["step"] == 2 and shown["attempts_ended:lost"] == 1)
        assert shown["workers"] == 0
        shown.until(lambda: (shown["unsaved_since_seconds"] or 0) > (since or 0))  # waiting for machines loses nothing


def test_a_storage_that_fails_hides_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(url: str) -> None:
        raise OSError("away")

    monkeypatch.setattr(metrics, "complete", broken)
    monkeypatch.setattr(metrics.attempts, "attempts", broken)
    with watched(tmp_path) as (running, shown, _):
        running.begins(1)
        running.heard(pulse(9))
        shown.until(lambda: shown["step"] == 9)


def test_a_monitor_that_fails_ends_nothing(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path / "pictures")
    calls: list[Values] = []

    def publish(values: Values) -> None:
        calls.append(values)
        raise RuntimeError("no agent")

    running = RunMetrics(tiny.tiny_spec(tmp_path), run_url=str(tmp_path), rows_per_epoch=12, publish=publish)
    deadline = time.monotonic() + 30
    while len(calls) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.close()


def test_every_number_has_a_gauge(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, dict[str, str]]] = []

    class Gauge:
        def __init__(self, name: str, *, description: str, tag_keys: tuple[str, ...]) -> None:
            self.name, self.keys = name, tag_keys

        def set(self, value: float, *, tags: dict[str, str]) -> None:
            assert set(tags) == set(self.keys)
            told.append((self.name, value, tags))

    monkeypatch.setattr(metrics, "Gauge", Gauge)
    publish = metrics.Gauges("cats")
    publish({(metric.name, "x" if metric.label else ""): 1.0 for metric in METRICS})
    assert [name for name, _, _ in told] == [metric.name for metric in METRICS]
    assert all(tags["run"] == "cats" for _, _, tags in told)


def test_a_rank_without_a_gpu_says_nothing_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.gpu_memory(LocalSession().device) == {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert session.gpu_memory(torch.device("cuda")) == {}  # not before the loop itself has woken it


def test_a_run_that_wants_none_publishes_none(tmp_path: Path) -> None:
    with metrics.published(tiny.tiny_spec(tmp_path, log__prometheus=False), run_url=str(tmp_path), rows_per_epoch=12) as running:
        assert running is None
