"""Opens whatever holds a network: a run, one of its checkpoints, a file of weights, a folder of diffusers, or one of these on the hub."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from iddpm_ray import build, storage
from iddpm_ray.checkpoint.commit import LABELS_FILE
from iddpm_ray.checkpoint.found import NEWEST, check_rate, find_checkpoint, load_weights, weight_names
from iddpm_ray.checkpoint.index import read_index
from iddpm_ray.convert import hub
from iddpm_ray.convert.diffusers import attention_levels, fields_of_config
from iddpm_ray.convert.model import Given, Model, class_names, complete_spec
from iddpm_ray.convert.names import Layout, from_diffusers
from iddpm_ray.convert.recognise import recognise
from iddpm_ray.convert.safetensors import knows_itself, model_of
from iddpm_ray.convert.scheduler import fields_of_scheduler, remarks_of_scheduler
from iddpm_ray.convert.weight_files import ENDINGS, WeightFile, read_weights
from iddpm_ray.errors import CheckpointError, SpecError
from iddpm_ray.models.attention import AttentionBlock, QkvOrder
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import dump_yaml

Weights = Literal["raw"] | float
Heads = Mapping[str, tuple[int, QkvOrder]]
OF_SHAPES = (
    "data.channels",
    "model.num_channels",
    "model.channel_mult",
    "model.num_res_blocks",
    "model.scale_shift_norm",
    "model.resblock_updown",
    "model.class_cond",
)
"""Fields that names and shapes of the weights tell by themselves."""

WEIGHTS_FILES = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin")


@dataclass(frozen=True)
class Folder:
    """A UNet2DModel in a folder of diffusers.

    Attributes:
        weights: as they lie there, under diffusers' names.
        fields: spec fields that its configurations tell, by dotted path.
        layout: decides its names here.
        classes: the names in labels.json beside it, if there is one.
        remarks: what its scheduler says and no spec does, in words.
    """

    weights: WeightFile
    fields: dict[str, Any]
    layout: Layout
    classes: tuple[str, ...] = field(default=())
    remarks: tuple[str, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """The weights under our names."""
        return from_diffusers(self.weights.tensors, self.layout)

    def heads(self) -> "Heads":
        """Heads of every attention, by the name of its qkv weight here."""
        order, width = self.layout.qkv_order, self.layout.head_channels
        attention = [(f"{ours}.qkv.weight", f"{theirs}.to_q.weight") for ours, theirs, kind in self.layout.layers() if kind == "attention"]
        there = self.weights.tensors
        return {ours: _heads(there[theirs].shape[0] // width, order) for ours, theirs in attention if theirs in there}


def is_file(url: str) -> bool:
    """Whether a URL names a file of weights."""
    return url.endswith(ENDINGS) and not storage.is_dir(url)


def config_of(url: str) -> str | None:
    """Where the UNet2DModel of a folder lies: the folder itself or its `unet`; None if there is none."""
    return next((place for place in (url, storage.join(url, "unet")) if storage.exists(storage.join(place, "config.json"))), None)


def open_folder(url: str, *, qkv_order: QkvOrder = "heads_first", sha256: str | None = None, field: str = "sha256") -> Folder:
    """A folder of diffusers: a pipeline with its parts in `unet` and `scheduler`, or a UNet2DModel alone.

    Args:
        qkv_order: that attention is to have here; all are the same network.
        sha256, field: of the weights, as `read_weights` takes them.

    Raises:
        CheckpointError: there is none, it cannot be read, or it is no network of ours.
    """
    place = config_of(url)
    name = storage.shown(url)
    if place is None:
        raise CheckpointError(f"{name} is no folder of diffusers", fix="it has a config.json, or one in its folder unet")
    config = _json(storage.join(place, "config.json"))
    fields = fields_of_config(config, name=storage.shown(storage.join(place, "config.json")))
    remarks: tuple[str, ...] = ()
    for scheduler in (storage.join(url, "scheduler", "scheduler_config.json"), storage.join(url, "scheduler_config.json")):
        if storage.exists(scheduler):
            process = _json(scheduler)
            fields |= fields_of_scheduler(process, name=storage.shown(scheduler))
            remarks = remarks_of_scheduler(process, name=storage.shown(scheduler))
            break
    file = next((one for one in WEIGHTS_FILES if storage.exists(storage.join(place, one))), None)
    if file is None:
        raise CheckpointError(f"{storage.shown(place)} holds no weights", fix=f"it should have {' or '.join(WEIGHTS_FILES)}, in one piece")
    layout = Layout(
        levels=len(fields["model.channel_mult"]),
        num_res_blocks=fields["model.num_res_blocks"],
        attention=frozenset(attention_levels(config)),
        resblock_updown=fields["model.resblock_updown"],
        head_channels=fields["model.num_head_channels"],
        qkv_order=qkv_order,
    )
    labels = storage.join(url, LABELS_FILE)
    classes = tuple(map(str, _json(labels, kind=list))) if storage.exists(labels) else ()
    return Folder(read_weights(storage.join(place, file), sha256=sha256, field=field), fields, layout, classes, remarks)


def open_model(
    url: str, *, given: Given, which: int | str = NEWEST, weights: Weights = "raw", classes: Sequence[str] = (), classes_source: str = ""
) -> Model:
    """The network that a URL names, with all that is needed to run it.

    Args:
        given: what is said of weights that do not know it themselves.
        which: of a run, a checkpoint by step or name, or the newest.
        weights: of a run or checkpoint, raw or the rate of an average.
        classes: names of the classes, for weights that do not know them; `classes_source` says where they were given.

    Raises:
        UserError: it cannot be read, is no network of ours, or not enough is known of it; says what.
    """
    shown = storage.shown(url)
    path = hub.fetch(url).path if hub.is_hub(url) else url
    if is_file(path):
        _refuse_options(which, weights, name=shown)
        file = read_weights(path)
        if knows_itself(file.metadata):
            _refuse_given(given, classes, name=shown)
            return model_of(file.tensors, file.metadata, name=shown)
        return _recognised(file.tensors, given, classes, classes_source, name=shown)
    if storage.is_dir(path) and config_of(path) is not None:
        _refuse_options(which, weights, name=shown)
        folder = open_folder(path, qkv_order=given.values.get("model.qkv_order", "heads_first"))
        said = {path: value for path, value in folder.fields.items() if path not in OF_SHAPES}
        values = {"model.qkv_order": folder.layout.qkv_order, **said, **given.values}
        _agree(said, given, name=shown)
        found = Given(values, given.base, given.source)
        model = _recognised(folder.tensors(), found, classes or folder.classes, classes_source or shown, name=shown)
        return replace(model, remarks=folder.remarks)
    _refuse_given(given, classes, name=shown)
    return _stored(path, which, weights)


def _recognised(tensors: dict[str, Tensor], given: Given, classes: Sequence[str], source: str, *, name: str) -> Model:
    found = recognise({key: tuple(tensor.shape) for key, tensor in tensors.items()}, name=name)
    if found.label_rows is not None and len(classes) == found.label_rows - 1 and not given.said("model.class_dropout"):
        raise SpecError(
            f"{name} has {found.label_rows} rows of labels and {len(classes)} classes",
            fix='so one row stands for "no label": give model.class_dropout, how often a label was hidden in training, such as 0.1',
        )
    spec = complete_spec(found, given, name=name)
    return Model(spec, class_names(spec.model.num_classes if spec.model.class_cond else None, classes, source=source), tensors, name)


def _agree(said: Mapping[str, Any], given: Given, *, name: str) -> None:
    wrong = [f"{path}: there {said[path]}, you say {value}" for path, value in given.values.items() if said.get(path, value) != value]
    if wrong:
        raise SpecError(f"{name} is another network:\n  " + "\n  ".join(wrong) + "\n", fix="leave these out: its configuration tells them")


def _stored(url: str, which: int | str, weights: Weights) -> Model:
    """The network of a run's checkpoint."""
    found = find_checkpoint(url, which=which)
    rate = None if weights == "raw" else weights
    check_rate(found.spec, rate)
    checkpoint, prefix = found.checkpoint, weight_names(rate)
    stored = {name.removeprefix(prefix): one for name, one in read_index(checkpoint, found.marker).items() if name.startswith(prefix)}
    tensors = {name: torch.empty(one.shape) for name, one in stored.items()}
    load_weights(checkpoint, found.marker, rate=rate, into=tensors)
    kind = "" if rate is None else f", average {rate:g}"
    return Model(found.spec, found.classes if found.spec.model.class_cond else (), tensors, f"{storage.shown(checkpoint.url)}{kind}")


