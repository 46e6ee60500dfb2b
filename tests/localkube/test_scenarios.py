"""The overlay dev-cpu and rendered jobs, run without Kubernetes: machines come, are taken away, never come. Timelines under `-s`."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from localkube.controller import LocalKube, copy_code
from localkube.kubelet import missing
from train.small_run import run_url, small_spec, write_pictures

from iddpm_ray import storage
from iddpm_ray.checkpoint.attempts import attempts
from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.checkpoint.marker import MARKER
from iddpm_ray.kube import render
from iddpm_ray.kube.kustomize import build
from iddpm_ray.report.accounts import run_account
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import dump_yaml

WHY_NOT = missing()
pytestmark = [pytest.mark.timeout(2400), pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

ROOT = Path(__file__).parents[2]
OVERLAY = ROOT / "k8s" / "overlays" / "dev-cpu"
WINDOW_S = 15.0


@pytest.fixture
def shared() -> Iterator[Path]:
    """What every pod sees, with a short path: sockets need one."""
    with tempfile.TemporaryDirectory(prefix="ik", dir="/tmp") as name:
        folder = Path(name)
        (folder / "shared").mkdir()
        copy_code(ROOT, folder / "shared" / "app")
        write_pictures(folder / "shared" / "pictures")
        (folder / "shared").chmod(0o777)
        yield folder / "shared"


@pytest.fixture
def kube(shared: Path) -> Iterator[LocalKube]:
    path = (
        f"{Path(sys.executable).parent}{os.pathsep}/usr/local/bin{os.pathsep}/usr/bin{os.pathsep}/bin{os.pathsep}/usr/sbin{os.pathsep}/sbin"
    )
    with LocalKube(shared.parent / "pods", shared, path=path) as one:
        yield one
    assert one.kubelet.left() == []


def overlay() -> list[dict[str, Any]]:
    objects = build(OVERLAY)
    assert any(one["kind"] == "RayCluster" for one in objects)
    return objects


def run_spec(shared: Path, name: str, *, steps: int = 100_000, **sections: dict[str, Any]) -> JobSpec:
    cluster = {"workers": 2, "cpus_per_worker": 0.5, "placement": "spread", "start_timeout_s": 600, **sections.pop("cluster", {})}
    return small_spec(
        shared,
        run={"name": name},
        data={"cpus_per_task": 0.5},
        train={"duration": f"{steps} steps"},
        log={"every": "1 steps", "tensorboard": False},
        cluster=cluster,
        **{"checkpoint": {"every": "100000 steps", "keep_last": 5}, **sections},
    )


def submit(kube: LocalKube, shared: Path, spec: JobSpec) -> str:
    """As `ray job submit -- python jobs/train.py`, by the token's owner."""
    path = shared / f"{spec.run.name}.yaml"
    path.write_text(dump_yaml(spec))
    kube.until(kube.ready, "a head that is ready")
    kube.note("the head is ready")
    code, answer = kube.http("POST", "/api/jobs/", {"entrypoint": f"exec python jobs/train.py {path}", "submission_id": spec.run.name})
    assert code == 200, answer
    return spec.run.name


def log_of(kube: LocalKube, job: str) -> str:
    answer = kube.http("GET", f"/api/jobs/{job}/logs")[1]
    return answer["logs"] if isinstance(answer, dict) else ""


def shows(kube: LocalKube, job: str, pattern: str) -> re.Match[str]:
    return kube.until(lambda: re.search(pattern, log_of(kube, job), re.MULTILINE), f"{pattern}\n{log_of(kube, job)}")


