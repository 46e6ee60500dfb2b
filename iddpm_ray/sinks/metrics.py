"""What a monitor is told about a run, and out of which rows, signs of life and records each number comes. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Values = dict[tuple[str, str], float]
"""Numbers by metric and value of its label, which is empty where the metric has none."""


@dataclass(frozen=True)
class Metric:
    """One metric, as a gauge; in Prometheus its name begins with `ray_`.

    Attributes:
        label: beside `run`; None if there is none.
    """

    name: str
    about: str
    label: str | None = None


METRICS: tuple[Metric, ...] = (
    Metric("iddpm_running", "1 while a driver works on the run, also while it waits for machines; 0 once it has ended"),
    Metric("iddpm_workers", "ranks of the attempt under way; 0 between attempts"),
    Metric("iddpm_attempt", "number of the newest attempt"),
    Metric("iddpm_step", "updates completed"),
    Metric("iddpm_total_steps", "updates of the whole run; absent where it ends by the wall clock"),
    Metric("iddpm_step_time_seconds", "unix time of the last update, or of the driver's start"),
    Metric("iddpm_saved_step", "updates completed in the newest complete checkpoint; 0 where there is none"),
    Metric("iddpm_saved_time_seconds", "unix time of the newest complete checkpoint; absent where there is none"),
    Metric("iddpm_unsaved_since_seconds", "unix time since when updates are in no complete checkpoint; now, while there are none such"),
    Metric("iddpm_save_interval_steps", "updates between two saves; absent where checkpoint.every is wall-clock time"),
    Metric("iddpm_save_interval_seconds", "seconds between two saves; absent where checkpoint.every is no wall-clock time"),
    Metric("iddpm_save_seconds", "what the last save that a row knows of took, from its start to the marker"),
    Metric("iddpm_loss", "training loss since the last row"),
    Metric("iddpm_validation_loss", "loss on held-out pictures"),
    Metric("iddpm_loss_by_timestep", "training loss by quarter of the timesteps, 0 the least noise", label="quarter"),
    Metric("iddpm_grad_norm", "norm of the gradient, mean since the last row"),
    Metric("iddpm_images_per_second", "of all workers since the last row; 0 between attempts"),
    Metric("iddpm_data_wait_seconds", "a step's wait for pictures, mean since the last row"),
    Metric("iddpm_productive_share", "part of the time since the last row in which steps were computed"),
    Metric("iddpm_skipped_steps", "updates skipped because of non-finite gradients, over the whole history"),
    Metric("iddpm_loss_scale_log2", "loss scale of fp16, which skips an update now and then; absent in other precisions"),
    Metric("iddpm_worker_seconds", "seconds of all workers over all attempts, by what they were spent on", label="category"),
    Metric("iddpm_attempts_ended", "attempts by how they ended", label="why"),
    Metric("iddpm_gpu_memory_peak_bytes", "peak of what tensors took on the fullest GPU, of this attempt; absent without GPUs"),
    Metric("iddpm_gpu_memory_bytes", "memory of that GPU; absent without GPUs"),
)

ENDINGS = ("finished", "stopped", "preempted", "grown", "lost", "hung", "failed", "refused")

_OF_ROW = {
    "iddpm_loss": "loss",
    "iddpm_validation_loss": "val_loss",
    "iddpm_grad_norm": "grad_norm",
    "iddpm_images_per_second": "images_per_second",
    "iddpm_data_wait_seconds": "data_wait_s",
    "iddpm_productive_share": "productive_share",
    "iddpm_skipped_steps": "skipped_steps",
    "iddpm_loss_scale_log2": "lg_loss_scale",
    "iddpm_save_seconds": "save_s",
}


def of_row(row: Mapping[str, Any]) -> Values:
    """The numbers of a row. A column that the row has no value for (no sample fell into it) changes nothing; infinities stay."""
    found = {(name, ""): row.get(column) for name, column in _OF_ROW.items()}
    found |= {("iddpm_loss_by_timestep", str(quarter)): row.get(f"loss_q{quarter}") for quarter in range(4)}
    return {key: float(value) for key, value in found.items() if isinstance(value, int | float) and not _unknown(key[0], float(value))}


def _unknown(name: str, value: float) -> bool:
    """A mean over nothing; a loss that is not a number is news and stays."""
    return math.isnan(value) and name != "iddpm_loss"


def of_ranks(reports: Sequence[Mapping[str, Any]]) -> Values:
    """What the ranks' last signs of life say.

    Args:
        reports: of each rank its ledger's report, with `gpu_peak_bytes` and `gpu_bytes` where it has a GPU.
    """
    values: Values = {("iddpm_workers", ""): float(len(reports))}
    steps = [report["step"] for report in reports if report.get("step") is not None]
    if steps:
        values["iddpm_step", ""] = float(min(steps))
    gpus = [(float(report["gpu_peak_bytes"]), float(report["gpu_bytes"])) for report in reports if report.get("gpu_bytes")]
    if gpus:
        peak, size = max(gpus, key=lambda gpu: gpu[0] / gpu[1])
        values |= {("iddpm_gpu_memory_peak_bytes", ""): peak, ("iddpm_gpu_memory_bytes", ""): size}
    return values


def of_time(recorded: Mapping[str, float], reports: Sequence[Mapping[str, Any]]) -> Values:
    """Worker-seconds by category: those of the attempts that are over, and those that the ranks have booked since.

    Args:
        recorded: of the attempts that are over.
        reports: of the ranks of the attempt under way.
    """
    seconds = dict(recorded)
    for report in reports:
        booked = report.get("ledger", {})
        for name, value in booked.items():
            seconds[name] = seconds.get(name, 0.0) + value
        rest = max(0.0, report.get("now", 0.0) - report.get("began", 0.0) - sum(booked.values()))
        seconds["unaccounted"] = seconds.get("unaccounted", 0.0) + rest
    return {("iddpm_worker_seconds", name): value for name, value in seconds.items()}


def of_endings(endings: Mapping[str, int]) -> Values:
    """How many attempts ended in which way; each way from 0 on, so that the first of its kind shows as a rise."""
    return {("iddpm_attempts_ended", why): float(endings.get(why, 0)) for why in ENDINGS}
