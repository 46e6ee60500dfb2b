"""Whole runs on an embedded Ray: they finish, go on after whatever ended them, and say so in few words."""

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import command_line
from ranks import run_ranks
from runtime.started_job import Job
from train.small_run import assert_same_run, run_url, small_spec, start, write_pictures

from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.spec.spec import JobSpec

pytestmark = pytest.mark.timeout(900)


def spec_on_ray(root: Path, name: str, **sections: dict[str, Any]) -> JobSpec:
    """Two workers that, with the data task, fit on one CPU; a run too long to end by itself."""
    given: dict[str, dict[str, Any]] = {
        "run": {"name": name},
        "data": {"cpus_per_task": 0.25, "flip": True},
        "train": {"duration": "100000 steps"},
        "checkpoint": {"every": "20 steps", "keep_last": 3},
        "log": {"every": "10 steps", "tensorboard": False},
        "resampler": {"kind": "loss_second_moment", "history": 2},
        "cluster": {"workers": 2, "cpus_per_worker": 0.25, "object_store_gib": 0.1},
    }
    for section, fields in sections.items():
        given[section] = {**given.get(section, {}), **fields}
    return small_spec(root, **given)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launch")
    write_pictures(path / "pictures")
    return path


def stop(job: Job, how: Callable[[], None], signal_name: str) -> int:
    """Asks for a stop; the step that the run says it stopped at."""
    how()
    assert job.ends() == 0, job.text
    assert f"{signal_name}: finishing this step, saving, then ending (again to leave at once)" in job.lines
    return int(job.shows(r"^stopped at step (\d+): .*; the same command goes on from there$")[1])


def finish_and_compare(root: Path, name: str, stopped: int) -> None:
    """A second start resumes exactly there, and ten steps later the run is that of plain process-group ranks, never disturbed."""
    length = f"{stopped + 10} steps"
    spec = spec_on_ray(root, name, train={"duration": length})
    with Job(spec, root) as job:
        assert job.ends() == 0, job.text
        assert re.search(rf"^resuming step {stopped} of \S+/{name} from step-0*{stopped}\.a\d+ ", job.text, re.MULTILINE), job.text
        assert job.lines[-1] == f"finished at step {stopped + 10}: {run_url(spec)}"
        assert job.nothing_is_left()
        _speaks_plainly(job)
    plain = spec_on_ray(root, f"{name}-plain", train={"duration": length})
    run_ranks(start, 2, plain, timeout_s=240, group_timeout_s=120)
    assert_same_run(plain, spec)


def _speaks_plainly(job: Job, *, raylet: str = "$^") -> None:
    """Nothing of Ray's own, save what the raylet may say."""
    noise = [line for line in job.lines if re.search(r"\(raylet\)|\(autoscaler\)|Traceback|WARNING|pid=", line)]
    noise = [line for line in noise if not re.search(raylet, line)]
    assert not noise, job.text


@pytest.mark.slow
def test_a_terminated_run_saves_and_goes_on_bitwise(root: Path) -> None:
    """SIGTERM to the job's process; Ray's whole scratch is gone before the next start."""
    spec = spec_on_ray(root, "terminated")
    with Job(spec, root) as job:
        job.shows("^starting fresh")
        job.until(lambda: len(complete(run_url(spec))) > 0, "a checkpoint")
        assert len(job.workers()) == 2
        stopped = stop(job, job.terminate, "SIGTERM")
        assert job.nothing_is_left()
        _speaks_plainly(job)
    assert not job.scratch.exists()
    assert complete(run_url(spec))[0].step == stopped
    finish_and_compare(root, "terminated", stopped)


