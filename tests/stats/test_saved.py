"""Saved statistics go on bit for bit on the same world size, lose nothing on another, and a save leaves no trace."""

import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fake_world import FakeWorld
from ranks import run_ranks
from torch import Tensor

from iddpm_ray.errors import CheckpointError
from iddpm_ray.stats import Collector, SavedStatistics, Statistics, gather_state, load_state

Exchange = Callable[[Tensor], Tensor]


class Run:
    """A rank that reports at every step and reads at some; `answers` is every row of both collectors."""

    def __init__(self, rank: int, exchange: Exchange | None) -> None:
        self.statistics = Statistics(rank=rank)
        self.often = Collector(statistics=self.statistics)
        self.seldom = Collector("x.*", keep_previous=False, statistics=self.statistics)
        self.exchange = exchange
        self.answers: list[str] = []

    def step(self, number: int) -> None:
        rng = random.Random(f"{number} {self.statistics.rank}")
        rank = self.statistics.rank
        self.statistics.report("x", torch.tensor([rng.gauss(0.1, 1.0) for _ in range(3)], dtype=torch.float64))
        self.statistics.report("x", rng.gauss(1.0, 3.0))
        self.statistics.report0("x0", rng.random())
        if number % 3 == rank:
            self.statistics.report(f"only{rank}", math.nan if rng.random() < 0.3 else rng.random())
        self.statistics.report_groups(
            ["xa", "x", "y"], torch.randn(5, generator=torch.Generator().manual_seed(number)), torch.tensor([0, 1, 2, 1, 0])
        )
        if number % 4 == 3:
            self.often.update(self.exchange)
            self.answers.append(json.dumps([number, self.often.as_dict()]))
        if number % 7 == 6:
            self.seldom.update(self.exchange)
            self.answers.append(json.dumps([number, self.seldom.as_dict()]))


def undisturbed(rank: int, exchange: Exchange | None, *, steps: int, saves: set[int] = frozenset()) -> list[str]:  # type: ignore[assignment]
    run = Run(rank, exchange)
    for number in range(steps):
        if number in saves:
            gather_state(run.statistics, exchange)
        run.step(number)
    return run.answers


def through_a_file(saved: SavedStatistics) -> SavedStatistics:
    return SavedStatistics(json.loads(json.dumps(saved.labels)), saved.rows.clone())


def interrupted(rank: int, exchange: Exchange | None, *, steps: int, kill: int, world_size: int) -> list[str]:
    first = Run(rank, exchange)
    for number in range(kill):
        first.step(number)
    saved = through_a_file(gather_state(first.statistics, exchange))
    first.step(kill)  # after the save: lost
    second = Run(rank, exchange)
    load_state(second.statistics, saved, world_size=world_size)
    for number in range(kill, steps):
        second.step(number)
    rows = sum(number % 4 == 3 for number in range(kill)) + sum(number % 7 == 6 for number in range(kill))
    return first.answers[:rows] + second.answers


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_restored_run_writes_the_same_bits(world_size: int) -> None:
    whole = FakeWorld(world_size).run(lambda rank, exchange: undisturbed(rank, exchange, steps=24))
    assert len(whole[0]) == 9
    for kill in (0, 1, 3, 4, 10, 14, 17, 21):
        again = FakeWorld(world_size).run(
            lambda rank, exchange, kill=kill: interrupted(rank, exchange, steps=24, kill=kill, world_size=world_size)
        )
        assert again == whole, kill


def test_saving_leaves_no_trace() -> None:
    whole = FakeWorld(2).run(lambda rank, exchange: undisturbed(rank, exchange, steps=20))
    saving = FakeWorld(2).run(lambda rank, exchange: undisturbed(rank, exchange, steps=20, saves={0, 2, 5, 6, 11, 12, 19}))
    assert saving == whole


def test_collectors_may_be_made_before_or_after_the_load() -> None:
    run = Run(0, None)
    for number in range(6):
        run.step(number)
    saved = gather_state(run.statistics)
    statistics = Statistics()
    load_state(statistics, saved, world_size=1)
    collector = Collector(statistics=statistics)
    assert collector.as_dict() == run.often.as_dict()
    collector.update()
    run.often.update()
    assert collector.as_dict() == run.often.as_dict()
    twin = Collector(statistics=statistics)
    assert twin.names() == []


