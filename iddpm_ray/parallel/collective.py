"""Few-line collectives that also work with no process group, where the world is one rank.

Every function but `rank` and `world_size` is called by all ranks of the group, in one order, with shapes that all know.
"""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


def world_size(group: Group = None) -> int:
    """How many ranks the group has; 1 without a process group."""
    return dist.get_world_size(group) if dist.is_initialized() else 1


def rank(group: Group = None) -> int:
    """This process's place in the group, from 0; 0 without a process group."""
    return dist.get_rank(group) if dist.is_initialized() else 0


def new_gloo_group(*, timeout_s: float, ranks: Sequence[int] | None = None) -> Group:
    """A CPU group with sockets of its own, so a thread may use it beside the training's collectives. All ranks call this.

    Args:
        ranks: the members; None for all ranks.

    Returns:
        None without a process group (a world of one), and on a rank that is no member.
    """
    if not dist.is_initialized():
        return None
    group = dist.new_group(None if ranks is None else list(ranks), backend="gloo", timeout=timedelta(seconds=timeout_s))
    return group if isinstance(group, dist.ProcessGroup) else None  # an int stands for "not a member"


def all_gather_rows(values: Tensor, *, group: Group = None) -> Tensor:
    """Every rank's tensor of one shape [...], as [world_size, ...] in rank order; any dtype, bit for bit."""
    size = world_size(group)
    if size == 1:
        return values.detach().clone().unsqueeze(0)
    flat = values.detach().contiguous().reshape(-1)
    sent = flat.view(torch.uint8)  # backends differ in the dtypes they know; all know bytes
    received = torch.empty(size * sent.numel(), dtype=torch.uint8, device=values.device)
    if sent.numel():
        dist.all_gather_single(received, sent, group=group)
    return received.view(values.dtype).view(size, *values.shape)


def gather_ragged(values: Tensor, *, counts: Sequence[int], group: Group = None) -> Tensor:
    """Every rank's rows [counts[rank], ...] as one [sum(counts), ...] in rank order, on all ranks.

    Args:
        values: this rank's rows.
        counts: rows of every rank, known to all beforehand; the exchange is padded to the largest, so its shape is too.
        group: whose ranks take part.
    """
    assert len(counts) == world_size(group)
    assert values.shape[0] == counts[rank(group)]
    if len(counts) == 1:
        return values.detach().clone()
    padded = values.new_zeros((max(counts), *values.shape[1:]))
    padded[: values.shape[0]].copy_(values.detach())
    rows = all_gather_rows(padded, group=group)
    return torch.cat([rows[index, :count] for index, count in enumerate(counts)])


def gather_bytes(data: bytes, *, group: Group = None) -> list[bytes]:
    """Every rank's bytes, of any length, in rank order; over a CPU group. No pickle."""
    if world_size(group) == 1:
        return [data]
    counts = [int(count) for count in all_gather_rows(torch.tensor(len(data)), group=group).tolist()]
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    joined = gather_ragged(own, counts=counts, group=group).numpy().tobytes()
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    return [joined[end - count : end] for end, count in zip(ends, counts, strict=True)]


def broadcast_bytes(data: bytes, *, group: Group = None) -> bytes:
    """The bytes of the group's rank 0, on all ranks (what the others pass is ignored); over a CPU group. No pickle."""
    return gather_bytes(data if rank(group) == 0 else b"", group=group)[0]


def barrier(*, timeout_s: float, group: Group = None) -> None:
    """Return when all ranks have come.

    Raises:
        RuntimeError: the time is over; on a CPU group, rank 0's names the ranks that did not come.
    """
    if world_size(group) == 1:
        return
    if dist.get_backend(group) == "gloo":
        dist.monitored_barrier(group, timeout=timedelta(seconds=timeout_s), wait_all_ranks=True)
    else:
        dist.barrier(group)
