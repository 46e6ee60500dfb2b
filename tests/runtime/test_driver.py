"""The driver's accounts: how often it tries again, when it gives up, and what it says."""

import os
import runpy
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError
from train.small_run import small_spec

from iddpm_ray.errors import DataError, SpecError, TrainError
from iddpm_ray.runtime import growth, launch
from iddpm_ray.runtime.attempt import Watch
from iddpm_ray.runtime.ending import Ending
from iddpm_ray.runtime.launch import Driver
from iddpm_ray.runtime.pulse import Heard, Pulse
from iddpm_ray.spec.text import dump_yaml

DIED = Ending("failed", error=TrainError("rank 1: its process has died"))


class Scripted(Driver):
    """A driver whose attempts end as a script says."""

    def follow(self, *endings: Ending) -> "Scripted":
        self.script = list(endings)
        self.begun = 0
        return self

    def _attempt(self, manifest: Any) -> Ending:
        self.begun += 1
        return self.script.pop(0)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the driver slept between attempts, without sleeping."""
    slept: list[float] = []
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    original = Driver._pause

    def pause(self: Driver, seconds: float) -> None:
        slept.append(seconds)
        original(self, seconds)

    monkeypatch.setattr(launch, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    monkeypatch.setattr(Driver, "_pause", pause)
    monkeypatch.setattr(launch, "complete", lambda url: [])
    monkeypatch.setattr(launch, "put_manifest", lambda manifest: manifest)
    return slept


def driver(tmp_path: Path, said: list[str], **fields: Any) -> Scripted:
    spec = small_spec(tmp_path, cluster={"max_fruitless": 100, **fields})
    opening: Any = type("Opening", (), {"manifest": None, "url": "gs://bucket/run"})()
    return Scripted(spec, opening, show=said.append, show_row=lambda row: None)


def test_an_attempt_that_finishes_is_the_only_one(tmp_path: Path, waits: list[float]) -> None:
    said: list[str] = []
    it = driver(tmp_path, said).follow(Ending("finished", 9))
    assert it.run() == Ending("finished", 9)
    assert (it.begun, said, waits) == (1, [], [])


def test_failures_are_tried_again_each_with_a_line_and_a_longer_pause(tmp_path: Path, waits: list[float]) -> None:
    said: list[str] = []
    it = driver(tmp_path, said, max_failures=3).follow(DIED, DIED, DIED, Ending("finished", 9))
    assert it.run() == Ending("finished", 9)
    assert said == [
        f"attempt failed: rank 1: its process has died; going on from the newest checkpoint ({n} of 3 failures allowed)" for n in (1, 2, 3)
    ]
    assert waits == sorted(waits)
    assert len(waits) == 3
    assert waits[0] == 0  # the first return is quick
    assert waits[1] < waits[2] <= 30


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_run_that_fails_too_often_ends_with_the_last_error(tmp_path: Path, waits: list[float], most: int) -> None:
    it = driver(tmp_path, [], max_failures=most).follow(*[DIED] * (most + 1))
    with pytest.raises(TrainError, match=rf"rank 1: its process has died; attempts that failed: {most + 1}.*cluster.max_failures"):
        it.run()
    assert it.begun == most + 1


def test_pauses_are_bounded(tmp_path: Path, waits: list[float]) -> None:
    driver(tmp_path, [], max_failures=20).follow(*[DIED] * 20, Ending("finished", 1)).run()
    assert max(waits) == 30


def test_what_a_person_must_mend_is_raised_at_once(tmp_path: Path, waits: list[float]) -> None:
    error = DataError("rank 1: a.png (row 3) is not a picture", fix="mend it")
    it = driver(tmp_path, [], max_failures=5).follow(Ending("refused", error=error))
    with pytest.raises(DataError) as caught:
        it.run()
    assert caught.value is error
    assert (it.begun, waits) == (1, [])


def test_a_stop_during_the_pause_begins_no_new_attempt(tmp_path: Path, waits: list[float]) -> None:
    said: list[str] = []
    it = driver(tmp_path, said, max_failures=3).follow(DIED, Ending("finished", 9))
    it.show = lambda line: it.stop()
    ending = it.run()
    assert it.begun == 1
    assert ending.why == "stopped"
    assert ending.error is None


def test_a_failure_while_stopping_is_not_tried_again_and_is_told(tmp_path: Path, waits: list[float]) -> None:
    it = driver(tmp_path, [], max_failures=3).follow(DIED)
    it.stop()
    with pytest.raises(TrainError, match="rank 1: its process has died"):
        it.run()
    assert it.begun == 1


def failing_store(monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    """A store whose listing fails for a while."""
    left = [OSError("503 slow down")] * times

    def complete(url: str) -> list[Any]:
        if left:
            raise left.pop()
        return []

    monkeypatch.setattr(launch, "complete", complete)


def test_a_run_that_has_begun_waits_for_its_storage(tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    it = driver(tmp_path, said).follow(Ending("finished", 9))
    it._begun = True
    failing_store(monkeypatch, times=6)
    assert it.run() == Ending("finished", 9)
    assert said[0] == "the storage of the run fails: OSError: 503 slow down; trying again in 5 s"
    assert waits == [5, 10, 20, 40, 60, 60]


@pytest.mark.parametrize("begun", [False, True])
def test_a_storage_that_fails_before_the_start_or_at_the_end_is_told_in_one_line(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    it = driver(tmp_path, []).follow(Ending("finished", 9))
    it._begun = begun
    failing_store(monkeypatch, times=6)
    if begun:
        it.stop()
    told = r"the storage of the run fails: OSError: 503 slow down \(got gs://bucket/run\): mend it and start again"
    with pytest.raises(TrainError, match=told):
        it.run()
    assert it.begun == 0


@pytest.mark.parametrize(
    ("where", "error", "says"),
    [
        ("cluster.check_shared", PermissionError("no"), "cannot be written (permission denied)"),
        (
            "cluster.check_shared",
            GetTimeoutError("timed out"),
            "could not look at gs://bucket/run (GetTimeoutError)",
        ),
        ("take_hold", OSError("503 slow down"), "cannot be taken (OSError: 503 slow down)"),
        ("write_run", ValueError("https://x/y?sig=abc says no"), "cannot be written (ValueError: https://x/y says no)"),
    ],
)
def test_a_store_or_machine_that_fails_before_the_first_attempt_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, says: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(launch.storage, "check_writable", lambda url: None)
    monkeypatch.setattr(launch.cluster, "connected", lambda spec: nullcontext(None))
    for name in ("cluster.check_fits", "cluster.check_shared", "take_hold", "write_run"):
        monkeypatch.setattr(f"iddpm_ray.runtime.launch.{name}", lambda *_, **__: SimpleNamespace(release=lambda: None))
    monkeypatch.setattr(f"iddpm_ray.runtime.launch.{where}", fail)
    manifest = SimpleNamespace(training_rows=range(8))
    opening: Any = SimpleNamespace(spec=small_spec(tmp_path), url="gs://bucket/run", manifest=manifest, adopted=())
    with pytest.raises(SpecError) as caught:
        launch.run(opening)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], list[str]]:
    """A run that is interrupted before its first attempt, and `meanwhile` as it is taken; what became of the lease."""
    done: list[str] = []

    def begun(driver: Driver) -> Ending:
        raise AssertionError("an attempt was begun")

    monkeypatch.setattr(launch.storage, "check_writable", lambda url: None)
    monkeypatch.setattr(launch.cluster, "connected", lambda spec: nullcontext(None))
    for name in ("cluster.check_fits", "cluster.check_shared", "write_run", "job_of", "Evaluations.of"):
        monkeypatch.setattr(f"iddpm_ray.runtime.launch.{name}", lambda *_, **__: None)
    monkeypatch.setattr(Driver, "run", begun)
    manifest = SimpleNamespace(training_rows=range(8))
    opening: Any = SimpleNamespace(spec=small_spec(tmp_path), url="gs://bucket/run", manifest=manifest, adopted=("another data set",))

    def interrupted(meanwhile: Callable[[], None]) -> list[str]:
        def take(*_: Any, **__: Any) -> Any:
            done.append("taken")
            meanwhile()
            return SimpleNamespace(release=lambda: done.append("released"))

        monkeypatch.setattr(launch, "take_hold", take)
        with pytest.raises(KeyboardInterrupt):
            launch.run(opening)
        return done

    return interrupted


def test_a_signal_while_the_run_is_taken_gives_it_back(
    taken: Callable[[Callable[[], None]], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    was = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        assert taken(lambda: os.kill(os.getpid(), signal.SIGTERM)) == ["taken", "released"]
    finally:
        signal.signal(signal.SIGTERM, was)
    assert "another data set" in "".join(capsys.readouterr())  # that is adopted is said


@pytest.mark.parametrize(("earlier", "done"), [(True, []), (False, ["taken", "released"])])
def test_a_signal_whose_interrupt_was_swallowed_stops_the_run(
    earlier: bool, done: list[str], taken: Callable[[Callable[[], None]], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.signals, "seen", lambda: earlier)
    assert taken(lambda: monkeypatch.setattr(launch.signals, "seen", lambda: True)) == done


def test_ctrl_c_before_there_is_a_run_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(spec: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("iddpm_ray.train.directory.inspect_run", interrupted)
    (tmp_path / "spec.yaml").write_text(dump_yaml(small_spec(tmp_path)))
    main = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "train.py"))["main"]
    assert main([str(tmp_path / "spec.yaml")]) == 130
    assert capsys.readouterr().err == "interrupted: nothing was begun; the same command starts the run, or goes on with it\n"


class Asked:
    """In the place of the demand that an autoscaler sees."""

    def __init__(self, spec: Any, *, missing: int) -> None:
        self.missing, self.made, self.released = missing, 0, 0
        ASKED.append(self)

    def make(self) -> None:
        self.made += 1

    def ask(self, missing: int) -> None:
        self.missing = max(self.missing, missing)

    def release(self) -> None:
        self.released += 1

    def came(self) -> int:
        return 0


ASKED: list[Asked] = []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    monkeypatch.setattr(launch, "Demand", Asked)
    ASKED.clear()
    return ASKED


def test_a_run_that_has_not_begun_waits_for_machines_and_then_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Asked]
) -> None:
    monkeypatch.setattr(launch.cluster, "capacity", lambda accelerator_type: launch.cluster.Capacity(0, 0, 1, ((0, 0),)))
    said: list[str] = []
    it = driver(tmp_path, said, workers=2, address="10.0.0.1:6379", start_timeout_s=1)
    with pytest.raises(SpecError) as caught:
        it._room()
    assert len(said) == 1
    assert said[0].startswith("waiting up to 1 s (cluster.start_timeout_s) for room: the run asks for 4 CPUs")
    assert str(caught.value).startswith("no room came in 1 s (cluster.start_timeout_s): the run asks for 4 CPUs (2 workers x ")
    assert "the cluster has 0 CPUs and 0 GPUs: see why machines do not come" in str(caught.value)
    assert [(one.missing, one.made, one.released) for one in asked] == [(2, 1, 1)]


def test_room_for_those_who_leave_is_asked_for_while_they_are_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Asked]
) -> None:
    """Two of three machines go, one after the other; all ranks have the news; nothing was asked for before."""
    going: set[str] = set()
    monkeypatch.setattr(launch.cluster, "leaving_nodes", lambda: set(going))
    monkeypatch.setattr(launch, "take_place", lambda opening, **rest: None)
    wanted: list[int] = []

    def attempt(spec: Any, place: Any, *, workers: int, manifest: Any, watch: Watch) -> Ending:
        (growth, replacement) = asked
        for nodes, notice in ((set(), None), ({"machine-2"}, 5.0), ({"machine-2", "machine-0"}, 5.0)):
            going.update(nodes)
            heard = {rank: Heard(Pulse(rank, moves=3, node=f"machine-{rank}", pid=1, notice=notice)) for rank in range(workers)}
            watch.wishes(1.0, heard)
            wanted.append(replacement.missing)
        assert (growth.missing, replacement.released) == (0, 0)
        return Ending("preempted", 7)

    monkeypatch.setattr(launch, "run_attempt", attempt)
    it = driver(tmp_path, [], workers=3, address="10.0.0.1:6379")
    monkeypatch.setattr(it, "_room", lambda: 3)
    assert Driver._attempt(it, None).why == "preempted"  # type: ignore[arg-type] no manifest is needed
    assert wanted == [0, 1, 2]
    assert asked[1].released == 1


class Came(Asked):
    """Room that comes at once, and is none for a worker."""

    rested = 0.0

    def came(self) -> int:
        return 1

    def rest(self, seconds: float) -> None:
        self.rested = seconds


def test_room_that_is_none_for_a_worker_is_given_back_and_asked_for_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it = driver(tmp_path, [], workers=[1, 2], address="10.0.0.1:6379", grow_every_s=100)
    monkeypatch.setattr(it, "_seats", lambda: 1)
    room: Any = Came(it.spec, missing=1)
    assert not it._wishes(room, age_s=100, seated=True, workers=1)
    assert room.rested == 100
    monkeypatch.setattr(growth, "placement_group", lambda bundles, strategy: object())
    monkeypatch.setattr(growth, "remove_placement_group", lambda group: None)
    clock = [0.0]
    monkeypatch.setattr(growth.time, "monotonic", lambda: clock[0])
    demand = growth.Demand(it.spec, missing=2)
    demand.make()
    assert len(demand._groups) == 2
    demand.rest(100)
    for clock[0], groups in ((99.0, 0), (100.0, 2)):
        demand.make()
        assert len(demand._groups) == groups


def test_a_run_with_checkpoints_waits_on_a_crowded_cluster_and_one_without_gives_up(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Ending("lost", error=TrainError("the workers did not all start"), cause="the workers did not all start", crowded=True)
    said: list[str] = []
    it = driver(tmp_path, said, workers=1, max_fruitless=2).follow(*[full] * 9, Ending("finished", 5))
    monkeypatch.setattr(it, "_newest", lambda: (1, 5))
    assert it.run().why == "finished"
    assert said[0].startswith("no room: the workers did not all start; going on")
    it = driver(tmp_path, [], workers=1, max_fruitless=2).follow(*[full] * 9)
    with pytest.raises(TrainError, match="without a new checkpoint: 3"):
        it.run()
