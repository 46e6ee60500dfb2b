"""A checkpoint for whoever wants its weights: of a run the newest or a certain one, or one by itself; with the spec and labels inside."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.checkpoint.attempts import attempts, in_lineage, lineage
from iddpm_ray.checkpoint.choose import Choice, newest_readable
from iddpm_ray.checkpoint.commit import (
    LABELS_FILE,
    SPEC_FILE,
    Checkpoint,
    checkpoint_named,
    complete,
    is_marked,
    open_checkpoint,
    read_file,
    read_marker,
)
from iddpm_ray.checkpoint.index import INDEX
from iddpm_ray.checkpoint.marker import MARKER, Marker
from iddpm_ray.errors import CheckpointError, SpecError
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text

NEWEST = "newest"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """A complete checkpoint, of which no weights have been read yet.

    Attributes:
        spec: that it was made with.
        classes: the label map, the text of each class index; empty where there is none.
    """

    checkpoint: Checkpoint
    marker: Marker
    spec: JobSpec
    classes: tuple[str, ...]


def find_checkpoint(url: str, *, which: int | str = NEWEST) -> Found:
    """Looks at what there is.

    Args:
        url: the directory of a run, of one checkpoint, or a file in it, at any fsspec URL.
        which: of a run: `newest`, a step of its lineage, or a name, such as step-00001000.a0003.

    Raises:
        CheckpointError: there is none, or not that one; names those that are.
    """
    folder = storage.parent(url) if storage.size(url) is not None else url
    if storage.exists(storage.join(folder, MARKER)):
        checkpoint, marker = open_checkpoint(folder)
        if which not in (NEWEST, marker.step, checkpoint.name):
            raise CheckpointError("one checkpoint has one step", value=which, fix=f"this is step {marker.step}; name the run instead")
        return _found(checkpoint, marker)
    _check_directory(url)
    if which == NEWEST:
        choice = newest_whole(url)
        if choice.checkpoint is None or choice.marker is None:
            raise _none(url)
        return _found(choice.checkpoint, choice.marker)
    named = checkpoint_named(url, which) if isinstance(which, str) else None
    there = steps_of(url)
    chosen = next((one for one in there if one.step == which), None) if named is None or not is_marked(named) else named
    if chosen is None:
        steps = ", ".join(str(one.step) for one in there[:8]) + (" and others" if len(there) > 8 else "")
        raise CheckpointError("the run has no checkpoint of that step", value=which, fix=f"there are {steps}, newest first")
    return _found(chosen, read_marker(chosen))


def newest_whole(run_url: str) -> Choice:
    """The newest checkpoint of a run whose spec, labels and index can be read; warns of each newer one that was passed over.

    Raises:
        CheckpointError: as `newest_readable`.
    """
    choice = newest_readable(run_url, files=(SPEC_FILE, LABELS_FILE, INDEX))
    for reason in choice.rejected:
        _log.warning("%s; taking the checkpoint before it", reason)
    return choice


def steps_of(run_url: str) -> list[Checkpoint]:
    """The complete checkpoints of a run's lineage, newest first.

    Raises:
        CheckpointError: there is none.
    """
    _check_directory(run_url)
    chain = lineage(attempts(run_url))
    there = [one for one in complete(run_url) if in_lineage(chain, step=one.step, attempt=one.attempt)]
    if not there:
        raise _none(run_url)
    return there


def check_rate(spec: JobSpec, rate: float | None) -> None:
    """Refuses an average of the weights that a run does not keep; None stands for the raw weights.

    Raises:
        SpecError: names those that it keeps.
    """
    kept = spec.optim.ema_rates
    if rate is not None and rate not in kept:
        raise SpecError("the run keeps no such average of its weights", value=rate, fix=f"choose one of {list(kept)}, or raw")


def weight_names(rate: float | None) -> str:
    """What stands before the names of the weights inside a checkpoint: of the raw ones, or of the average of that rate."""
    return "model." if rate is None else f"ema.{rate}."


def load_weights(checkpoint: Checkpoint, marker: Marker, *, rate: float | None, into: Mapping[str, Tensor]) -> None:
    """Fills tensors with the raw weights, or with the average of that rate, by the names of parameters.

    Raises:
        CheckpointError: they cannot be read, or are not these.
    """
    from iddpm_ray.checkpoint.dcp import load  # seconds of imports, which whoever only looks does without

    named = {weight_names(rate) + name: tensor for name, tensor in into.items()}
    load(checkpoint, into=named, ignore_extra=True, marker=marker)


def _found(checkpoint: Checkpoint, marker: Marker) -> Found:
    spec = load_text(read_file(checkpoint, SPEC_FILE, marker=marker).decode(), source=f"the spec in {checkpoint.name}")
    return Found(checkpoint, marker, spec, read_classes(checkpoint, marker))


def read_classes(checkpoint: Checkpoint, marker: Marker) -> tuple[str, ...]:
    """The label map inside a checkpoint: the text of each class index."""
    return tuple(json.loads(read_file(checkpoint, LABELS_FILE, marker=marker)))


def _check_directory(url: str) -> None:
    if storage.size(url) is not None:
        fix = "name the directory of a run or of a checkpoint, or a file of weights that ends in .pt or .safetensors"
        raise CheckpointError("a file that is neither weights nor part of a checkpoint", value=storage.shown(url), fix=fix)


def _none(url: str) -> CheckpointError:
    fix = "name {run.output_dir}/{run.name} of a run that has trained for longer than checkpoint.every"
    return CheckpointError("the run has no complete checkpoint", value=storage.shown(url), fix=fix)
