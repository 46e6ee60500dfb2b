"""The literal `ray job submit -- python jobs/train.py spec.yaml`, against a head of our own on this machine."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from processes import free_ports, kill_all_with
from train.small_run import run_url, small_spec, write_pictures

from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import dump_yaml

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).with_name("ray"))


@dataclass(frozen=True)
class Head:
    """A head node as an image starts it: in a WORKDIR that holds `jobs/`, with iddpm_ray installed."""

    address: str
    workdir: Path
    environment: dict[str, str]

    def submit(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """`ray job submit` as typed in `cwd`; its output is the job's log, shown under `-s`."""
        return self.job("submit", *words, cwd=cwd)

    def job(self, verb: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """`ray job VERB` as typed in `cwd`."""
        command = [RAY, "job", verb, "--address", self.address, *words]
        done = subprocess.run(
            command, cwd=cwd, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=400
        )
        print(f"\n$ {' '.join(command[1:])}\n{done.stdout}")
        return done


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    settings = {"RAY_AUTH_MODE": "disabled", "RAY_JOB_STOP_WAIT_TIME_S": "60"}  # Ray's own 3 s are too few to save
    with started_head(tmp_path_factory.mktemp("workdir"), settings) as one:
        yield one


@contextmanager
def started_head(workdir: Path, auth: dict[str, str]) -> Iterator[Head]:
    """A head, and what whoever started it has in the environment."""
    shutil.copytree(ROOT / "jobs", workdir / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    scratch = tempfile.mkdtemp(prefix="rh", dir="/tmp")  # sockets need a short path
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}",
        "PYTHONPATH": str(ROOT),  # installed, also where this checkout is not
        **auth,
        "RAY_TMPDIR": scratch,
        "RAY_worker_niceness": "0",
    }
    ports = free_ports(4)
    options = {"port": ports[0], "dashboard-port": ports[1], "dashboard-agent-listen-port": ports[2], "ray-client-server-port": ports[3]}
    command = [RAY, "start", "--head", "--block", "--num-cpus=4", "--disable-usage-stats", f"--temp-dir={scratch}"]
    command += ["--object-store-memory=100000000", *(f"--{name}={port}" for name, port in options.items())]
    with open(workdir / "head.log", "w") as log:
        process = subprocess.Popen(command, cwd=workdir, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{ports[1]}"
        _wait_for(f"{address}/api/jobs/", process, workdir / "head.log")
        yield Head(address, workdir, environment)
    finally:
        kill_all_with("RAY_TMPDIR", scratch)
        process.wait(30)
        shutil.rmtree(scratch, ignore_errors=True)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 240
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).read()
            return
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):  # it is up, and asks who we are
                return
            raise
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)


def spec_of(root: Path, name: str, **train: Any) -> JobSpec:
    if not (root / "pictures").exists():  # written again, it would be another data set
        write_pictures(root / "pictures")
    return small_spec(
        root,
        run={"name": name},
        data={"cpus_per_task": 0.5},
        train={"duration": "6 steps", **train},
        cluster={"workers": 2, "cpus_per_worker": 0.5},
    )


