"""Small runs to draw from: handwritten digits of 8 pixels, and a network that enlarges 8 to 16."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from train.small_run import run_url, small_spec, start, write_pictures

from iddpm_ray.spec.spec import JobSpec

LARGE = {"image_size": 16}
SUPERRES = {
    "kind": "superres",
    "low_res_size": 8,
    "num_channels": 32,
    "num_res_blocks": 1,
    "channel_mult": [1],
    "attention_resolutions": [],
    "num_heads": 1,
    "class_cond": True,
    "num_classes": 10,
}


def trained(root: Path, name: str = "small", **sections: Mapping[str, Any]) -> tuple[JobSpec, str]:
    """A run of a few steps that draws no clean zeros; its spec and its directory."""
    if not (root / "pictures").exists():
        write_pictures(root / "pictures")
    given: dict[str, Any] = {"run": {"name": name, "output_dir": str(root / "runs")}, "train": {"duration": "4 steps"}}
    given |= {"optim": {"lr": 0.01, "ema_rates": [0.9, 0.99]}, "checkpoint": {"every": "2 steps", "keep_last": 20}}
    spec = small_spec(root, **{section: {**given.get(section, {}), **fields} for section, fields in {**given, **sections}.items()})
    threads = torch.get_num_threads()
    try:
        start(spec)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    return spec, run_url(spec)
