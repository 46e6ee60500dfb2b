"""Rows, signs of life and records as metrics."""

import math
import re
from pathlib import Path

from iddpm_ray.runtime.budget import Why
from iddpm_ray.sinks.metrics import ENDINGS, METRICS, of_endings, of_ranks, of_row, of_time

ROW = {"step": 7, "samples": 28, "loss": 0.5, "loss_q0": 0.9, "loss_q1": math.nan, "loss_q2": 0.2, "loss_q3": 0.1, "grad_norm": 2.0}


def report(step: int | None, **ledger: float) -> dict[str, object]:
    return {"step": step, "began": 100.0, "now": 110.0, "ledger": ledger}


def test_a_row_says_its_numbers_and_those_it_has_none_of_stay_as_they_were() -> None:
    values = of_row({**ROW, "images_per_second": 40.0, "save_s": math.nan})
    assert values["iddpm_loss", ""] == 0.5
    assert values["iddpm_images_per_second", ""] == 40.0
    assert {which: value for (name, which), value in values.items() if name == "iddpm_loss_by_timestep"} == {"0": 0.9, "2": 0.2, "3": 0.1}
    assert ("iddpm_save_seconds", "") not in values
    assert ("iddpm_loss_scale_log2", "") not in values


def test_a_loss_that_is_no_number_is_shown() -> None:
    assert math.isnan(of_row({**ROW, "loss": math.nan})["iddpm_loss", ""])
    assert of_row({**ROW, "grad_norm": math.inf})["iddpm_grad_norm", ""] == math.inf


def test_the_step_is_the_one_that_all_ranks_have_done() -> None:
    assert of_ranks([report(5), report(6), report(None)]) == {("iddpm_workers", ""): 3.0, ("iddpm_step", ""): 5.0}
    assert of_ranks([report(None)]) == {("iddpm_workers", ""): 1.0}
    assert of_ranks([]) == {("iddpm_workers", ""): 0.0}


def test_the_fullest_gpu_counts() -> None:
    gpus = [{**report(1), "gpu_peak_bytes": peak, "gpu_bytes": size} for peak, size in ((30, 80), (20, 24))]
    values = of_ranks(gpus)
    assert (values["iddpm_gpu_memory_peak_bytes", ""], values["iddpm_gpu_memory_bytes", ""]) == (20.0, 24.0)


def test_every_second_of_every_worker_is_in_a_category() -> None:
    values = of_time({"productive": 50.0, "redone": 5.0}, [report(1, productive=6.0, data_wait=3.0), report(1, productive=10.0)])
    assert values == {
        ("iddpm_worker_seconds", "productive"): 66.0,
        ("iddpm_worker_seconds", "redone"): 5.0,
        ("iddpm_worker_seconds", "data_wait"): 3.0,
        ("iddpm_worker_seconds", "unaccounted"): 1.0,
    }


def test_endings_are_counted_from_nought() -> None:
    values = of_endings({"preempted": 2, "running": 1})
    assert values["iddpm_attempts_ended", "preempted"] == 2
    assert values["iddpm_attempts_ended", "hung"] == 0
    assert sorted(which for _, which in values) == sorted(ENDINGS) == sorted(Why.__args__)


def test_names_are_what_prometheus_takes_and_labels_are_few() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert all(name.startswith("iddpm_") and name.replace("_", "").isalnum() and name.islower() for name in names)
    assert {metric.label for metric in METRICS} == {None, "quarter", "category", "why"}


def test_the_document_says_of_every_metric_what_it_says_itself() -> None:
    text = (Path(__file__).parents[2] / "docs/monitoring.md").read_text()
    listed = re.findall(r"^\| `ray_(\w+)(?:\{(\w+)\})?` \| (.*) \|$", text, flags=re.MULTILINE)
    assert listed == [(metric.name, metric.label or "", metric.about) for metric in METRICS]
