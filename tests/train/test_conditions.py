"""What exactness depends on is recorded, and a change of it is said in one line."""

from pathlib import Path

import torch
import torch.distributed as dist
from ranks import run_ranks
from train.small_run import small_spec

from iddpm_ray.train.conditions import changed, conditions, machines


def test_a_change_is_named_with_both_values(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    before = conditions(spec, world_size=2, microbatch=4, device=torch.device("cpu"))
    now = conditions(spec, world_size=3, microbatch=4, device=torch.device("cpu"))
    line = changed(before, now)
    assert line == "from here on equal to float tolerance, no longer bit for bit: workers 2 -> 3"
    assert changed(before, before) is None


def machines_of(hosts: tuple[str, ...]) -> str:
    return machines(hosts[dist.get_rank()], device=torch.device("cpu"))


def test_which_ranks_share_a_machine_is_told_alike_by_all_ranks() -> None:
    assert run_ranks(machines_of, 3, ("b", "a", "b")) == ["0 1 0"] * 3
    assert machines("alone", device=torch.device("cpu")) == "0"
