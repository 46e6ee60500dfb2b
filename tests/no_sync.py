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


_METHODS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")  # some never reach the dispatcher on a CPU


class NoHostSync(TorchDispatchMode):
    """`with NoHostSync():` raises HostWaited at `.item()`, `.tolist()`, `bool(tensor)`, `.cpu()`, boolean indexing and the like."""

    def __enter__(self) -> Any:
        self._saved = {name: torch.Tensor.__dict__.get(name) for name in _METHODS}
        for name in _METHODS:
            setattr(torch.Tensor, name, _refusing(name))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for name, method in self._saved.items():
            if method is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _WAITING or (name in ("index", "index_put", "index_put_") and _has_mask(args)):
            raise HostWaited(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


def _has_mask(args: Any) -> bool:
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1])


def _refusing(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise HostWaited(f"Tensor.{name} waits for the device")

    return refuse
