"""How replicas of a model are kept equal: one averaged all-reduce a step, in an order that a restart does not change."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def replicate(model: nn.Module, *, device: torch.device) -> nn.Module:
    """The model as every rank calls it: itself alone, or wrapped so that backward averages gradients over ranks."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return model
    return DistributedDataParallel(
        model, device_ids=[device] if device.type == "cuda" else None, forward_sync_buffers=False, gradient_as_bucket_view=True
    )


def settle(replica: nn.Module, backward: Callable[[], None]) -> None:
    """Runs two throw-away iterations, after which the order of the all-reduce is final.

    `DistributedDataParallel` regroups its buckets after the first backward of a process, so the first step after a restart
    would add up in another order than the same step of an undisturbed run. Call this before weights are loaded.
    """
    if isinstance(replica, DistributedDataParallel):
        for _ in range(2):
            backward()
            replica.zero_grad(set_to_none=True)


def without_sync(replica: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Holds back the all-reduce for all but the last microbatch of a step."""
    if isinstance(replica, DistributedDataParallel) and not last:
        return replica.no_sync()
    return nullcontext()