def heads_of_spec(spec: JobSpec) -> Heads:
    """Heads of every attention of a spec's network, by the name of its qkv weight: what no shape shows."""
    with torch.device("meta"):
        return heads_of_network(build.model(spec, num_classes=None))


def heads_of_network(network: nn.Module) -> Heads:
    """The same of a network."""
    blocks = {name: module for name, module in network.named_modules() if isinstance(module, AttentionBlock)}
    return {f"{name}.qkv.weight": _heads(block.num_heads, block.qkv_order) for name, block in blocks.items()}


def qkv_order_of(network: nn.Module) -> QkvOrder:
    """The order of a network's qkv channels."""
    return next(module.qkv_order for module in network.modules() if isinstance(module, AttentionBlock))


def _heads(count: int, order: QkvOrder) -> tuple[int, QkvOrder]:
    """With one head both orders are the same."""
    return count, "heads_first" if count == 1 else order


def _refuse_options(which: int | str, weights: Weights, *, name: str) -> None:
    for option, value, usual in (("--step", which, NEWEST), ("--weights", weights, "raw")):
        if value != usual:
            raise SpecError(option, value=value, fix=f"has no effect on {name}, which holds one set of weights")


def _refuse_given(given: Given, classes: Sequence[str], *, name: str) -> None:
    said = [*given.values, *([given.source] if given.base is not None else []), *(["--classes"] if classes else [])]
    if said:
        raise SpecError(f"{name} knows what it is", value=", ".join(said), fix="leave this out")


