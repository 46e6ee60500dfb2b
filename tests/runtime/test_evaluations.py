"""Evaluations beside training: only in free room, the newest alone, given up when training wants the room, gone on with, and in time."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from runtime.started_job import Job
from train.small_run import run_url, small_spec, start, write_pictures

from iddpm_ray.checkpoint.commit import Checkpoint, complete
from iddpm_ray.checkpoint.scores import read_scores, running
from iddpm_ray.evaluate.assessed_run import evaluate_checkpoint
from iddpm_ray.evaluate.measured import pinned_data
from iddpm_ray.evaluate.nll_job import Looking
from iddpm_ray.evaluate.subject import choose_subject
from iddpm_ray.runtime import cluster, evaluations
from iddpm_ray.runtime.chunks import Pool
from iddpm_ray.runtime.evaluations import Evaluations, Need, free_node
from iddpm_ray.runtime.nll import run_nll
from iddpm_ray.sinks.jsonl import read_rows
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping, to_mapping

FID = "fid[digits-classifier]"


@pytest.fixture(scope="module")
def embedded_ray() -> Iterator[None]:
    with cluster.joined(None, object_store_gib=0.1):
        yield


def trained(root: Path, **evaluate: Any) -> JobSpec:
    """A run of eight steps with checkpoints at 4 and 8, which needs half a CPU and half a CPU for its pictures."""
    write_pictures(root / "pictures")
    spec = small_spec(
        root,
        data={"cpus_per_task": 0.5},
        train={"duration": "8 steps"},
        sample={"respacing": "10"},
        evaluate={"every": "4 steps", "features": "digits-classifier", "count": 1000, "cpus": 0.5, **evaluate},
        cluster={"cpus_per_worker": 0.5, "start_timeout_s": 3},
    )
    start(spec)
    return spec


def beside(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> tuple[Evaluations, list[str]]:
    said: list[str] = []
    monkeypatch.setattr(evaluations, "LOOK_SECONDS", 0.1)
    return Evaluations.of(spec, run_url=run_url(spec), rows_per_epoch=48, show=said.append), said


def tick_until(one: Evaluations, true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        one.tick()
        time.sleep(0.05)


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("embedded_ray")
def test_an_evaluation_that_was_ended_goes_on_and_finds_what_an_undisturbed_one_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = trained(tmp_path)
    one, said = beside(spec, monkeypatch)
    folder = Path(run_url(spec)) / "evaluations"

    def chunks() -> list[Path]:
        return sorted(folder.glob("quality-*/chunks/chunk-*"))

    tick_until(one, lambda: len(chunks()) > 0)
    one.make_room()
    assert read_scores(run_url(spec)) == []
    assert running(run_url(spec)) == "step-00000008.a0001", "it is to go on, so that it must stay"
    kept = {path: path.stat().st_mtime_ns for path in chunks()}
    one.tick()
    tick_until(one, lambda: len(chunks()) > len(kept) or bool(read_scores(run_url(spec))))
    assert one._running is not None
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items() if path.exists()), "what was done is not done again"
    (evaluator,) = (process for process in psutil.Process().children(recursive=True) if "_Evaluator" in " ".join(process.cmdline()))
    evaluator.kill()  # nobody asked for this one
    one.finish()
    (score,) = read_scores(run_url(spec))
    assert score.checkpoint.step == 8, "that of step 4 was superseded"
    assert running(run_url(spec)) is None
    assert not chunks()
    twin = trained(tmp_path / "twin")
    newest = complete(run_url(twin))[0]
    assert evaluate_checkpoint(twin, run_url=run_url(twin), checkpoint_url=newest.url) == dict(score.metrics)
    (row,) = read_rows(f"{run_url(spec)}/metrics/evaluations.jsonl")
    assert (row["step"], row["samples"]) == (8, 56)
    assert row[FID] == score.metrics[FID]
    assert any(line.startswith(f"{score.checkpoint.name}: {FID} ") for line in said)


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("embedded_ray")
def test_likelihood_is_the_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    spec = trained(tmp_path)
    subject = choose_subject(run_url(spec))
    manifest = pinned_data(run_url(spec), spec)
    looking = Looking("all", None, 0, 4, 8)
    found = {}
    for workers in (0, 2):
        folder, pool = str(tmp_path / str(workers)), Pool(workers, cpus=0.25)
        one = run_nll(subject, looking, manifest=manifest, folder=folder, pool=pool, target_se=0.001 if workers else None)
        assert one is not None
        found[workers] = [path.read_bytes() for path in sorted((Path(folder) / "chunks").iterdir())]
    assert len(found[0]) == 6
    assert found[2][:6] == found[0]
    assert len(found[2]) > 6, "so small an error needs more than one pass"


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("embedded_ray")
def test_without_free_room_nothing_begins_and_no_machine_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = trained(tmp_path, cpus=1000)
    one, said = beside(spec, monkeypatch)
    for _ in range(5):
        one.tick()
        time.sleep(0.15)
    assert one._running is None
    one.finish()
    assert said == ["step-00000008.a0001 was not evaluated: no node has 1000 CPUs and 0 GPUs free"]


@pytest.mark.usefixtures("embedded_ray")
def test_room_that_training_declares_is_not_free() -> None:
    have = cluster.capacity().cpus
    soon(lambda: free_node(Need(1, 0), declared=Need(have - 1, 0)) is not None)
    assert free_node(Need(1, 0), declared=Need(have - 0.5, 0)) is None
    assert free_node(Need(1, 1), declared=Need(0, 0)) is None

    @ray.remote(num_cpus=have)
    class Busy:
        def ready(self) -> None: ...

    busy: Any = Busy.remote()  # pyright: ignore[reportAttributeAccessIssue]
    ray.get(busy.ready.remote(), timeout=60)
    soon(lambda: free_node(Need(1, 0), declared=Need(0, 0)) is None)  # what others use is not free either
    ray.kill(busy)


def soon(true: Callable[[], bool]) -> None:
    """Ray learns of resources a moment later."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("embedded_ray")
