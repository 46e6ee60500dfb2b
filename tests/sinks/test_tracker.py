"""What a tracker's sink owes to training (never to wait, never to fail it) and to the tracker (each step once, none lost)."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny
import torch

from iddpm_ray.errors import SpecError
from iddpm_ray.sinks import tracker
from iddpm_ray.sinks.guard import GuardedSinks
from iddpm_ray.sinks.jsonl import JsonlSink
from iddpm_ray.sinks.rows import Begun
from iddpm_ray.sinks.tracker import Entry, TrackerSink, keep_id
from iddpm_ray.train.directory import inspect_run

PICTURE = torch.zeros(1, 2, 2, dtype=torch.uint8)


class Service:
    """A tracker in memory that can be made to fail or to hang; it outlives whoever tells it."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.entries: list[Entry] = []
        self.failing: Exception | None = None
        self.hanging = threading.Event()
        self.hanging.set()
        self.closed = 0

    def holds(self) -> int:
        return max(self.steps, default=0)

    def tell(self, entries: Sequence[Entry]) -> None:
        self.hanging.wait(60)
        if self.failing is not None:
            raise self.failing
        self.entries += entries
        self.steps += [entry.step for entry in entries]

    def close(self) -> None:
        self.closed += 1


def sink(service: Service, run: Path, *lineage: Begun) -> TrackerSink:
    return TrackerSink("wandb", str(run), lineage=lineage or [Begun(1)], open_tracker=lambda: service)


def rows(one: TrackerSink, *steps: int) -> None:
    for step in steps:
        one.row({"step": step, "samples": 4 * step, "loss": 1 / step, "note": "words", "time": 1000.0 + step})


def test_nothing_is_told_before_it_is_committed_and_then_once_and_in_order(tmp_path: Path) -> None:
    service = Service()
    one = sink(service, tmp_path)
    rows(one, 1, 2, 3, 4)
    one.picture("samples", 2, PICTURE)
    time.sleep(0.1)
    assert service.steps == []
    one.commit(2)
    one.commit(2)
    rows(one, 5)
    one.commit(4)
    one.close()
    assert service.steps == [1, 2, 3, 4]
    assert service.closed == 1
    second = service.entries[1]
    assert second.values == {"other/samples": 8.0, "loss/loss": 0.5}
    assert second.time == 1002.0
    assert second.pictures["samples"].startswith(b"\x89PNG")


def test_neither_a_commit_nor_a_row_waits_for_a_tracker_that_hangs(tmp_path: Path) -> None:
    service = Service()
    service.hanging.clear()
    one = sink(service, tmp_path)
    began = time.monotonic()
    for step in range(1, 50):
        rows(one, step)
        one.commit(step)
    assert time.monotonic() - began < 2
    one.hurry()
    with pytest.raises(TimeoutError, match="wandb has not answered"):
        one.close()
    assert time.monotonic() - began < 10
    service.hanging.set()


def test_what_failed_is_said_at_the_next_commit_and_told_later(tmp_path: Path) -> None:
    service, said = Service(), []
    service.failing = ConnectionError("no route, token=abc123")
    sinks = GuardedSinks({"wandb": lambda: sink(service, tmp_path)}, say=said.append)
    sinks.row({"step": 1, "samples": 4})
    sinks.commit(1)
    deadline = time.monotonic() + 20
    while not said:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        sinks.commit(1)
    assert said == ["warning: wandb cannot write: ConnectionError: no route, token=***; training goes on"]
    service.failing = None
    sinks.row({"step": 2, "samples": 8})
    sinks.commit(2)
    sinks.close()
    assert service.steps == [1, 2]


def test_a_tracker_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    service, tries = Service(), []

    def opening() -> Service:
        tries.append(1)
        if len(tries) == 1:
            raise PermissionError("no key")
        return service

    one = TrackerSink("wandb", str(tmp_path), lineage=[Begun(1)], open_tracker=opening)
    rows(one, 1)
    one.commit(1)
    deadline = time.monotonic() + 20
    while not tries:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    one.close()  # tries for the last time
    assert len(tries) == 2
    assert service.steps == [1]


def test_a_restart_tells_what_is_missing_and_nothing_twice(tmp_path: Path) -> None:
    """Attempt 1 committed 4 steps and told 2 of them; attempt 2 goes on from step 4, attempt 3 from step 3, which rewinds."""
    service = Service()
    files = JsonlSink(str(tmp_path), attempt=1, lineage=[Begun(1)])
    for step in (1, 2, 3, 4):
        files.row({"step": step, "samples": 4 * step, "loss": 0.5})
    files.commit(4)
    service.steps = [1, 2]
    second = sink(service, tmp_path, Begun(1), Begun(2, 4, 1))
    rows(second, 5)
    second.commit(5)
    second.close()
    assert service.steps == [1, 2, 3, 4, 5]
    third = sink(service, tmp_path, Begun(1), Begun(2, 4, 1), Begun(3, 3, 1))
    rows(third, 4, 5, 6)
    third.commit(6)
    third.close()
    assert service.steps == [1, 2, 3, 4, 5, 6]


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "MOST_KEPT", 5)
    monkeypatch.setattr(tracker, "MOST_PICTURES", 2)
    service = Service()
    one = sink(service, tmp_path)
    for step in range(1, 9):
        rows(one, step)
        one.picture("samples", step, PICTURE)
    one.commit(8)
    one.close()
    assert service.steps == [4, 5, 6, 7, 8]
    assert [entry.step for entry in service.entries if entry.pictures] == [7, 8]
    assert all(entry.values for entry in service.entries)


def test_the_id_is_made_once(tmp_path: Path) -> None:
    assert keep_id(str(tmp_path), "wandb", lambda: "first") == "first"
    assert keep_id(str(tmp_path), "wandb", lambda: "second") == "first"


def test_a_library_that_is_missing_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.write_pictures(tmp_path / "pictures")
    monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"log.sinks \(got wandb\): its package is not installed: pip install 'iddpm_ray\[wandb\]'"):
        inspect_run(tiny.tiny_spec(tmp_path, log__sinks=["wandb"]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"log__sinks": ["mlflow"]}, r"log.mlflow_url .*is needed by log.sinks=\[mlflow\]"),
        ({"log__sinks": ["mlflow"], "log__mlflow_url": "https://me:hunter2@host"}, "MLFLOW_TRACKING_PASSWORD"),
        ({"log__mlflow_url": "https://host"}, "has no effect without mlflow"),
        ({"log__sinks": ["wandb", "wandb"]}, "names one twice"),
        ({"log__sinks": ["tensorbord"]}, "wandb"),
        ({"log__project": "cats"}, "has no effect without log.sinks"),
    ],
)
def test_a_spec_that_cannot_be_meant_is_refused_without_its_secrets(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said) as refused:
        tiny.tiny_spec(tmp_path, **changes)
    assert "hunter2" not in str(refused.value)
