"""What was trained, found and opened: a run (its newest, best or a certain step), one checkpoint, or a file of weights with a spec."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from iddpm_ray import build, cli, storage
from iddpm_ray.checkpoint.attempts import attempts, in_lineage, lineage
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.commit import Checkpoint, complete, open_checkpoint, read_file, read_marker
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.marker import MARKER, Marker, encode
from iddpm_ray.convert.safetensors import knows_itself, model_of
from iddpm_ray.convert.weight_files import ENDINGS, read_weights
from iddpm_ray.errors import CheckpointError, SpecError
from iddpm_ray.evaluate.best import best_step
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text
from iddpm_ray.train.directory import SPEC_FILE, read_classes

Which = int | Literal["newest", "best"]


@dataclass(frozen=True)
class Source:
    """Weights that have been found and not read yet; small, so that every worker can be sent one and open it.

    Attributes:
        url: of a checkpoint's directory, or of a file of weights.
        name: of the checkpoint or file, for people.
        digest: SHA-256 of the checkpoint's marker, which holds those of its files, or of the file.
        step: updates completed; None where a file does not say.
        spec: of the run.
        classes: the label map, the text of each class index; empty where there is none.
    """

    url: str
    name: str
    digest: str
    step: int | None
    spec: JobSpec
    classes: tuple[str, ...]

    @property
    def num_classes(self) -> int | None:
        """Classes that the network knows; None for a network without labels."""
        return (self.spec.model.num_classes or len(self.classes)) if self.spec.model.class_cond else None

    def settings(self) -> dict[str, object]:
        """What a job must remember of its weights."""
        return {"checkpoint": self.name, "digest": self.digest}


@dataclass(frozen=True)
class Trained:
    """A network ready to use, with the spec and label map that lay beside it."""

    spec: JobSpec
    network: nn.Module
    classes: tuple[str, ...]
    step: int | None


def find_source(url: str, *, which: Which = "newest", spec_url: str | None = None) -> Source:
    """Looks at what there is; reads no weights but those of a file.

    Args:
        url: the directory of a run, of one checkpoint (or a file in it), or a file of weights, at any fsspec URL.
        which: of a run's checkpoints: a step, the newest, or the best by what the run has measured.
        spec_url: of a file of weights that knows nothing of its network; None for the spec in its header, or the `spec.yaml` beside it.

    Raises:
        CheckpointError: no checkpoint, or not that one.
        SpecError: a file of weights without a spec, or a spec where there is one already.
    """
    url = storage.absolute(url)
    if url.endswith(ENDINGS) and not storage.is_dir(url):
        return _file(url, spec_url=spec_url)
    if spec_url is not None:
        raise SpecError("--spec", value=storage.shown(spec_url), fix="is for files of weights alone: a run knows its own")
    folder = storage.parent(url) if storage.size(url) is not None else url
    if not storage.exists(storage.join(folder, MARKER)):
        return _of_run(url, which=which)
    checkpoint, marker = open_checkpoint(folder)
    if which not in ("newest", marker.step):
        raise CheckpointError("one checkpoint has one step", value=which, fix=f"this is step {marker.step}; name the run instead")
    return _checkpoint(checkpoint, marker)


def is_weights(url: str) -> bool:
    """Whether a directory is a run's or a checkpoint's; a run that has not saved yet is one too."""
    inside = {entry.name for entry in storage.list_dir(url)}
    return bool(inside & {MARKER, SPEC_FILE, "checkpoints"})


def open_trained(source: Source, *, ema: float | None, device: torch.device | str = "cpu") -> Trained:
    """The network of a source, in evaluation mode.

    Args:
        ema: which average to take; None for the raw weights. A file of weights is what it is.

    Raises:
        SpecError: the run keeps no such average.
        CheckpointError: the weights cannot be read, do not fit, or are not those that were found.
    """
    check_average(source, ema)
    network = build.model(source.spec, num_classes=source.num_classes).to(device)
    if source.spec.optim.channels_last:
        network = network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] torch's stubs lack this overload
    parameters = {name: parameter.data for name, parameter in network.named_parameters()}
    if source.url.endswith(ENDINGS):
        _fill(parameters, source)
    else:
        checkpoint, marker = open_checkpoint(source.url)
        _same(_digest(marker), source)
        prefix = "model." if ema is None else f"ema.{ema}."
        load(checkpoint, into={prefix + name: tensor for name, tensor in parameters.items()}, ignore_extra=True, marker=marker)
    return Trained(source.spec, network.eval(), source.classes, source.step)


def check_average(source: Source, ema: float | None) -> None:
    """Refuses an average that is not there.

    Raises:
        SpecError: names those that are.
    """
    if ema is None:
        return
    if source.url.endswith(ENDINGS):
        raise SpecError("--ema", value=ema, fix="a file holds one set of weights: name the file of that average, and --ema raw")
    kept = source.spec.optim.ema_rates
    if ema not in kept:
        raise SpecError("the run keeps no such average of its weights", value=ema, fix=f"choose one of {list(kept)}, or raw")


def _of_run(url: str, *, which: Which) -> Source:
    if which == "newest":
        choice = newest_readable(url)
        if choice.checkpoint is None or choice.marker is None:
            raise _none(url)
        return _checkpoint(choice.checkpoint, choice.marker)
    chain = lineage(attempts(url))
    there = [one for one in complete(url) if in_lineage(chain, step=one.step, attempt=one.attempt)]
    if not there:
        raise _none(url)
    step = best_step(url, steps=[one.step for one in there]) if which == "best" else which
    chosen = next((one for one in there if one.step == step), None)
    if chosen is None:
        steps = ", ".join(str(one.step) for one in there[:8]) + (" and others" if len(there) > 8 else "")
        raise CheckpointError("the run has no checkpoint of that step", value=step, fix=f"there are {steps}, newest first")
    return _checkpoint(chosen, read_marker(chosen))


def _none(url: str) -> CheckpointError:
    fix = "name {run.output_dir}/{run.name} of a run that has trained for longer than checkpoint.every"
    return CheckpointError("the run has no complete checkpoint", value=storage.shown(url), fix=fix)


def _checkpoint(checkpoint: Checkpoint, marker: Marker) -> Source:
    spec = load_text(read_file(checkpoint, SPEC_FILE, marker=marker).decode(), source=f"the spec in {checkpoint.name}")
    return Source(checkpoint.url, checkpoint.name, _digest(marker), marker.step, spec, read_classes(checkpoint, marker))


def _file(url: str, *, spec_url: str | None) -> Source:
    beside = storage.join(storage.parent(url), SPEC_FILE)
    name = storage.name(url)
    file = read_weights(url)
    if knows_itself(file.metadata):
        if spec_url is not None:
            raise SpecError("--spec", value=storage.shown(spec_url), fix=f"leave it out: {name} knows its own")
        model = model_of(file.tensors, file.metadata, name=name)
        return Source(url, name, file.sha256, None, model.spec, model.classes)
    if spec_url is None and not storage.exists(beside):
        raise SpecError(
            f"{name} holds weights and does not say of which network",
            fix=f"give --spec FILE, the spec of its run, put it beside the weights as {SPEC_FILE}, or make a file that knows itself of it "
            "with jobs/convert.py import",
        )
    spec = cli.read_spec(spec_url or beside)
    if spec.model.class_cond and spec.model.num_classes is None:
        raise SpecError("model.num_classes", fix="a file of weights has no label map: say in its spec how many classes the network knows")
    return Source(url, name, file.sha256, None, spec, ())


def _fill(parameters: Mapping[str, torch.Tensor], source: Source) -> None:
    file = read_weights(source.url)
    _same(file.sha256, source)
    found = file.tensors
    missing, extra = sorted(parameters.keys() - found.keys()), sorted(found.keys() - parameters.keys())
    other = [name for name in parameters if name in found and found[name].shape != parameters[name].shape]
    parts = [
        *([f"it lacks {_some(missing)}"] if missing else []),
        *([f"it also holds {_some(extra)}"] if extra else []),
        *([f"{_some(other)} have other shapes"] if other else []),
    ]
    if parts:
        raise CheckpointError(f"{source.name} does not fit its spec: {'; '.join(parts)}", fix="give the spec of the run it came from")
    for name, tensor in parameters.items():
        tensor.copy_(found[name])


def _same(digest: str, source: Source) -> None:
    if digest != source.digest:
        raise CheckpointError(f"{source.name} is not what it was when the job began", fix="leave it alone, or begin anew elsewhere")


def _digest(marker: Marker) -> str:
    return hashlib.sha256(encode(marker)).hexdigest()


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
