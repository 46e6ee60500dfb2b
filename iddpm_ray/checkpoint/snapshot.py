"""A copy of the state in host memory, taken while training waits; its memory is used again for the next one."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

_ALIGNMENT = 64


def local_part(tensor: Tensor) -> Tensor:
    """What of the tensor is on this rank."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


class HostCopy:
    """One block of host memory (pinned if the state is on a GPU) that tensors are copied into."""

    def __init__(self) -> None:
        self._signature: list[tuple[str, torch.Size, torch.dtype, torch.device]] = []
        self._views: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of the tensors' local parts, contiguous on the CPU; valid until the next `take`.

        Returns when the copies are done: one wait for the device, however many tensors there are.
        """
        parts = {name: local_part(tensor) for name, tensor in tensors.items()}
        signature = [(name, part.shape, part.dtype, part.device) for name, part in parts.items()]
        if signature != self._signature:
            self._views = _allocate(parts)
            self._signature = signature
        devices = set()
        for name, part in parts.items():
            self._views[name].copy_(part, non_blocking=True)
            devices.add(part.device)
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        return self._views


def _allocate(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    starts, end = {}, 0
    for name, part in parts.items():
        starts[name] = end
        end += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT
    pinned = any(part.device.type == "cuda" for part in parts.values())
    block = torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
    return {name: block[starts[name] : starts[name] + part.nbytes].view(part.dtype).view(part.shape) for name, part in parts.items()}