def test_an_evaluation_that_cannot_be_made_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = trained(tmp_path, reference=str(tmp_path / "none.npz"))
    one, said = beside(spec, monkeypatch)
    one.finish()
    one.finish()
    warnings = [line for line in said if line.startswith("warning")]
    assert len(warnings) == 1
    assert "none.npz" in warnings[0]


def test_a_run_without_evaluations_asks_nobody(tmp_path: Path) -> None:
    one = Evaluations.of(small_spec(tmp_path), run_url=str(tmp_path), rows_per_epoch=48, show=lambda line: None)
    one.tick()
    one.make_room()
    one.finish()


def unseated(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> tuple[Evaluations, list[str], list[str]]:
    """Evaluations on a cluster whose processes never say that they have a seat, what is shown, and which were begun."""
    one, said = beside(spec, monkeypatch)
    begun: list[str] = []
    never: Any = object()

    def begin(self: Evaluations, checkpoint: Checkpoint, node: str) -> None:
        self._keep(checkpoint.name)
        begun.append(checkpoint.name)
        self._running = evaluations._Running(checkpoint, never, never, never, time.monotonic())

    monkeypatch.setattr(evaluations, "SEAT_SECONDS", 0.05)
    monkeypatch.setattr(evaluations.ray, "wait", lambda references, timeout: ([], references))
    monkeypatch.setattr(evaluations.ray, "kill", lambda actor: None)
    monkeypatch.setattr(evaluations, "free_node", lambda need, declared: "node")
    monkeypatch.setattr(evaluations, "declared", lambda spec: Need(0, 0))
    monkeypatch.setattr(Evaluations, "_begin", begin)
    return one, said, begun


@pytest.mark.timeout(60)
def test_an_evaluation_whose_processes_find_no_seat_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, said, begun = unseated(trained(tmp_path), monkeypatch)
    one.finish()
    assert begun == ["step-00000008.a0001"] * evaluations.MOST_TRIES
    assert said[-1] == "warning: step-00000008.a0001 was not evaluated: its process had no seat within 0.05 s, 3 times"
    assert running(run_url(one.spec)) is None


@pytest.mark.timeout(60)
def test_a_checkpoint_under_evaluation_is_not_swept_and_one_that_is_no_longer_due_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = trained(tmp_path)
    one, _, begun = unseated(spec, monkeypatch)
    one.tick()
    assert begun == ["step-00000008.a0001"]
    further: dict[str, Any] = {"train": {"duration": "16 steps"}, "checkpoint": {"keep_last": 1}}
    start(altered(spec, **further))
    there = {checkpoint.step for checkpoint in complete(run_url(spec))}
    assert there == {8, 16}, "the driver that evaluates step 8 may have died; its successor knows"
    successor, _, begun = unseated(spec, monkeypatch)
    successor.tick()
    assert begun == ["step-00000016.a0002"]
    assert running(run_url(spec)) == "step-00000016.a0002"


def altered(spec: JobSpec, **sections: dict[str, Any]) -> JobSpec:
    mapping = to_mapping(spec)
    return load_mapping({**mapping, **{name: {**mapping[name], **fields} for name, fields in sections.items()}})


def test_a_process_takes_its_seat_before_it_imports_torch() -> None:
    program = (
        "import os, sys\n"
        "from iddpm_ray.runtime.evaluations import _Evaluator\n"
        "_Evaluator.__ray_metadata__.modified_class(3).ready()\n"
        "assert os.environ['OMP_NUM_THREADS'] == '3'\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_job_evaluates_beside_training_and_once_more_at_its_end(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    spec = small_spec(
        tmp_path,
        data={"cpus_per_task": 0.25},
        train={"duration": "10000 steps"},
        checkpoint={"every": "2000 steps", "keep_last": 1, "keep_best": 1},
        log={"every": "500 steps", "tensorboard": False},
        sample={"respacing": "4"},
        evaluate={"every": "2000 steps", "features": "digits-classifier", "count": 200, "cpus": 0.5},
        cluster={"cpus_per_worker": 0.5},
    )
    with Job(spec, tmp_path) as job:
        assert job.ends() == 0, job.text
    rows = read_rows(f"{run_url(spec)}/metrics/evaluations.jsonl")
    assert rows[-1]["step"] == 10000
    assert len(rows) > 1, job.text
    best = min(rows, key=lambda row: float(row[FID]))
    assert best["step"] in {one.step for one in complete(run_url(spec))}, "the best one is kept"
    assert job.nothing_is_left()
