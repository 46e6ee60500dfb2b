"""Weights to begin from, other than the seed's: a checkpoint of another run, a state dict in a file, or a folder of diffusers."""

import fnmatch
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray import build, storage
from iddpm_ray.checkpoint.commit import SPEC_FILE, Checkpoint, open_checkpoint, read_file
from iddpm_ray.checkpoint.found import newest_whole, weight_names
from iddpm_ray.checkpoint.index import read_index
from iddpm_ray.checkpoint.marker import MARKER, Marker
from iddpm_ray.convert import hub
from iddpm_ray.convert.safetensors import knows_itself, model_of
from iddpm_ray.convert.source import Heads, config_of, heads_of_network, heads_of_spec, is_file, open_folder, qkv_order_of
from iddpm_ray.convert.weight_files import ENDINGS, read_weights
from iddpm_ray.errors import CheckpointError, SpecError, UserError
from iddpm_ray.models.attention import QkvOrder
from iddpm_ray.parallel.collective import Group, broadcast_bytes, rank
from iddpm_ray.spec.init import InitSpec
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text
from iddpm_ray.train.state import TrainState

LABELS = "label_emb.weight"


@dataclass(frozen=True)
class Found:
    """Weights that `init.from` names, not yet read where they lie in a checkpoint.

    Attributes:
        where: in words.
        shapes: of every tensor there, by parameter name.
        tensors: of a file that had to be read whole.
        checkpoint, marker, prefix: of a checkpoint, and what its names of these weights begin with.
        heads: of its attention, where the source knows them; None for a bare state dict, whose shapes do not show them.
    """

    where: str
    shapes: dict[str, tuple[int, ...]]
    tensors: dict[str, Tensor] | None = None
    checkpoint: Checkpoint | None = None
    marker: Marker | None = None
    prefix: str = ""
    heads: Heads | None = None

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The tensors of those names, on the CPU."""
        if self.tensors is not None:
            return {name: self.tensors[name] for name in names}
        assert self.checkpoint is not None
        into = {f"{self.prefix}{name}": torch.empty(self.shapes[name]) for name in names}
        from iddpm_ray.checkpoint.dcp import load  # seconds of imports, which the driver's look at the weights does without

        load(self.checkpoint, into=into, ignore_extra=True, marker=self.marker)
        return {name: into[f"{self.prefix}{name}"] for name in names}


@dataclass(frozen=True)
class Chosen:
    """The parameters to take, by name, and what is said of those that are not; empty if all are taken."""

    names: list[str]
    remark: str


def check_init(spec: JobSpec, *, num_classes: int | None) -> None:
    """Looks, before anything is started, whether the weights are there and fit the network.

    Raises:
        UserError: they do not; names what differs.
    """
    if spec.init.from_ is not None:
        with torch.device("meta"):
            network = build.model(spec, num_classes=num_classes)
        found = find(spec.init, url=spec.init.from_, qkv_order=spec.model.qkv_order)
        chosen(spec.init, found, own={name: tuple(p.shape) for name, p in network.named_parameters()}, heads=heads_of_network(network))


@dataclass(frozen=True)
class Source:
    """Where the weights came from: the URL of that very checkpoint, commit, file or folder; and in words."""

    url: str
    words: str


def begin_from(init: InitSpec, state: TrainState, *, earlier: str | None = None, group: Group) -> Source:
    """Puts the weights of `init.from` into the network and begins the averages as copies of them. A collective.

    Args:
        earlier: the URL that an earlier attempt of this run began from, which this one begins from too while it is there; rank 0's counts.

    Raises:
        UserError: they cannot be read or do not fit; never goes on without them.
    """
    parameters = dict(state.model.named_parameters())
    heads = heads_of_network(state.model)
    url = _agreed(init, earlier=earlier, group=group)
    found = find(init, url=url, qkv_order=qkv_order_of(state.model))
    taken = chosen(init, found, own={name: tuple(parameter.shape) for name, parameter in parameters.items()}, heads=heads)
    with torch.no_grad():
        for name, tensor in found.read(taken.names).items():
            if not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(f"{found.where}: {name} holds numbers that are not finite", fix="begin from weights of a healthy run")
            parameters[name].copy_(tensor)
        for averages in state.ema.averages.values():
            for name, average in zip(state.names, averages, strict=True):
                average.copy_(parameters[name])
    gone = "" if earlier is None or earlier == url else f"; {storage.shown(earlier)}, which an earlier attempt began from, is gone"
    return Source(url, found.where + (f" ({taken.remark})" if taken.remark else "") + gone)


def _agreed(init: InitSpec, *, earlier: str | None, group: Group) -> str:
    """The URL that all ranks read: rank 0 looks for the newest checkpoint of a run, which may be growing."""
    assert init.from_ is not None
    said: dict[str, str] = {}
    if rank(group) == 0:
        try:
            kept = earlier is not None and (hub.is_hub(earlier) or storage.exists(storage.join(earlier, MARKER)))
            said = {"url": earlier if earlier is not None and kept else _newest(init.from_)}
        except UserError as error:
            said = {"error": error.what, "fix": error.fix}
    said = json.loads(broadcast_bytes(json.dumps(said).encode(), group=group))
    if "error" in said:
        raise CheckpointError(said["error"], fix=said["fix"])
    return said["url"]


def _newest(url: str) -> str:
    """A run's newest checkpoint, or the commit of a repository on the hub; the URL itself if it is one checkpoint, a file or a folder."""
    if hub.is_hub(url):
        return hub.fetch(url).pinned
    if is_file(url) or config_of(url) is not None or storage.exists(storage.join(url, MARKER)):
        return url
    choice = newest_whole(url)
    if choice.checkpoint is None:
        raise CheckpointError(
            f"init.from: nothing to begin from at {storage.shown(url)}",
            fix=f"name the directory of a run with a checkpoint, of one checkpoint, a folder of diffusers, "
            f"or a file ending in {', '.join(ENDINGS)}",
        )
    return choice.checkpoint.url


