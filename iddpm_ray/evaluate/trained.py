"""What was trained, found and opened: a run (its newest, best or a certain step), one checkpoint, or a file of weights with a spec."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from iddpm_ray import build, cli, storage
from iddpm_ray.checkpoint.commit import open_checkpoint
from iddpm_ray.checkpoint.found import check_rate, find_checkpoint, load_weights, steps_of
from iddpm_ray.checkpoint.marker import MARKER, Marker, encode
from iddpm_ray.convert.model import check_fits
from iddpm_ray.convert.safetensors import knows_itself, model_of
from iddpm_ray.convert.weight_files import ENDINGS, WeightFile, read_weights
from iddpm_ray.errors import CheckpointError, SpecError
from iddpm_ray.evaluate.best import best_step
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.directory import SPEC_FILE

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
        CheckpointError: no checkpoint, or not that one; weights that are not their spec's.
        SpecError: a file of weights without a spec, or a spec where there is one already.
    """
    url = storage.absolute(url)
    if url.endswith(ENDINGS) and not storage.is_dir(url):
        return _file(url, spec_url=spec_url)
    if spec_url is not None:
        raise SpecError("--spec", value=storage.shown(spec_url), fix="is for files of weights alone: a run knows its own")
    if which == "best":
        which = best_step(url, steps=[one.step for one in steps_of(url)])
    found = find_checkpoint(url, which=which)
    return Source(found.checkpoint.url, found.checkpoint.name, _digest(found.marker), found.marker.step, found.spec, found.classes)


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
        load_weights(checkpoint, marker, rate=ema, into=parameters)
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
    check_rate(source.spec, ema)


def _file(url: str, *, spec_url: str | None) -> Source:
    beside = storage.join(storage.parent(url), SPEC_FILE)
    name = storage.name(url)
    file = read_weights(url)
    if knows_itself(file.metadata):
        if spec_url is not None:
            raise SpecError("--spec", value=storage.shown(spec_url), fix=f"leave it out: {name} knows its own")
        model = model_of(file.tensors, file.metadata, name=name)
        return _fitting(Source(url, name, file.sha256, None, model.spec, model.classes), file)
    if spec_url is None and not storage.exists(beside):
        raise SpecError(
            f"{name} holds weights and does not say of which network",
            fix=f"give --spec FILE, the spec of its run, put it beside the weights as {SPEC_FILE}, or make a file that knows itself of it "
            "with jobs/convert.py import",
        )
    spec = cli.read_spec(spec_url or beside)
    if spec.model.class_cond and spec.model.num_classes is None:
        raise SpecError("model.num_classes", fix="a file of weights has no label map: say in its spec how many classes the network knows")
    return _fitting(Source(url, name, file.sha256, None, spec, ()), file)


def _fitting(source: Source, file: WeightFile) -> Source:
    """Itself, if the weights are those of its spec's network."""
    with torch.device("meta"):
        network = build.model(source.spec, num_classes=source.num_classes)
    check_fits(_shapes(file.tensors), _shapes(network.state_dict()), name=source.name)
    return source


def _fill(parameters: Mapping[str, torch.Tensor], source: Source) -> None:
    file = read_weights(source.url)
    _same(file.sha256, source)
    for name, tensor in parameters.items():
        tensor.copy_(file.tensors[name])


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _same(digest: str, source: Source) -> None:
    if digest != source.digest:
        raise CheckpointError(f"{source.name} is not what it was when the job began", fix="leave it alone, or begin anew elsewhere")


def _digest(marker: Marker) -> str:
    return hashlib.sha256(encode(marker)).hexdigest()