def _json(url: str, *, kind: type = dict) -> Any:
    try:
        value = json.loads(storage.read_bytes(url))
        if not isinstance(value, kind):
            raise ValueError
    except (ValueError, RecursionError):
        raise CheckpointError(f"{storage.shown(url)} is no JSON {'object' if kind is dict else 'list'}", fix="copy it again") from None
    return value


def describe(url: str) -> str:
    """What a source tells of its network, as lines for a person.

    Raises:
        UserError: it cannot be read, or is no network of ours.
    """
    shown = storage.shown(url)
    path = hub.fetch(url).path if hub.is_hub(url) else url
    if is_file(path):
        file = read_weights(path)
        found = recognise({key: tuple(tensor.shape) for key, tensor in file.tensors.items()}, name=shown)
        spec = f"\n\n{dump_yaml(model_of(file.tensors, file.metadata, name=shown).spec)}" if knows_itself(file.metadata) else ""
        return f"{found.describe()}\n{'sha256':<12}{file.sha256}{spec}".rstrip()
    if storage.is_dir(path) and config_of(path) is not None:
        folder = open_folder(path)
        found = recognise({key: tuple(tensor.shape) for key, tensor in folder.tensors().items()}, name=shown)
        told = "\n".join([*(f"{path}={value}" for path, value in folder.fields.items()), *folder.remarks])
        return f"{found.describe()}\n{'sha256':<12}{folder.weights.sha256}\n\n{told}"
    model = _stored(path, NEWEST, "raw")
    found = recognise({key: tuple(tensor.shape) for key, tensor in model.tensors.items()}, name=shown)
    return f"{found.describe()}\n{'from':<12}{model.origin}\n\n{dump_yaml(model.spec)}".rstrip()
