"""Catches any operation that makes the host wait for the device, also on a CPU where waiting costs nothing."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
    "equal",
}


class HostWaited(AssertionError):
    """An operation needed the values of a tensor on the host, or made a tensor whose shape depends on values."""


class NoHostSync(TorchDispatchMode):
    """`with NoHostSync():` raises HostWaited at `.item()`, `.tolist()`, `bool(tensor)`, boolean indexing and the like."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _WAITING or (name in ("index", "index_put", "index_put_") and _has_mask(args)):
            raise HostWaited(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


def _has_mask(args: Any) -> bool:
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1])
