"""Weights to begin from, other than the seed's: a checkpoint of another run, or a state dict in a file."""

import fnmatch
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray import build, storage
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.commit import Checkpoint, open_checkpoint
from iddpm_ray.checkpoint.index import read_index
from iddpm_ray.checkpoint.marker import MARKER, Marker
from iddpm_ray.errors import CheckpointError, SpecError, UserError
from iddpm_ray.parallel.collective import Group, broadcast_bytes, rank
from iddpm_ray.spec.init import InitSpec
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.state import TrainState
from iddpm_ray.train.weight_files import read_state_dict

ENDINGS = (".pt", ".pth", ".safetensors")


@dataclass(frozen=True)
class Found:
    """Weights that `init.from` names, not yet read where they lie in a checkpoint.

    Attributes:
        where: in words.
        shapes: of every tensor there, by parameter name.
        tensors: of a file that had to be read whole.
        checkpoint, marker, prefix: of a checkpoint, and what its names of these weights begin with.
    """

    where: str
    shapes: dict[str, tuple[int, ...]]
    tensors: dict[str, Tensor] | None = None
    checkpoint: Checkpoint | None = None
    marker: Marker | None = None
    prefix: str = ""

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The tensors of those names, on the CPU."""
        if self.tensors is not None:
            return {name: self.tensors[name] for name in names}
        assert self.checkpoint is not None
        into = {f"{self.prefix}{name}": torch.empty(self.shapes[name]) for name in names}
        from iddpm_ray.checkpoint.dcp import load  # seconds of imports, which the driver's look at the weights does without

        load(self.checkpoint, into=into, ignore_extra=True, marker=self.marker)
        return {name: into[f"{self.prefix}{name}"] for name in names}


def check_init(spec: JobSpec, *, num_classes: int | None) -> None:
    """Looks, before anything is started, whether the weights are there and fit the network.

    Raises:
        UserError: they do not; names what differs.
    """
    if spec.init.from_ is not None:
        with torch.device("meta"):
            network = build.model(spec, num_classes=num_classes)
        chosen(spec.init, find(spec.init, url=spec.init.from_), own={name: tuple(p.shape) for name, p in network.named_parameters()})


def begin_from(init: InitSpec, state: TrainState, *, group: Group) -> str:
    """Puts the weights of `init.from` into the network and begins the averages as copies of them. A collective.

    Returns:
        Where they came from, in words.

    Raises:
        UserError: they cannot be read or do not fit; never goes on without them.
    """
    found = find(init, url=_agreed(init, group=group))
    parameters = dict(state.model.named_parameters())
    names = chosen(init, found, own={name: tuple(parameter.shape) for name, parameter in parameters.items()})
    with torch.no_grad():
        for name, tensor in found.read(names).items():
            if not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(f"{found.where}: {name} holds numbers that are not finite", fix="begin from weights of a healthy run")
            parameters[name].copy_(tensor)
        for averages in state.ema.averages.values():
            for name, average in zip(state.names, averages, strict=True):
                average.copy_(parameters[name])
    return found.where + (
        "" if len(names) == len(parameters) else f" ({len(names)} of {len(parameters)} tensors, the others from the seed)"
    )


def _agreed(init: InitSpec, *, group: Group) -> str:
    """The URL that all ranks read: rank 0 looks for the newest checkpoint of a run, which may be growing."""
    assert init.from_ is not None
    said: dict[str, str] = {}
    if rank(group) == 0:
        try:
            said = {"url": _newest(init.from_)}
        except UserError as error:
            said = {"error": error.what, "fix": error.fix}
    said = json.loads(broadcast_bytes(json.dumps(said).encode(), group=group))
    if "error" in said:
        raise CheckpointError(said["error"], fix=said["fix"])
    return said["url"]


def _newest(url: str) -> str:
    """A run's newest checkpoint; the URL itself if it is a checkpoint or a file."""
    if url.endswith(ENDINGS) and not storage.is_dir(url):
        return url
    if storage.exists(storage.join(url, MARKER)):
        return url
    choice = newest_readable(url)
    if choice.checkpoint is None:
        raise CheckpointError(
            f"init.from: nothing to begin from at {storage.shown(url)}",
            fix=f"name the directory of a run with a checkpoint, of one checkpoint, or a file ending in {', '.join(ENDINGS)}",
        )
    return choice.checkpoint.url


def find(init: InitSpec, *, url: str) -> Found:
    """Looks at what the URL holds: a run, a checkpoint, or a state dict.

    Raises:
        UserError: nothing that can be read, another checksum, or no such average.
    """
    where = storage.shown(url)
    url = _newest(url)
    if url.endswith(ENDINGS) and not storage.is_dir(url):
        if init.weights != "raw":
            raise SpecError(
                "init.weights", value=init.weights, fix=f"has no effect on a file; name the file of that average instead of {where}"
            )
        try:
            data = storage.read_bytes(url)
        except Exception as error:  # every store raises its own kinds
            raise CheckpointError(
                f"init.from: cannot read {where} ({storage.reason(error)})", fix="give a path or URL that all workers reach"
            ) from None
        _check_sum(init, data, where=where)
        tensors = read_state_dict(data, name=where)
        return Found(where, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors=tensors)
    checkpoint, marker = open_checkpoint(url)
    where = storage.shown(url) + ("" if init.weights == "raw" else f", average {init.weights:g}")
    _check_sum(init, storage.read_bytes(storage.join(url, MARKER)), where=f"{MARKER} of {storage.shown(url)}")
    stored = read_index(checkpoint, marker)
    prefix = "model." if init.weights == "raw" else f"ema.{init.weights}."
    shapes = {name.removeprefix(prefix): tensor.shape for name, tensor in stored.items() if name.startswith(prefix)}
    if not shapes:
        rates = sorted(
            {name.removeprefix("ema.").rpartition(".input_blocks.0.")[0] for name in stored if ".input_blocks.0." in name} - {"model", ""}
        )
        raise SpecError("init.weights", value=init.weights, fix=f"{storage.shown(url)} has raw{''.join(f', {rate}' for rate in rates)}")
    return Found(where, shapes, checkpoint=checkpoint, marker=marker, prefix=prefix)


def chosen(init: InitSpec, found: Found, *, own: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The parameters to take, by name.

    Raises:
        SpecError: a pattern that matches nothing.
        CheckpointError: names or shapes that differ from the network's.
    """
    for path, patterns in (("init.only", init.only), ("init.skip", init.skip)):
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in own):
                raise SpecError(path, value=pattern, fix=f"matches no parameter of this network, such as {', '.join(list(own)[:3])}")
    wanted, there = _matching(init, own), _matching(init, found.shapes)
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
    if parts:
        raise CheckpointError(
            f"init.from: {found.where} does not fit this network: {'; '.join(parts)}",
            fix="use the same model settings, or choose parameters with init.only and init.skip",
        )
    return wanted


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