def cluster_py(kube: LocalKube, *words: str, token: str | None) -> subprocess.CompletedProcess[str]:
    """`python jobs/cluster.py ...` as somebody types it who can reach the head's job API."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "disabled"} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    command = [sys.executable, "jobs/cluster.py", *words, "--address", kube.jobs_url]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    kube.note(f"{'no' if token is None else 'a'} token: {(done.stdout + done.stderr).strip()}")
    return done


def test_without_the_token_nobody_submits(kube: LocalKube, shared: Path) -> None:
    """Neither without a token nor with another one, by HTTP or by our own command; with it, the job runs."""
    kube.apply(overlay())
    kube.until(kube.ready, "a head that is ready")
    kube.note("the head is ready")
    for token, words in ((None, "without a token"), ("f" * 64, "with another token")):
        code, _ = kube.http("POST", "/api/jobs/", {"entrypoint": f"touch {shared}/broken-in"}, token=token)
        kube.note(f"submit {words}: {code}")
        assert code in (401, 403)
    spec = run_spec(shared, "mine")
    path = shared / "mine.yaml"
    path.write_text(dump_yaml(spec))
    refused = cluster_py(kube, "submit", str(path), token="f" * 64)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: the job API at {kube.jobs_url} wants another token")
    assert "RAY_AUTH_TOKEN" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert kube.http("GET", "/api/jobs/")[1] == []
    known = cluster_py(kube, "status", str(path), token=kube.token)
    assert known.returncode == 0
    assert known.stdout.startswith("no job has had the run")
    assert kube.token not in known.stdout + refused.stdout + refused.stderr
    job = {"entrypoint": f"touch {shared}/came-in", "submission_id": "owner"}
    assert kube.http("POST", "/api/jobs/", job)[0] == 200
    kube.until(lambda: kube.http("GET", "/api/jobs/owner")[1]["status"] == "SUCCEEDED", "the owner's job")
    kube.note("the owner's job ran")
    assert (shared / "came-in").exists()
    assert not (shared / "broken-in").exists()


@pytest.mark.slow
def test_from_nothing_to_two_workers_through_a_reclaim_and_back_to_nothing(kube: LocalKube, shared: Path) -> None:
    """The autoscaler makes room; a spot machine's 15 s are enough; a replacement is asked for in them; idle pods are given back."""
    kube.apply(overlay())
    spec = run_spec(shared, "spot")
    job = submit(kube, shared, spec)
    assert kube.workers() == []
    kube.until(lambda: len([pod for pod in kube.workers() if pod.phase == "Running"]) == 2, "two workers")
    shows(kube, job, r"^step \d+")
    kube.note("the first steps")
    time.sleep(5)
    assert len(kube.workers()) == 2
    first = kube.workers()[0].first()
    assert first is not None
    assert first.uids().real == 1000
    assert "ray" in " ".join(first.cmdline()[:2])
    assert "start" in first.cmdline()
    going = kube.workers()[0].name
    noticed = kube.reclaim(going, window_s=WINDOW_S)
    kube.until(lambda: any(pod.name == going for pod in kube.kubelet.gone), "the end of the old pod", seconds=40)
    begun = int(shows(kube, job, r"^resuming step (\d+) of ")[1])
    kube.note(f"resumed step {begun}")
    shows(kube, job, r"^resuming step .*\n(?:.*\n)*?step [\d,]+ of ")
    kube.note("training again")
    code, _ = kube.http("POST", f"/api/jobs/{job}/stop")
    assert code == 200
    kube.until(lambda: kube.http("GET", f"/api/jobs/{job}")[1]["status"] in ("STOPPED", "SUCCEEDED", "FAILED"), "the end of the job")
    kube.note("stopped")
    kube.until(lambda: kube.workers() == [], "no workers")
    kube.note("back to zero")

    one = attempts(run_url(spec))[0]
    assert one.end is not None
    assert one.end["why"] == "preempted"
    told = max(rank["notice"] - noticed for rank in one.end["ranks"].values())
    marked = {
        each.step: storage.modified(f"{each.url}/{MARKER}") - noticed for each in complete(run_url(spec)) if each.attempt == one.number
    }
    redone = run_account(attempts(run_url(spec))).attempts[0].redone
    for step, seconds in sorted(marked.items()):
        print(f"{noticed - kube.began + seconds:7.1f} s  step {step} is committed, {seconds:.1f} s after the notice")
    print(f"ranks told {told:.1f} s after the notice; {redone} steps redone")
    assert told < 4
    assert 0 < max(marked.values()) < WINDOW_S
    assert begun == max(marked)
    assert redone <= 1
    wanted = [at for at, text in kube.timeline if "wanted (3 replicas)" in text]
    gone = [at for at, text in kube.timeline if text.startswith(f"{going} gone")]
    assert wanted
    assert noticed - kube.began < wanted[0] < gone[0], "the replacement is asked for while the old pod lives"


def rayjob(shared: Path, spec: JobSpec) -> list[dict[str, Any]]:
    """The rendered job with the run's directory and its pictures where these pods see them; nothing else of it is changed."""
    far = spec.model_copy(
        update={
            "run": spec.run.model_copy(update={"output_dir": "gs://bucket/runs"}),
            "data": spec.data.model_copy(update={"path": "gs://bucket/pictures"}),
            "kube": spec.kube.model_copy(update={"image": "iddpm-ray:dev", "machine": "e2-standard-4"}),
        }
    )
    objects = render.job(far)
    objects[0]["data"]["spec.yaml"] = objects[0]["data"]["spec.yaml"].replace("gs://bucket", str(shared))
    return objects


@pytest.mark.slow
def test_a_lost_head_gets_the_job_again_and_it_resumes_from_our_newest_checkpoint(kube: LocalKube, shared: Path) -> None:
    """Ray's scratch is gone with the head; the same RayJob, without a retry of its own, goes on."""
    spec = run_spec(shared, "head", checkpoint={"every": "200 steps", "keep_last": 3})
    objects = rayjob(shared, spec)
    kube.apply(objects)
    kube.until(lambda: len(complete(run_url(spec))) >= 1, "a checkpoint")
    kube.note("a checkpoint")
    head = kube.head()
    assert head is not None
    kube.lose(head.name)
    newest = max(one.step for one in complete(run_url(spec)))
    later = kube.until(lambda: [one for one in attempts(run_url(spec)) if one.number > 1 and one.began], "the next attempt")
    kube.note(f"resumed step {later[0].from_step}")
    kube.until(lambda: any(one.attempt > 1 for one in complete(run_url(spec))), "a checkpoint of the next attempt")
    status = kube.jobs["head"]["status"]
    assert later[0].from_step >= newest
    assert status["posts"] == 2
    assert status["jobDeploymentStatus"] == "Running"


@pytest.mark.slow
def test_where_no_machine_comes_the_job_waits_and_then_says_why(kube: LocalKube, shared: Path) -> None:
    kube.kubelet.capacity = 0
    kube.apply(overlay())
    spec = run_spec(shared, "stockout", cluster={"start_timeout_s": 30})
    job = submit(kube, shared, spec)
    kube.until(lambda: len(kube.workers()) == 2, "two pods that are wanted")
    assert {pod.phase for pod in kube.workers()} == {"Pending"}
    kube.until(lambda: kube.http("GET", f"/api/jobs/{job}")[1]["status"] == "FAILED", "the end")
    log = log_of(kube, job)
    kube.note("the job has ended")
    assert re.search(r"^waiting up to 30 s \(cluster\.start_timeout_s\) for room: the run asks for", log, re.MULTILINE)
    (said,) = {line for line in log.splitlines() if line.startswith("error: ")}
    kube.note(said)
    assert said.startswith("error: no room came in 30 s (cluster.start_timeout_s): the run asks for 2 CPUs")
    assert "the cluster has 0 CPUs" in said
    assert "see why machines do not come" in said
    assert not attempts(run_url(spec)), "nothing has begun"