@pytest.mark.slow
def test_a_run_with_a_killed_worker_and_then_interrupted_goes_on_bitwise(root: Path) -> None:
    """SIGKILL of a rank; then Ctrl-C, which a terminal sends to Ray's processes too."""
    spec = spec_on_ray(root, "killed")
    with Job(spec, root) as job:
        job.shows("^starting fresh")
        job.until(lambda: len(complete(run_url(spec))) > 0, "a checkpoint")
        job.workers()[1].kill()
        told = job.shows(r"^attempt failed: .*$")[0]
        assert re.fullmatch(
            r"attempt failed: rank [01]: its process has died; rank [01] was in phase '[\w ]+' after step \d+; "
            r"going on from the newest checkpoint \(1 of 20 failures allowed\)",
            told,
        ), job.text
        step = int(job.shows(r"^resuming step (\d+) of \S+ from step-\d+\.a0001 \(attempt 2")[1])
        assert step % 20 == 0
        job.until(lambda: complete(run_url(spec))[0].step > step, "another checkpoint")
        stopped = stop(job, job.interrupt, "SIGINT")
        assert job.nothing_is_left()
        _speaks_plainly(job, raylet=r"\(raylet\).* A worker died or was killed")  # one line, with hints at memory
    finish_and_compare(root, "killed", stopped)


BEFORE = "interrupted: nothing was begun; the same command starts the run, or goes on with it"


STARTS = "{name}: ending as soon as Ray has started (again to leave at once)"


def test_a_term_while_ray_starts_is_a_line_at_once_and_one_at_the_end_and_leaves_no_ray(root: Path) -> None:
    with Job(spec_on_ray(root, "early"), root) as job:
        job.until(lambda: any("gcs_server" in command_line(process) for process in job.processes()), "a process of Ray")
        job.terminate()
        assert job.ends() == 130, job.text
        assert job.lines == [STARTS.format(name="SIGTERM"), BEFORE]
        assert job.nothing_is_left()


def test_a_term_while_ray_closes_does_not_hide_that_the_run_has_finished(root: Path) -> None:
    spec = spec_on_ray(root, "late", train={"duration": "2 steps"}, cluster={"workers": 1})
    with Job(spec, root) as job:
        job.until(lambda: _given_back(spec), "the lease given back")
        job.terminate()
        assert job.ends() == 0, job.text
        assert "SIGTERM: the run has ended and is closing (again to leave at once)" in job.lines
        assert job.lines[-1] == f"finished at step 2: {run_url(spec)}"
        assert job.nothing_is_left()
        _speaks_plainly(job)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_time_ends_with_a_line_and_a_code_that_are_documented(root: Path, number: signal.Signals) -> None:
    for tenths in range(20, 200, 20):
        spec = spec_on_ray(root, f"swept-{number.name.lower()}-{tenths}", train={"duration": "2 steps"})
        with Job(spec, root) as job:
            time.sleep(tenths / 10)
            job.process.send_signal(number)
            code, last = job.ends(within_s=240), job.lines[-1]
            assert (code, last) == (130, BEFORE) or (code == 0 and re.match("(finished|stopped) at step ", last)), job.text
            assert job.nothing_is_left()
            _speaks_plainly(job)
        assert _given_back(spec) or not list(Path(run_url(spec)).glob("lease/*.json"))


def _given_back(spec: JobSpec) -> bool:
    return any('"released": true' in path.read_text() for path in Path(run_url(spec)).glob("lease/*.json"))


def test_a_picture_that_cannot_be_read_is_one_line_with_rank_path_row_and_fix(root: Path, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    bad = sorted((tmp_path / "pictures").rglob("*.png"))[5]
    bad.write_bytes(b"no picture")
    spec = spec_on_ray(tmp_path, "corrupt", data={"on_error": "fail"})
    with Job(spec, tmp_path) as job:
        assert job.ends() == 2, job.text
        errors = [line for line in job.lines if line.startswith("error: ")]
        assert len(errors) == 1
        name = re.escape(f"{bad.parent.name}/{bad.name}")
        assert re.fullmatch(rf"error: rank [01]: \S*{name} \(row \d+\) is not a picture.*on_error.*", errors[0]), job.text
        assert len(job.lines) < 6, job.text
        assert job.nothing_is_left()
        _speaks_plainly(job)
