"""A network that can travel: its weights, the spec that says how to run it, and the names of its classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from iddpm_ray import build
from iddpm_ray.convert.recognise import Recognised, some
from iddpm_ray.errors import CheckpointError, SpecError
from iddpm_ray.models.unet import UNet
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping

UNSAID: dict[str, Any] = {"run.name": "imported", "run.output_dir": "runs", "data.path": "images", "train.duration": "1 steps"}
"""What a spec must have and a file of weights knows nothing of."""


@dataclass(frozen=True)
class Model:
    """Weights with all that is needed to run them.

    Attributes:
        spec: its sections `data` (shape of the pictures), `model` and `diffusion` say what the network is.
        classes: the text of each class index; empty without labels.
        tensors: by parameter name as published, on the CPU, float32.
        origin: where they came from, in words.
        remarks: what its source says and the spec does not, in words.
    """

    spec: JobSpec
    classes: tuple[str, ...]
    tensors: dict[str, Tensor]
    origin: str
    remarks: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int | None:
        """Classes of the network, without the row for "no label"; None without labels."""
        return (self.spec.model.num_classes or len(self.classes)) if self.spec.model.class_cond else None

    def network(self) -> UNet:
        """The network on these very tensors, which are not copied, ready to run.

        Raises:
            CheckpointError: names or shapes are not the spec's.
        """
        with torch.device("meta"):
            network = build.model(self.spec, num_classes=self.num_classes)
        check_fits(_shapes(self.tensors), _shapes(network.state_dict()), name=self.origin)
        network.load_state_dict(self.tensors, assign=True)
        return network.eval().requires_grad_(False)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_fits(shapes: Mapping[str, tuple[int, ...]], own: Mapping[str, tuple[int, ...]], *, name: str) -> None:
    """Compares names and shapes of weights with those that a network has.

    Raises:
        CheckpointError: they differ; says how.
    """
    missing, extra = sorted(own.keys() - shapes.keys()), sorted(shapes.keys() - own.keys())
    other = [f"{key} is {list(shapes[key])} there and {list(own[key])} in its spec" for key in own if shapes.get(key, own[key]) != own[key]]
    parts = [
        *([f"it lacks {some(missing)}"] if missing else []),
        *([f"it also holds {some(extra)}"] if extra else []),
        *([some(other)] if other else []),
    ]
    if parts:
        raise CheckpointError(f"{name} does not fit its spec: {'; '.join(parts)}", fix="give the spec that these weights were made with")


@dataclass(frozen=True)
class Given:
    """What whoever has a file says of it.

    Attributes:
        values: of spec fields, by dotted path.
        base: a whole spec's plain values, of a preset, a file or flags; every field of it counts as said. None if there is none.
        source: of the base, in words.
    """

    values: Mapping[str, Any]
    base: Mapping[str, Any] | None = None
    source: str = ""

    def said(self, path: str) -> bool:
        """Whether a field has been said: by name, or by the base."""
        return path in self.values or self.base is not None


def complete_spec(found: Recognised, given: Given, *, name: str) -> JobSpec:
    """The spec of a recognised network, from the file and from what was said.

    Raises:
        SpecError: names every field that the file cannot tell and nobody has said, or that contradicts the file.
    """
    unknown = [f"{path} ({why})" for path, why in _needed(found, given) if not given.said(path)]
    if unknown:
        raise SpecError(
            f"{name} does not tell:\n  " + "\n  ".join(unknown) + "\n",
            fix="give each as section.key=value, or all of them by --preset NAME, --spec FILE or --flags '--image_size 64 ...'",
        )
    values = {**UNSAID, **flat(given.base or {}), **given.values}
    if given.base is None:
        told = _told(found, values)
        said = {path: values[path] for path in told if path in values}
        values |= told
    else:
        spec = load_mapping(nested(values))
        told = _told(found, {**values, "data.image_size": spec.data.image_size})
        said = {path: _value(spec, path) for path in told}
        if found.label_rows is not None and spec.model.num_classes is None:
            said.pop("model.num_classes", None)
            values["model.num_classes"] = told["model.num_classes"]
    wrong = [
        f"{path}: the file has {_plain(told[path])}, {'you say' if path in given.values else f'{given.source} says'} {_plain(value)}"
        for path, value in said.items()
        if not _same(value, told[path])
    ]
    if wrong:
        raise SpecError(f"{name} is another network:\n  " + "\n  ".join(wrong) + "\n", fix="say what the file has, or name another file")
    return load_mapping(nested(values))


def _needed(found: Recognised, given: Given) -> list[tuple[str, str]]:
    """Fields that change what the network says, and that no name or shape shows."""
    heads = "model.num_head_channels" if "model.num_head_channels" in given.values else "model.num_heads"
    needed = [
        ("data.image_size", "pixels of the pictures"),
        (heads, "attention heads; or model.num_head_channels, the width of each"),
        ("model.qkv_order", "heads_first, as in improved-diffusion, or qkv_first, guided-diffusion's new attention order"),
        ("model.dropout", "of its training; 0 to draw with it only"),
        ("diffusion.timesteps", "1000 or 4000, for one"),
        ("diffusion.schedule", "linear or cosine"),
        ("diffusion.predicts", "eps, if nobody said otherwise in its training"),
        ("diffusion.variance", "learned_range or learned" if found.learned else "fixed_large or fixed_small"),
        ("diffusion.rescale_timesteps", "true by default in improved-diffusion, false in guided-diffusion"),
    ]
    if heads == "model.num_heads" and found.attention_factors:
        needed.insert(2, ("model.num_heads_upsample", "attention heads on the way up; -1 for as many"))
    if found.kind == "superres":
        needed.insert(1, ("model.low_res_size", "pixels of the small pictures"))
    return needed


def _told(found: Recognised, values: Mapping[str, Any]) -> dict[str, Any]:
    """Every spec field that the file decides, given those that it does not."""
    size = values["data.image_size"]
    side = max(size) if isinstance(size, list | tuple) else size
    fields: dict[str, Any] = {
        "data.channels": found.channels,
        "model.kind": found.kind,
        "model.num_channels": found.num_channels,
        "model.num_res_blocks": found.num_res_blocks,
        "model.channel_mult": list(found.channel_mult),
        "model.attention_resolutions": found.resolutions(side) if isinstance(side, int) else [],
        "model.conv_resample": found.conv_resample,
        "model.resblock_updown": found.resblock_updown,
        "model.scale_shift_norm": found.scale_shift_norm,
        "model.class_cond": found.label_rows is not None,
    }
    variance = values.get("diffusion.variance", "fixed_large")
    if found.learned != (variance in ("learned", "learned_range")):
        fields["diffusion.variance"] = "learned_range" if found.learned else "fixed_large"
    if found.label_rows is not None:
        fields["model.num_classes"] = found.label_rows - int(values.get("model.class_dropout", 0) > 0)
        if values.get("data.labels", "none") == "none":
            fields["data.labels"] = "folder"
    return fields


def _value(spec: JobSpec, path: str) -> Any:
    if path == "model.channel_mult":
        return spec.channel_mult()
    section, _, leaf = path.partition(".")
    return getattr(getattr(spec, section), leaf)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return list(one) == list(other) or (all(isinstance(item, int) for item in one) and sorted(one) == sorted(other))
    return one == other


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def flat(mapping: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Values by dotted path out of nested sections."""
    out: dict[str, Any] = {}
    for key, value in mapping.items():
        path = f"{above}.{key}" if above else key
        out |= flat(value, path) if isinstance(value, Mapping) else {path: value}
    return out


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sections out of values by dotted path."""
    out: dict[str, Any] = {}
    for path, value in values.items():
        *sections, leaf = path.split(".")
        place = out
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return out


def class_names(count: int | None, names: Sequence[str], *, source: str) -> tuple[str, ...]:
    """The text of each class index: as given, or the index itself.

    Raises:
        SpecError: not as many as there are classes.
    """
    if count is None:
        if names:
            raise SpecError(f"{source} names {len(names)} classes", fix="leave it out: the network knows no labels")
        return ()
    if names and len(names) != count:
        raise SpecError(
            f"{source} names {len(names)} classes, the network has {count}", fix="name each class once, in the order of its index"
        )
    return tuple(names) or tuple(str(index) for index in range(count))