def find(init: InitSpec, *, url: str, qkv_order: QkvOrder = "heads_first") -> Found:
    """Looks at what the URL holds: a run, a checkpoint, a state dict, a folder of diffusers, or one of these on the hub.

    Args:
        qkv_order: of the network that is to begin; a folder of diffusers has none of its own.

    Raises:
        UserError: nothing that can be read, another checksum, or no such average.
    """
    where = storage.shown(url)
    url = _newest(url)
    path = hub.fetch(url).path if hub.is_hub(url) else url
    if is_file(path):
        _refuse_average(init, where, "a file")
        try:
            file = read_weights(path, sha256=init.sha256, field="init.sha256")
        except CheckpointError as error:
            raise CheckpointError(f"init.from: {error.what}", fix=error.fix) from None
        spec = model_of(file.tensors, file.metadata, name=where).spec if knows_itself(file.metadata) else None
        return Found(where, _shapes(file.tensors), tensors=file.tensors, heads=None if spec is None else heads_of_spec(spec))
    if storage.is_dir(path) and config_of(path) is not None:
        _refuse_average(init, where, "a folder of diffusers")
        try:
            folder = open_folder(path, qkv_order=qkv_order, sha256=init.sha256, field="init.sha256")
        except CheckpointError as error:
            raise CheckpointError(f"init.from: {error.what}", fix=error.fix) from None
        tensors = folder.tensors()
        return Found(where, _shapes(tensors), tensors=tensors, heads=folder.heads())
    checkpoint, marker = open_checkpoint(path)
    where = storage.shown(path) + ("" if init.weights == "raw" else f", average {init.weights:g}")
    _check_sum(init, storage.read_bytes(storage.join(path, MARKER)), where=f"{MARKER} of {storage.shown(path)}")
    stored = read_index(checkpoint, marker)
    prefix = weight_names(None if init.weights == "raw" else init.weights)
    shapes = {name.removeprefix(prefix): tensor.shape for name, tensor in stored.items() if name.startswith(prefix)}
    if not shapes:
        rates = sorted(
            {name.removeprefix("ema.").rpartition(".input_blocks.0.")[0] for name in stored if ".input_blocks.0." in name} - {"model", ""}
        )
        raise SpecError("init.weights", value=init.weights, fix=f"{storage.shown(path)} has raw{''.join(f', {rate}' for rate in rates)}")
    spec = load_text(read_file(checkpoint, SPEC_FILE, marker=marker).decode())
    return Found(where, shapes, checkpoint=checkpoint, marker=marker, prefix=prefix, heads=heads_of_spec(spec))


