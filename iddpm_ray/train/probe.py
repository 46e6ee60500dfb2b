"""`microbatch: auto`: the largest microbatch that fits, found by throw-away passes before the run, never inside a step.

Whatever a step keeps in memory besides (moments, averages, gradients) has to be there when the passes are made.
"""

from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from iddpm_ray.errors import TrainError


@dataclass(frozen=True)
class Microbatch:
    """Samples a backward, and where the number came from (`spec`, `saved` or `probed`)."""

    samples: int
    origin: str


def find_microbatch(
    wanted: int | str | None, *, count: int, known: int | None, attempt: Callable[[int], None], device: torch.device
) -> Microbatch:
    """The microbatch all ranks use.

    Args:
        wanted: the spec's value: a number, None (the whole slice) or `auto`.
        count: samples of the largest slice of any rank, so that all ranks probe the same sizes.
        known: what an earlier attempt found for the same device model and slice, or None.
        attempt: a throw-away forward and backward of that many samples on the bare network, no collectives; keeps the gradients.

    Raises:
        TrainError: if not even one sample fits.
    """
    if wanted is None:
        return Microbatch(count, "spec")
    if isinstance(wanted, int):
        return Microbatch(min(wanted, count), "spec")
    if known is not None:
        return Microbatch(min(known, count), "saved")
    size = count
    while size >= 1:
        if _all_ranks(_fits(size, attempt=attempt, device=device), device=device):
            return Microbatch(size, "probed")
        size = -(-size // 2) if size > 1 else 0
    raise TrainError(
        "not even a microbatch of one sample fits into memory",
        fix="a smaller model or picture, model.gradient_checkpointing: true, or a larger machine",
    )


def _fits(size: int, *, attempt: Callable[[int], None], device: torch.device) -> bool:
    """Whether this rank gets through one pass of `size` samples with a tenth of its memory to spare."""
    if device.type != "cuda":
        return size == 1 or _activation_bytes(attempt) * size < 0.9 * psutil.virtual_memory().available / _ranks_here()
    try:
        attempt(size)
        torch.cuda.synchronize(device)
        reserved, total = torch.cuda.max_memory_reserved(device), torch.cuda.get_device_properties(device).total_memory
        return reserved < 0.9 * total
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _activation_bytes(attempt: Callable[[int], None]) -> int:
    """Bytes that autograd keeps for one sample; host memory gives no warning before the kernel kills, so it is counted."""
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        attempt(1)
    return sum(seen.values())


def _ranks_here() -> int:
    """Ranks that may share this machine's memory; all of them, to be safe."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _all_ranks(fits: bool, *, device: torch.device) -> bool:
    if not dist.is_initialized():
        return fits
    vote = torch.tensor(int(fits), device=device)
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    return bool(vote.item())
