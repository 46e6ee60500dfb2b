"""The smallest run there is: grey squares of 8 pixels, a network of one level, a handful of steps, no cluster."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping
from iddpm_ray.train.directory import inspect_run, take_place, write_run
from iddpm_ray.train.loop import Outcome, train
from iddpm_ray.train.session import LocalSession
from iddpm_ray.train.sources import LocalSources

TINY: dict[str, Any] = {
    "run.name": "tiny",
    "data.image_size": 8,
    "data.channels": 1,
    "model.num_channels": 32,
    "model.num_res_blocks": 1,
    "model.channel_mult": [1],
    "model.num_heads": 1,
    "model.attention_resolutions": [],
    "diffusion.timesteps": 30,
    "optim.ema_rates": [0.9],
    "train.global_batch": 4,
    "train.duration": "2 steps",
    "log.every": "1 steps",
    "log.tensorboard": False,
}


def write_pictures(folder: Path, *, count: int = 12, classes: int = 2, side: int = 8) -> Path:
    """Noise as PNG files, a folder a class."""
    random = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class{number % classes}" / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (side, side), dtype=np.uint8)).save(path)
    return folder


def settings(root: Path, **changes: Any) -> dict[str, Any]:
    """The tiny run under `root` as dotted paths; `section__field=value` changes it."""
    given = {**TINY, "run.output_dir": str(root / "runs"), "data.path": str(root / "pictures")}
    return {**given, **{key.replace("__", "."): value for key, value in changes.items()}}


def arguments(root: Path, **changes: Any) -> list[str]:
    """The same as a command line."""
    return [f"{path}={_written(value)}" for path, value in settings(root, **changes).items()]


def _written(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def tiny_spec(root: Path, **changes: Any) -> JobSpec:
    """The same as a spec."""
    nested: dict[str, dict[str, Any]] = {}
    for path, value in settings(root, **changes).items():
        section, _, name = path.partition(".")
        nested.setdefault(section, {})[name] = value
    return load_mapping(nested)


def attempt(spec: JobSpec, session: LocalSession | None = None) -> Outcome:
    """One attempt in this process, as the driver and a single worker would make it."""
    torch.set_num_threads(1)
    session = session or LocalSession()
    opening = inspect_run(spec)
    write_run(opening)
    place = take_place(opening, info={"workers": 1})
    return train(spec, session, sources=LocalSources.of(spec, opening.manifest, rank=0, world_size=1), place=place)


def run_folder(settings: Mapping[str, Any] | JobSpec) -> Path:
    """Where the run lies."""
    spec = settings if isinstance(settings, JobSpec) else load_mapping(dict(settings))
    return Path(spec.run.output_dir) / spec.run.name