def _refuse_average(init: InitSpec, where: str, what: str) -> None:
    if init.weights != "raw":
        raise SpecError(
            "init.weights", value=init.weights, fix=f"has no effect on {what}; name the file of that average instead of {where}"
        )


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def chosen(init: InitSpec, found: Found, *, own: Mapping[str, tuple[int, ...]], heads: Heads) -> Chosen:
    """What to take of the weights that were found.

    Args:
        own: shapes of the network's parameters by name.
        heads: of its attention.

    Raises:
        SpecError: a pattern that matches nothing.
        CheckpointError: names, shapes or heads that differ from the network's.
    """
    for path, patterns in (("init.only", init.only), ("init.skip", init.skip)):
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in (*own, *found.shapes)):
                raise SpecError(path, value=pattern, fix=f"matches no parameter of this network, such as {', '.join(list(own)[:3])}")
    wanted, there = _matching(init, own), _matching(init, found.shapes)
    remark = ""
    if LABELS in wanted and LABELS in there and found.shapes[LABELS][0] != own[LABELS][0] and found.shapes[LABELS][1:] == own[LABELS][1:]:
        wanted.remove(LABELS)
        there.remove(LABELS)
        remark = f"{LABELS} made anew from the seed: {found.shapes[LABELS][0]} rows there, {own[LABELS][0]} here"
    if not wanted:
        raise SpecError("init.skip", value=list(init.skip), fix="leaves nothing of init.from to take")
    missing, extra = sorted(set(wanted) - set(there)), sorted(set(there) - set(wanted))
    unlike = [name for name in wanted if name in found.shapes and found.shapes[name] != own[name]]
    other = [f"{name} is {list(found.shapes[name])} there and {list(own[name])} here" for name in unlike]
    parts = [
        *([f"it lacks {_some(missing)}"] if missing else []),
        *([f"it also holds {_some(extra)}"] if extra else []),
        *([_some(other)] if other else []),
    ]
    parts = parts or _other_heads(found, heads, wanted)
    if parts:
        raise CheckpointError(
            f"init.from: {found.where} does not fit this network: {'; '.join(parts)}",
            fix="use the same model settings, or choose parameters with init.only and init.skip",
        )
    some_of = "" if len(wanted) == len(own) else f"{len(wanted)} of {len(own)} tensors, the others from the seed"
    return Chosen(wanted, "; ".join(part for part in (some_of, remark) if part))


def _other_heads(found: Found, heads: Heads, wanted: Sequence[str]) -> list[str]:
    """Attention that has the same shapes and means something else."""
    if found.heads is None:
        return []
    other = [name for name in wanted if name in heads and name in found.heads and found.heads[name] != heads[name]]
    return [_some([f"{name} is for {_heads(found.heads[name])} there and {_heads(heads[name])} here" for name in other])] if other else []


def _heads(heads: tuple[int, QkvOrder]) -> str:
    return f"{heads[0]} heads in order {heads[1]}"


def _matching(init: InitSpec, names: Mapping[str, object]) -> list[str]:
    def taken(name: str) -> bool:
        kept = not init.only or any(fnmatch.fnmatchcase(name, pattern) for pattern in init.only)
        return kept and not any(fnmatch.fnmatchcase(name, pattern) for pattern in init.skip)

    return [name for name in names if taken(name)]


def _check_sum(init: InitSpec, data: bytes, *, where: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if init.sha256 is not None and found != init.sha256:
        raise CheckpointError(
            f"init.from: {where} has SHA-256 {found}, init.sha256 says {init.sha256}", fix="get the right file, or mend init.sha256"
        )


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")
