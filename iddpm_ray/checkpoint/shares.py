"""Names for the tensors of a nested dict, and who of the ranks writes which: pure, and the same on every rank."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor


def flatten(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors by dotted name: {"ema": {"0.9999": {"out.2.weight": x}}} gives {"ema.0.9999.out.2.weight": x}.

    Raises:
        TypeError: a leaf is no tensor (numbers and words belong in a file beside the tensors), or two leaves have one name.
    """
    out: dict[str, Tensor] = {}
    for name, value in _leaves(tensors, ""):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}, and a checkpoint's state holds tensors")
        if name in out:
            raise TypeError(f"two tensors are named {name}")
        out[name] = value
    return out


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def share(tensors: Mapping[str, Tensor], *, rank: int, world_size: int) -> dict[str, Tensor]:
    """What this rank writes: of replicated tensors an equal share of the bytes, of sharded ones its shard.

    Every rank works this out alone, from names and sizes that are the same everywhere; so a rank copies to the host only
    what it writes.
    """
    loads = [0] * world_size
    own = {}
    replicated = {name: tensor for name, tensor in tensors.items() if not isinstance(tensor, DTensor)}
    for name in sorted(replicated, key=lambda name: (-replicated[name].nbytes, name)):
        writer = loads.index(min(loads))
        loads[writer] += replicated[name].nbytes + 1
        if writer == rank:
            own[name] = replicated[name]
    return {name: tensor for name, tensor in tensors.items() if name in own or isinstance(tensor, DTensor)}


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A digest of all names, shapes and dtypes, which must be the same on all ranks that save together."""
    words = "\n".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in sorted(tensors.items()))
    return hashlib.sha256(words.encode()).hexdigest()
