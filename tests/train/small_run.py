"""A real run, small enough to be made many times: handwritten digits, a network of one level, twelve steps."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from sklearn.datasets import load_digits

from iddpm_ray.checkpoint.commit import complete, read_marker
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.index import read_index
from iddpm_ray.parallel.collective import broadcast_bytes
from iddpm_ray.sinks.jsonl import read_rows
from iddpm_ray.sinks.rows import volatile
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping
from iddpm_ray.train.directory import inspect_run, take_place, write_run
from iddpm_ray.train.loop import Outcome, train
from iddpm_ray.train.session import LocalSession
from iddpm_ray.train.sources import LocalSources

NUM_PICTURES = 48


def write_pictures(folder: Path) -> str:
    """Handwritten digits as PNG files, a folder a class."""
    digits = load_digits()
    for number in range(NUM_PICTURES):
        path = folder / str(digits.target[number]) / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[number] * 15.9).astype(np.uint8)).save(path)
    return str(folder)


def small_spec(root: Path, **sections: Mapping[str, Any]) -> JobSpec:
    """The spec of a small run under `root`; sections given here replace single fields."""
    given: dict[str, dict[str, Any]] = {
        "run": {"name": "small", "output_dir": str(root / "runs")},
        "data": {"path": str(root / "pictures"), "image_size": 8, "channels": 1, "labels": "folder"},
        "model": {
            "num_channels": 32,
            "num_res_blocks": 1,
            "channel_mult": [1],
            "attention_resolutions": [],
            "num_heads": 1,
            "class_cond": True,
        },
        "diffusion": {"timesteps": 20, "schedule": "cosine", "variance": "learned_range"},
        "optim": {"lr": 1e-3, "ema_rates": [0.9, 0.99]},
        "train": {"global_batch": 7, "duration": "12 steps"},
        "checkpoint": {"every": "4 steps", "keep_last": 20},
        "log": {"every": "3 steps", "tensorboard": False},
    }
    for section, fields in sections.items():
        given[section] = {**given.get(section, {}), **fields}
    return load_mapping(given)


@dataclass
class DyingSession(LocalSession):
    """Kills its process the moment a phase begins for the n-th time."""

    dies_at: str = ""
    countdown: int = 0
    step_phases: list[str] = field(default_factory=list)

    def phase(self, name: str) -> None:
        """Counts, and dies."""
        if name == self.dies_at:
            self.countdown -= 1
            if self.countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def start(spec: JobSpec, dies_at: str = "", countdown: int = 0) -> tuple[Outcome, list[str]]:
    """One attempt on every rank of the process group, or alone; the driver's part is done by rank 0."""
    torch.set_num_threads(1)
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    opening = inspect_run(spec) if rank == 0 else None
    number = b""
    if opening is not None:
        write_run(opening)
        number = str(take_place(opening, info={"workers": world_size}).attempt).encode()
    if world_size > 1:
        number = broadcast_bytes(number)
    opening = opening or inspect_run(spec)
    place = _place(opening, int(number))
    session = DyingSession(rank=rank, world_size=world_size, dies_at=dies_at, countdown=countdown)
    sources = LocalSources.of(spec, opening.manifest, rank=rank, world_size=world_size)
    outcome = train(spec, session, sources=sources, place=place)
    return outcome, session.messages


def _place(opening: Any, attempt: int) -> Any:
    from iddpm_ray.spec.text import dump_yaml
    from iddpm_ray.train.directory import Place

    return Place(
        opening.url,
        attempt,
        dump_yaml(opening.spec).encode(),
        opening.spec.digest(),
        opening.manifest.digest,
        opening.manifest.classes,
        {"workers": 1},
    )


def run_url(spec: JobSpec) -> str:
    return f"{spec.run.output_dir}/{spec.run.name}"


def final_tensors(spec: JobSpec) -> dict[str, torch.Tensor]:
    """Every tensor of the newest checkpoint; statistics hold times and are compared through the rows."""
    checkpoint = complete(run_url(spec))[0]
    marker = read_marker(checkpoint)
    stored = read_index(checkpoint, marker)
    tensors = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in stored.items() if name != "statistics.rows"}
    load(checkpoint, into=tensors, ignore_extra=True, marker=marker)
    return tensors


def final_rows(spec: JobSpec) -> list[dict[str, Any]]:
    """The run's history without times, rates, memory and attempt numbers."""
    rows = read_rows(f"{run_url(spec)}/metrics/train.jsonl")
    return [{key: value for key, value in row.items() if not volatile(key)} for row in rows]


def assert_same_run(one: JobSpec, other: JobSpec) -> None:
    """Every tensor and every number of two runs, bit for bit."""
    first, second = final_tensors(one), final_tensors(other)
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different, f"{len(different)} of {len(first)} tensors differ: {different[:5]}"
    assert repr(final_rows(one)) == repr(final_rows(other))
