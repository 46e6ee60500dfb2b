"""A run is sent to a Ray as the words that say it, found again, followed and stopped; and a machine is taken away from it on purpose."""

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from runtime.machines import Machines
from runtime.started_job import Job
from runtime.test_job_submit import Head, started_head
from runtime.test_spot import spot_spec, stop
from spec.alternatives import ALTERNATIVES, spec_with
from train.small_run import run_url, small_spec, write_pictures

from iddpm_ray.checkpoint.attempts import attempts
from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.cli import parse
from iddpm_ray.errors import UserError
from iddpm_ray.runtime import submit
from iddpm_ray.runtime.submit import Remote, as_overrides, from_here
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import dump_yaml

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", ALTERNATIVES)
def test_every_field_survives_the_way_as_a_word(path: str) -> None:
    alternative = ALTERNATIVES[path]
    spec = spec_with({**alternative.given, path: alternative.value})
    words = as_overrides(spec)
    assert parse(words).spec == spec
    usual = path == "model.num_res_blocks"  # its other value is the default
    assert any(word.startswith(f"{path}=") for word in words) != usual


def test_defaults_are_not_sent() -> None:
    words = as_overrides(spec_with({}))
    assert len(words) < 20


def test_paths_mean_where_they_were_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And buckets mean themselves."""
    monkeypatch.chdir(tmp_path)
    spec = spec_with({"run.output_dir": "runs", "data.path": "pictures/cats"})
    assert from_here(spec).run.output_dir == f"{tmp_path}/runs"
    assert from_here(spec).data.path == f"{tmp_path}/pictures/cats"
    far = spec_with({"run.output_dir": "gs://bucket/runs", "data.path": "s3://bucket/cats"})
    assert from_here(far) == far


class Late:
    """A job API whose head takes jobs from the third time on; or never, for another reason."""

    def __init__(self, reason: str) -> None:
        self.reason, self.asked = reason, 0

    def list_jobs(self) -> list[Any]:
        return []

    def submit_job(self, **job: Any) -> str:
        self.asked += 1
        if self.asked < 3:
            raise RuntimeError(f"Request failed with status code 500: {self.reason}.")
        return str(job["submission_id"])


def test_a_head_that_has_just_started_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "POLL_S", 0.0)
    late: Any = Late("No available agent to submit job, please try again later.")
    assert Remote(late).submit(spec_with({}), working_dir=None, show=print).endswith("-1")
    assert late.asked == 3
    never: Any = Late("the job is refused")
    with pytest.raises(UserError, match="Ray does not take the job"):
        Remote(never).submit(spec_with({}), working_dir=None, show=print)
    assert never.asked == 1


def command(*words: str, head: Head | None = None, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    """`python jobs/cluster.py ...` as a person types it; shown under `-s`."""
    environment = None if head is None else head.environment
    done = subprocess.run(
        [sys.executable, "jobs/cluster.py", *words],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
        check=False,
    )
    print(f"\n$ python jobs/cluster.py {' '.join(words)}\n{done.stdout}")
    return done


def written(spec: JobSpec, folder: Path) -> str:
    path = folder / f"{spec.run.name}.yaml"
    path.write_text(dump_yaml(spec))
    return str(path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_is_submitted_found_again_stopped_and_goes_on(tmp_path: Path) -> None:
    """With a token, over the job API alone; the second submission of the ended run resumes it."""
    write_pictures(tmp_path / "pictures")
    fields: dict[str, Any] = {
        "run": {"name": "sent"},
        "data": {"cpus_per_task": 0.5},
        "train": {"duration": "100000 steps"},
        "checkpoint": {"every": "50 steps", "keep_last": 3},
        "cluster": {"workers": 2, "cpus_per_worker": 0.5},
    }
    spec = small_spec(tmp_path, **fields)
    path = written(spec, tmp_path)
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
    with started_head(tmp_path / "workdir", {**auth, "RAY_JOB_STOP_WAIT_TIME_S": "300"}) as head:  # as our manifests have it
        there = ["--address", head.address]
        sent = command("submit", path, *there, "--detach", head=head)
        assert sent.returncode == 0
        name = re.search(r"submitted as job (\S+)", sent.stdout)
        assert name is not None
        deadline = time.monotonic() + 300
        while not complete(run_url(spec)):
            assert time.monotonic() < deadline
            time.sleep(1)
        again = command("submit", path, *there, "--detach", head=head)
        assert f"job {name[1]} has the run already" in again.stdout
        other = command("submit", path, "run.seed=1", *there, "--detach", head=head)
        assert other.returncode == 2
        assert "with another spec" in other.stdout
        status = command("status", path, *there, head=head)
        assert f"job {name[1]}: RUNNING" in status.stdout
        assert "newest checkpoint step-" in status.stdout
        assert command("stop", path, *there, head=head).returncode == 0
        step = max(one.step for one in complete(run_url(spec)))
        end = attempts(run_url(spec))[0].end
        assert end is not None
        assert end["why"] == "stopped"
        followed = command("submit", path, f"train.duration={step + 5} steps", *there, head=head)
        assert followed.returncode == 0
        assert re.search(rf"^resuming step {step} of ", followed.stdout, re.MULTILINE)
        assert f"finished at step {step + 5}" in followed.stdout
        stranger = Head(head.address, head.workdir, {**head.environment, "RAY_AUTH_TOKEN": "f" * 64})
        refused = command("status", path, *there, head=stranger)
        assert refused.returncode == 2
        assert auth["RAY_AUTH_TOKEN"] not in refused.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_drill_measures_what_a_machine_taken_away_costs(tmp_path: Path) -> None:
    """Three machines, two workers: the drained one is left, the spare one is taken."""
    with Machines() as machines:
        for _ in range(3):
            machines.add()
        spec = spot_spec(
            tmp_path, "drilled", machines, cluster={"workers": 2, "max_failures": 5}, checkpoint={"every": "100 steps", "keep_last": 5}
        )
        with Job(spec, tmp_path) as job:
            job.shows(r"^step \d+")
            done = command("drill", run_url(spec), "--address", machines.address, "--seconds", "12", "--patience", "300")
            assert done.returncode == 0
            stop(job)
    redone = re.search(r"^steps redone +(\d+)$", done.stdout, re.MULTILINE)
    back = re.search(r"^back +([\d.]+) s after the notice", done.stdout, re.MULTILINE)
    told = re.search(r"^ranks told +([\d.]+) s after the notice$", done.stdout, re.MULTILINE)
    assert redone
    assert back
    assert told
    assert int(redone[1]) <= 1
    assert float(told[1]) < 4
    assert attempts(run_url(spec))[0].end is not None
    assert "the attempt ended as: preempted" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_drill_of_nothing_is_one_sentence(tmp_path: Path) -> None:
    done = command("drill", str(tmp_path), "--address", "127.0.0.1:1")
    assert done.returncode == 2
    assert "holds no attempts of a run" in done.stdout
    assert "Traceback" not in done.stdout