def test_the_command_works_in_the_images_workdir_and_again_with_the_spec_at_a_url(head: Head, tmp_path: Path) -> None:
    """A relative spec path means the head's; the second job goes on from where the first ended."""
    spec = spec_of(tmp_path, "plain")
    (head.workdir / "spec.yaml").write_text(dump_yaml(spec))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = head.submit("--", "python", "jobs/train.py", "spec.yaml", cwd=elsewhere)
    assert done.returncode == 0, done.stdout
    assert re.search("^starting fresh", done.stdout, re.MULTILINE)
    assert f"finished at step 6: {run_url(spec)}\n" in done.stdout
    _speaks_plainly(done.stdout)

    url = (tmp_path / "plain.yaml").as_uri()
    (tmp_path / "plain.yaml").write_text(dump_yaml(spec_of(tmp_path, "plain", duration="9 steps")))
    done = head.submit("--", "python", "jobs/train.py", url, "log.every=1 steps", cwd=elsewhere)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^resuming step 6 of \S+/plain from step-0*6\.a0001 \(attempt 2", done.stdout, re.MULTILINE)
    assert f"finished at step 9: {run_url(spec)}\n" in done.stdout
    assert complete(run_url(spec))[0].step == 9


def test_the_command_works_with_a_working_dir_that_travels(head: Head, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "travels")
    folder = tmp_path / "project"
    for name in ("jobs", "iddpm_ray"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "mine.yaml").write_text(dump_yaml(spec))
    done = head.submit("--working-dir", str(folder), "--", "python", "jobs/train.py", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert f"finished at step 6: {run_url(spec)}\n" in done.stdout


def test_a_mistake_in_the_spec_fails_the_job_with_one_line(head: Head, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "mistaken")
    (tmp_path / "mistaken.yaml").write_text(dump_yaml(spec).replace("ema_rates", "ema_rate"))
    done = head.submit("--", "python", "jobs/train.py", (tmp_path / "mistaken.yaml").as_uri(), cwd=tmp_path)
    assert done.returncode != 0
    errors = {line for line in done.stdout.splitlines() if line.startswith("error: ")}  # Ray shows the end of a failed log again
    assert len(errors) == 1, done.stdout
    assert "ema_rates" in errors.pop()
    assert "Traceback" not in done.stdout


def test_a_stopped_job_saves_says_how_to_go_on_and_does(head: Head, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "stopped", duration="100000 steps")
    (tmp_path / "stopped.yaml").write_text(dump_yaml(spec))
    program = ["--", "python", "jobs/train.py", (tmp_path / "stopped.yaml").as_uri()]
    assert head.submit("--no-wait", "--submission-id", "to-stop", *program, cwd=tmp_path).returncode == 0
    deadline = time.monotonic() + 240
    while not _saved(spec):
        assert time.monotonic() < deadline, head.job("logs", "to-stop", cwd=tmp_path).stdout
        time.sleep(0.5)
    assert head.job("stop", "to-stop", cwd=tmp_path).returncode == 0
    log = head.job("logs", "to-stop", cwd=tmp_path).stdout
    step = complete(run_url(spec))[0].step
    assert re.search(rf"stopped at step {step}\b", log), log
    _speaks_plainly(log)

    done = head.submit(*program, f"train.duration={step + 2} steps", cwd=tmp_path)
    assert re.search(rf"^resuming step {step} of ", done.stdout, re.MULTILINE), done.stdout
    assert done.returncode == 0, done.stdout


def _saved(spec: JobSpec) -> bool:
    """Whether the run has a checkpoint; before its directory is there it has none."""
    try:
        return bool(complete(run_url(spec)))
    except OSError:
        return False


def test_a_head_with_token_authentication_runs_nothing_for_a_stranger(tmp_path: Path) -> None:
    """Neither without a token nor with a wrong one."""
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
    proof = tmp_path / "ran"
    program = ["--", "python", "-c", f"open({str(proof)!r}, 'a').write('x')"]
    with started_head(tmp_path / "workdir", auth) as known:
        for stranger in ({"RAY_AUTH_MODE": "disabled"}, {**auth, "RAY_AUTH_TOKEN": "f" * 64}):
            environment = {name: value for name, value in known.environment.items() if name not in auth} | stranger
            refused = replace(known, environment=environment).submit(*program, cwd=tmp_path)
            assert refused.returncode != 0
            assert re.search(r"(?i)auth|token|401|403", refused.stdout), refused.stdout
            assert auth["RAY_AUTH_TOKEN"] not in refused.stdout
        assert not proof.exists()
        assert known.submit(*program, cwd=tmp_path).returncode == 0
        assert proof.read_text() == "x"


def _speaks_plainly(text: str) -> None:
    """Of Ray at most the raylet's count of processes, whose threshold is the head's own setting."""
    noise = [line for line in text.splitlines() if re.search(r"\(autoscaler\)|Traceback|WARNING|pid=", line)]
    noise = [line for line in noise if "worker processes have been started" not in line]
    assert not noise, text
