"""The collectives, on real gloo ranks and alone."""

import time

import pytest
import torch
import torch.distributed as dist
from ranks import RanksFailed, run_ranks

from iddpm_ray.parallel import collective

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def rows_of_every_dtype() -> list[torch.Tensor]:
    own = collective.rank()
    scalars = [collective.all_gather_rows(torch.tensor(own + 1).to(dtype)) for dtype in DTYPES]
    return [*scalars, collective.all_gather_rows(torch.full((2, 3), own)), collective.all_gather_rows(torch.empty(0, 5))]


@pytest.mark.parametrize("world_size", [2, 4])
def test_rows_come_in_rank_order_in_every_dtype(world_size: int) -> None:
    for rows in run_ranks(rows_of_every_dtype, world_size):
        for dtype, got in zip(DTYPES, rows, strict=False):
            assert torch.equal(got, torch.arange(1, world_size + 1).to(dtype))
        assert torch.equal(rows[-2], torch.arange(world_size).view(-1, 1, 1).expand(-1, 2, 3))
        assert rows[-1].shape == (world_size, 0, 5)


def nan_payload() -> torch.Tensor:
    return collective.all_gather_rows(torch.tensor([0x7FC00000 + 1 + collective.rank()], dtype=torch.int32).view(torch.float32)).view(
        torch.int32
    )


def test_rows_are_gathered_bit_for_bit() -> None:
    expected = torch.tensor([[0x7FC00001], [0x7FC00002]], dtype=torch.int32)
    assert all(torch.equal(got, expected) for got in run_ranks(nan_payload, 2))


def ragged(counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    first = sum(counts[: collective.rank()])
    own = torch.arange(first, first + counts[collective.rank()])
    return collective.gather_ragged(own, counts=counts), collective.gather_ragged(own.view(-1, 1).expand(-1, 2).double(), counts=counts)


@pytest.mark.parametrize("counts", [[3, 2], [0, 4], [2, 1, 1, 0]])
def test_ragged_slices_join_to_the_global_batch(counts: list[int]) -> None:
    expected = torch.arange(sum(counts))
    for flat, wide in run_ranks(ragged, len(counts), counts):
        assert torch.equal(flat, expected)
        assert torch.equal(wide, expected.double().view(-1, 1).expand(-1, 2))


def bytes_of_all() -> tuple[list[bytes], bytes]:
    own = collective.rank()
    return collective.gather_bytes(b"r" * own + bytes([own])), collective.broadcast_bytes(f"from {own}".encode())


def test_bytes_of_any_length_reach_every_rank() -> None:
    assert run_ranks(bytes_of_all, 4) == [([b"\0", b"r\1", b"rr\2", b"rrr\3"], b"from 0")] * 4


def late_for_the_barrier() -> str:
    group = collective.new_gloo_group(timeout_s=20)
    collective.barrier(timeout_s=20, group=group)
    if collective.rank() == 1:
        time.sleep(1.5)
        return ""
    try:
        collective.barrier(timeout_s=0.5, group=group)
    except RuntimeError as error:
        return str(error)
    return "came"


def test_a_barrier_names_who_did_not_come() -> None:
    first, _ = run_ranks(late_for_the_barrier, 2)
    assert "1" in first
    assert "failed to pass monitoredBarrier" in first


def over_a_group_of_two() -> list[int]:
    group = dist.new_group([1, 3], backend="gloo")
    if dist.get_rank() not in (1, 3):
        return []
    return [
        collective.rank(group),
        collective.world_size(group),
        *collective.all_gather_rows(torch.tensor(dist.get_rank()), group=group).tolist(),
    ]


def test_a_part_of_the_ranks_may_gather_among_themselves() -> None:
    assert run_ranks(over_a_group_of_two, 4) == [[], [0, 2, 1, 3], [], [1, 2, 1, 3]]


def test_without_a_process_group_the_world_is_one_rank() -> None:
    values = torch.arange(3.0)
    assert collective.world_size() == 1
    assert collective.rank() == 0
    assert collective.new_gloo_group(timeout_s=1) is None
    assert torch.equal(collective.all_gather_rows(values), values.view(1, 3))
    assert torch.equal(collective.gather_ragged(values, counts=[3]), values)
    assert collective.gather_bytes(b"x") == [b"x"]
    collective.barrier(timeout_s=1)


def one_rank_raises() -> None:
    if dist.get_rank() == 1:
        raise ValueError("the reason of rank one")
    dist.barrier()


def test_the_rank_runner_reports_the_traceback_of_the_rank_that_failed() -> None:
    with pytest.raises(RanksFailed, match="the reason of rank one"):
        run_ranks(one_rank_raises, 2, timeout_s=40)
