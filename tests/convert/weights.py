"""Small networks with weights that are nowhere zero, as files of several makers."""

from pathlib import Path
from typing import Any

import torch
from networks import fill_by_formula

from iddpm_ray.convert.model import UNSAID, Given, Model, class_names, nested
from iddpm_ray.convert.source import open_model
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping

SMALL: dict[str, Any] = {
    "data.image_size": 16,
    "data.channels": 1,
    "model.num_channels": 32,
    "model.num_res_blocks": 1,
    "model.channel_mult": [1, 1, 2],
    "model.attention_resolutions": [4],
    "diffusion.variance": "learned_range",
    "diffusion.schedule": "cosine",
}
LABELS: dict[str, Any] = {"data.labels": "folder", "model.class_cond": True, "model.num_classes": 3, "model.class_dropout": 0.1}
GUIDED: dict[str, Any] = {
    "data.channels": 3,
    "model.attention_resolutions": [8, 4],
    "model.num_head_channels": 16,
    "model.resblock_updown": True,
    "model.qkv_order": "qkv_first",
    "diffusion.schedule": "linear",
    "diffusion.rescale_timesteps": False,
}
SAID: dict[str, Any] = {
    "data.image_size": 16,
    "model.num_heads": 4,
    "model.num_heads_upsample": -1,
    "model.qkv_order": "heads_first",
    "model.dropout": 0.0,
    "diffusion.timesteps": 1000,
    "diffusion.schedule": "cosine",
    "diffusion.predicts": "eps",
    "diffusion.variance": "learned_range",
    "diffusion.rescale_timesteps": True,
}
"""What a file of the small network does not tell."""


def small_spec(**changes: Any) -> JobSpec:
    """A spec of the small network; `section__field=value` changes it."""
    return load_mapping(nested({**UNSAID, **SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}))


def spec_of(fields: dict[str, Any]) -> JobSpec:
    """The same with fields by dotted path."""
    return load_mapping(nested({**UNSAID, **SMALL, **fields}))


def filled(spec: JobSpec, *, on: str = "cpu") -> Model:
    """The spec's network with weights by a formula (of no value on the meta device)."""
    from iddpm_ray import build

    num_classes = spec.model.num_classes if spec.model.class_cond else None
    with torch.device(on):
        network = build.model(spec, num_classes=num_classes)
    if on == "cpu":
        fill_by_formula(network)
    return Model(spec, class_names(num_classes, (), source=""), network.state_dict(), "a formula")


def save_pt(model: Model, path: Path) -> Path:
    """As OpenAI's programs save."""
    torch.save(model.tensors, path)
    return path


def opened(path: Path, **options: Any) -> Model:
    """What a path holds, with fields of the spec by dotted path in `values`."""
    values = options.pop("values", {})
    return open_model(str(path), given=Given(values), **options)


def equal(one: Model, other: Model) -> bool:
    """Whether two have bitwise the same weights."""
    return one.tensors.keys() == other.tensors.keys() and all(torch.equal(one.tensors[key], other.tensors[key]) for key in one.tensors)
