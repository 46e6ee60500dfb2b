"""Machines that vanish: told 12 s before, or not at all; fewer and more of them. Timelines are shown under `-s`."""

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from processes import command_line
from runtime.elastic_curve import save_elastic_curve
from runtime.machines import Machines
from runtime.started_job import Job
from runtime.test_launch import spec_on_ray
from train.small_run import final_rows, run_url, write_pictures

from iddpm_ray import storage
from iddpm_ray.checkpoint.attempts import attempts
from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.checkpoint.marker import MARKER
from iddpm_ray.report.accounts import run_account
from iddpm_ray.spec.spec import JobSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS = 2000
CLUSTER = {"cpus_per_worker": 0.5, "placement": "spread", "object_store_gib": None, "start_timeout_s": 120, "max_failures": 0}


@pytest.fixture
def machines() -> Iterator[Machines]:
    with Machines() as some:
        yield some


def spot_spec(root: Path, name: str, machines: Machines, **sections: dict[str, Any]) -> JobSpec:
    """A run whose own checkpoints are far apart, so that what is kept was saved because of the notice."""
    if not (root / "pictures").exists():
        write_pictures(root / "pictures")
    given = {"checkpoint": {"every": "100000 steps", "keep_last": 5}, "log": {"every": "1 steps", "tensorboard": False}, **sections}
    given["cluster"] = {**CLUSTER, "address": machines.address, **sections.get("cluster", {})}
    return spec_on_ray(root, name, **given)


def stop(job: Job) -> None:
    job.terminate()
    assert job.ends() == 0, job.text


@pytest.mark.parametrize("which", ["one", "other", "both", "both, before Ray watches"])
def test_a_notice_of_twelve_seconds_costs_no_step(tmp_path: Path, machines: Machines, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two machines is rank 0's; the replacement comes while the old machine still lives."""
    if which.endswith("watches"):
        monkeypatch.setenv("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
        which = "both"
    machines.add()
    machines.add()
    spec = spot_spec(tmp_path, which, machines, cluster={"workers": 2})
    with Job(spec, tmp_path) as job:
        job.shows(r"^step \d+")
        going = {"one": machines.nodes[:1], "other": machines.nodes[1:], "both": machines.nodes[:]}[which]
        noticed = time.time()
        for node in list(going):
            machines.drain(node, seconds=12)
        for _ in going:
            machines.add()
        time.sleep(max(0.0, noticed + 12 - time.time()))
        for node in list(going):
            machines.kill(node)
        job.shows(r"^preempted: ")
        begun = int(job.shows(r"^resuming step (\d+) of ")[1])
        stop(job)
    first, second = attempts(run_url(spec))[:2]
    assert first.end is not None
    assert first.end["why"] == "preempted"
    told = [rank["notice"] - noticed for rank in first.end["ranks"].values()]
    saved = [one for one in complete(run_url(spec)) if one.attempt == 1]
    marked = [storage.modified(f"{one.url}/{MARKER}") - noticed for one in saved]
    redone = run_account([first, second]).attempts[0].redone
    print(f"\n{which}: told after {told} s, saved after {sorted(marked)} s, steps redone {redone}")
    assert max(told) < 4
    assert 0 < min(marked) < max(marked) < 12
    assert begun == max(one.step for one in saved)
    assert redone <= 1
    assert "no failure" not in job.text
    assert "attempt failed" not in job.text


def test_a_machine_lost_without_notice_is_no_failure_of_the_program(tmp_path: Path, machines: Machines) -> None:
    machines.add()
    machines.add()
    spec = spot_spec(tmp_path, "lost", machines, cluster={"workers": 2}, checkpoint={"every": "20 steps", "keep_last": 3})
    with Job(spec, tmp_path) as job:
        job.until(lambda: len(complete(run_url(spec))) > 0, "a checkpoint")
        machines.kill(machines.nodes[1])
        machines.add()
        told = job.shows(r"^machine lost: the machines of ranks [01] died without notice; .*\(no failure of the program\)$")
        job.shows(r"^resuming step \d+ of .*\(attempt 2")
        print(f"\n{told[0]}")
        stop(job)
    account = run_account(attempts(run_url(spec)))
    assert (account.endings["lost"], account.endings["failed"]) == (1, 0)


def test_a_frozen_worker_is_named_and_its_group_restarted(tmp_path: Path, machines: Machines) -> None:
    machines.add()
    machines.add()
    limits = {"workers": 2, "hang_timeout_s": 15, "collective_timeout_s": 120, "max_failures": 1}
    spec = spot_spec(tmp_path, "frozen", machines, cluster=limits, checkpoint={"every": "20 steps", "keep_last": 3})
    with Job(spec, tmp_path) as job:
        job.until(lambda: len(complete(run_url(spec))) > 0, "a checkpoint")
        frozen = next(process for process in machines.processes() if "RayTrainWorker" in command_line(process))
        frozen.suspend()
        hang = job.shows(r"^hang: rank ([01]) shows no sign of life for \d+ s, in phase '\w[\w ]*' after step \d+; ending this attempt$")
        job.shows(r"^resuming step \d+ of .*\(attempt 2")
        print(f"\n{hang[0]}")
        stop(job)
    end = attempts(run_url(spec))[0].end
    assert end is not None
    assert end["why"] == "hung"
    assert end["ranks"][hang[1]]["pid"] == frozen.pid


def test_four_workers_three_one_two_see_every_position_once_and_the_same_losses(tmp_path: Path, machines: Machines) -> None:
    """Machines go and come; the fixed run is one worker's. float32, uniform resampler, lr 1e-3."""
    for _ in range(4):
        machines.add()
    plain = {"resampler": {"kind": "uniform", "history": 10}, "train": {"duration": f"{STEPS} steps", "global_batch": 12}}
    wide = {"workers": [1, 4], "grow_every_s": 0, "cpus_per_worker": 0.75}  # with its data task, a machine
    spec = spot_spec(tmp_path, "elastic", machines, cluster=wide, **plain)
    with Job(spec, tmp_path) as job:
        job.shows(r"^step \d+")
        for leave in (1, 2):
            before = job.text.count("resuming step")
            going = machines.nodes[:leave]
            for node in list(going):
                machines.drain(node, seconds=10)
            job.until(lambda before=before: job.text.count("resuming step") > before, "the smaller group")
            for node in list(going):
                machines.kill(node)
        machines.add()
        job.shows(r"^room for more workers: ")
        assert job.ends() == 0, job.text
    known = attempts(run_url(spec))
    assert [one.info["workers"] for one in known] == [4, 3, 1, 2]
    rows = final_rows(spec)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(later["samples"] - row["samples"] == 12 for row, later in pairwise(rows))
    fixed = spot_spec(tmp_path, "fixed", machines, cluster={"workers": 1}, **plain)
    with Job(fixed, tmp_path) as job:
        assert job.ends() == 0, job.text
    pairs = [(row["loss"], other["loss"]) for row, other in zip(rows, final_rows(fixed), strict=True)]
    worst = max(abs(one - other) / abs(other) for one, other in pairs[:50])
    begun = [(one.info["workers"], one.from_step) for one in known]
    picture = tmp_path / "elastic.png"
    save_elastic_curve([one for one, _ in pairs], [other for _, other in pairs], begun, picture)
    print(f"\n(workers, from step): {begun}; first 50 losses within {worst:.1e}; {picture}")
    assert worst < 1e-5
