"""A run's hours are those of its job, whatever happens to heads: it saves and stops before the operator ends it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from train.small_run import small_spec

from iddpm_ray.checkpoint.attempts import attempts, begin_attempt, take_attempt
from iddpm_ray.kube import render
from iddpm_ray.runtime.hours import Job, job_name, job_of
from iddpm_ray.runtime.launch import Driver

HOUR = 3600


def as_job(patch: pytest.MonkeyPatch, name: str, **metadata: str) -> None:
    """As Ray starts the entrypoint of a job."""
    said = {"runtime_env": {}, "metadata": {"job_submission_id": name, "job_name": name, **metadata}}
    patch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(said))


def rendered(tmp_path: Path) -> dict[str, str]:
    spec = small_spec(tmp_path, run={"output_dir": "gs://a/b"}, data={"path": "gs://a/c"}, cluster={"max_hours": 10})
    kube = spec.kube.model_copy(update={"image": "r/iddpm-ray:1", "machine": "e2-standard-4"})
    return render.job(spec.model_copy(update={"kube": kube}))[1]["spec"]["metadata"]


def driver(tmp_path: Path, job: Job) -> Driver:
    opening: Any = type("Opening", (), {"manifest": None, "url": str(tmp_path)})()
    made = Driver(small_spec(tmp_path, cluster={"max_hours": 10}), opening, show=print, show_row=lambda row: None)
    made.job = job
    return made


def test_a_driver_after_a_lost_head_counts_from_the_first_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, metadata = str(tmp_path / "run"), rendered(tmp_path)
    as_job(monkeypatch, "cats-x7f2k", **metadata)
    assert job_of(url) == Job("cats-x7f2k", 0.0)
    for hours in (9, 4):  # two drivers of the job before this one, and each wrote when the first began
        first = Job("cats-x7f2k", spent_s=(9 - hours) * HOUR)
        info = first.record(hours * HOUR)
        begin_attempt(url, take_attempt(url, info=info), began_from=None, info=info)
    take_attempt(url, info={"job": {"name": "cats-earlier", "began": time.time() - 99 * HOUR}})
    take_attempt(url, info={"job": "damaged"})
    job = job_of(url)
    assert job.spent_s == pytest.approx(9 * HOUR, abs=60)
    assert [one.info["job"]["began"] for one in attempts(url)[:2]] == pytest.approx([time.time() - 9 * HOUR] * 2, abs=60)
    assert not driver(tmp_path, job)._over()
    assert driver(tmp_path, Job("cats-x7f2k", spent_s=10 * HOUR))._over()


def test_a_start_by_a_person_has_all_its_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job may even have the name of one on another cluster."""
    url = str(tmp_path / "run")
    take_attempt(url, info={"job": {"name": "cats-1", "began": time.time() - 9 * HOUR}})
    as_job(monkeypatch, "cats-1")
    assert job_of(url) == Job()
    assert Job().record(5.0) == {}
    for text in (None, "{", "[]", '{"metadata": null}'):
        if text is None:
            monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR")
        else:
            monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", text)
        assert job_name() is None