@pytest.mark.parametrize(("old", "new"), [(1, 3), (2, 1), (4, 2), (3, 4)])
def test_another_world_size_loses_nothing(old: int, new: int) -> None:
    def before(rank: int, exchange: Exchange) -> SavedStatistics:
        run = Run(rank, exchange)
        for number in range(6):
            run.step(number)
        return gather_state(run.statistics, exchange)

    def expected(rank: int, exchange: Exchange) -> dict[str, dict[str, float]]:
        run = Run(rank, exchange)
        for number in range(6):
            run.step(number)
        run.seldom.update(exchange)
        return run.seldom.as_dict()

    saved = FakeWorld(old).run(before)
    for other in saved[1:]:
        assert other.labels == saved[0].labels
        assert torch.equal(other.rows, saved[0].rows)

    def after(rank: int, exchange: Exchange) -> tuple[dict[str, Any], dict[str, Any], int]:
        run = Run(rank, exchange)
        load_state(run.statistics, saved[0], world_size=new)
        previous = run.often.as_dict()
        own = sum(int(rows[:, :2].sum()) for rows in run.statistics.blocks.values())
        run.seldom.update(exchange)
        return run.seldom.as_dict(), previous, own

    wanted = FakeWorld(old).run(expected)[0]
    answers = FakeWorld(new).run(after)
    for found, _, _ in answers:
        assert found.keys() == wanted.keys()
        for name, numbers in wanted.items():
            assert found[name] == pytest.approx(numbers, rel=1e-12, nan_ok=True)
    assert len({json.dumps(previous) for _, previous, _ in answers}) == 1
    assert answers[0][2] > 0
    assert all(own == 0 for _, _, own in answers[1:])


def test_a_number_far_larger_than_its_spread_goes_on_bit_for_bit() -> None:
    whole, first, second = Statistics(), Statistics(), Statistics()
    numbers = [1e15 + number % 7 for number in range(2000)]
    for number in numbers:
        whole.report("a", number)
    for number in numbers[:777]:
        first.report("a", number)
    load_state(second, through_a_file(gather_state(first)), world_size=1)
    for number in numbers[777:]:
        second.report("a", number)
    assert second.numbers == whole.numbers
    assert whole.numbers["a"][6] != 0.0


def test_a_number_saved_before_its_rounding_was_kept_is_loaded() -> None:
    statistics = Statistics()
    saved = SavedStatistics(['["number", "", ["a"]]'], torch.tensor([[[3.0, 0.0, 2.0, 5.0, -4.0, 6.0]]], dtype=torch.float64))
    load_state(statistics, saved, world_size=1)
    assert statistics.numbers["a"] == [3.0, 0.0, 2.0, 5.0, -4.0, 6.0, 0.0]


def test_nothing_reported_is_saved_and_loaded() -> None:
    saved = FakeWorld(2).run(lambda rank, exchange: gather_state(Statistics(rank=rank), exchange))
    assert saved[0].labels == []
    for rank in range(3):
        load_state(Statistics(rank=rank), saved[0], world_size=3)


def test_loading_replaces_what_was_there() -> None:
    full, empty = Run(0, None), Run(0, None)
    saved = gather_state(empty.statistics)
    for number in range(5):
        full.step(number)
    load_state(full.statistics, saved, world_size=1)
    full.often.update()
    assert full.often.as_dict() == {name: numbers for name, numbers in full.often.as_dict().items() if numbers["num"] == 0}


def test_rows_that_do_not_fit_are_refused() -> None:
    run = Run(0, None)
    run.step(0)
    saved = gather_state(run.statistics)
    with pytest.raises(CheckpointError, match="do not fit"):
        load_state(Statistics(), SavedStatistics(saved.labels[1:], saved.rows), world_size=1)
    with pytest.raises(CheckpointError, match="telepathy"):
        load_state(Statistics(), SavedStatistics([json.dumps(["telepathy", "", ["x"]])], saved.rows[:, :1]), world_size=1)


def all_gather(tensor: Tensor) -> Tensor:
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    return torch.stack(everyone)


def both_runs(steps: int, kill: int) -> tuple[list[str], list[str]]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return undisturbed(rank, all_gather, steps=steps), interrupted(rank, all_gather, steps=steps, kill=kill, world_size=world_size)


def test_real_ranks_restore_bit_for_bit() -> None:
    for whole, again in run_ranks(both_runs, 4, 16, 9):
        assert whole == again
        assert len(whole) == 6
