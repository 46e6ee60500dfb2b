"""Collectors answer for all ranks over their own interval, and ranks that report different things never hang or mix."""

import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fake_world import FakeWorld
from ranks import run_ranks
from torch import Tensor

from iddpm_ray import stats
from iddpm_ray.stats import Collector, Statistics, report, report0

Exchange = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _own_statistics() -> Iterator[None]:
    before = stats.current()
    stats.use(Statistics())
    yield
    stats.use(before)


def expected(values: list[float]) -> dict[str, float]:
    finite = np.array([value for value in values if math.isfinite(value)])
    found = {"num": finite.size, "num_nonfinite": len(values) - finite.size}
    numbers = (finite.mean(), finite.std(), finite.min(), finite.max()) if finite.size else (math.nan,) * 4
    return found | dict(zip(("mean", "std", "minimum", "maximum"), numbers, strict=True))


def assert_same(found: dict[str, dict[str, float]], reported: dict[str, list[float]]) -> None:
    assert sorted(found) == sorted(reported)
    for name, values in reported.items():
        assert found[name] == pytest.approx(expected(values), rel=1e-12, abs=1e-12, nan_ok=True), name


def test_an_interval_is_what_was_reported_since_the_collectors_own_last_update() -> None:
    often, seldom = Collector(), Collector()
    report("x", [1.0, 2.0])
    often.update()
    assert_same(often.as_dict(), {"x": [1.0, 2.0]})
    report("x", torch.tensor([3.0, 7.0]))
    often.update()
    assert_same(often.as_dict(), {"x": [3.0, 7.0]})
    report("x", 8.0)
    often.update()
    seldom.update()
    assert_same(often.as_dict(), {"x": [8.0]})
    assert_same(seldom.as_dict(), {"x": [1.0, 2.0, 3.0, 7.0, 8.0]})
    late = Collector()
    report("x", 9.0)
    for collector in (late, seldom):
        collector.update()
        assert_same(collector.as_dict(), {"x": [9.0]})


def test_every_number_of_a_name() -> None:
    collector = Collector()
    report("x", [1.0, 5.0, math.nan, 3.0, -math.inf])
    collector.update()
    assert collector.names() == ["x"]
    assert (collector.num("x"), collector.mean("x"), collector["x"]) == (3, 3.0, 3.0)
    assert collector.std("x") == pytest.approx(math.sqrt(8 / 3))
    assert (collector.minimum("x"), collector.maximum("x"), collector.num_nonfinite("x")) == (1.0, 5.0, 2)
    assert collector.as_dict() == {
        "x": {"num": 3, "mean": 3.0, "std": collector.std("x"), "minimum": 1.0, "maximum": 5.0, "num_nonfinite": 2},
    }
    assert json.loads(json.dumps(collector.as_dict())) == collector.as_dict()
    assert collector.means() == {"x": 3.0}


def test_a_name_never_reported_has_no_values() -> None:
    collector = Collector()
    collector.update()
    assert collector.names() == []
    assert collector.as_dict() == {}
    assert collector.num("x") == collector.num_nonfinite("x") == 0
    assert all(math.isnan(number) for number in (collector["x"], collector.std("x"), collector.minimum("x"), collector.maximum("x")))


def test_regex_is_matched_whole() -> None:
    losses, all_names = Collector(r"loss(_q\d)?"), Collector()
    for name in ("loss", "loss_q3", "loss_unweighted", "my_loss"):
        report(name, 1.0)
    losses.update()
    all_names.update()
    assert losses.names() == ["loss", "loss_q3"]
    assert all_names.names() == ["loss", "loss_q3", "loss_unweighted", "my_loss"]


def test_keep_previous_keeps_a_name_that_had_nothing_to_report() -> None:
    keeping, forgetting = Collector(keep_previous=True), Collector(keep_previous=False)
    report("x", [1.0, 3.0])
    report("y", 5.0)
    keeping.update()
    forgetting.update()
    report("y", 6.0)
    report("x", [])
    for _ in range(2):
        keeping.update()
        assert_same(keeping.as_dict(), {"x": [1.0, 3.0], "y": [6.0]})
    forgetting.update()
    assert_same(forgetting.as_dict(), {"x": [], "y": [6.0]})
    assert forgetting.means() == {"y": 6.0}
    report("x", math.nan)
    keeping.update()
    assert_same(keeping.as_dict(), {"x": [math.nan], "y": [6.0]})


def test_collectors_belong_to_the_statistics_in_use_when_they_were_made() -> None:
    first = Collector()
    other = stats.use(Statistics())
    second, explicit = Collector(), Collector(statistics=other)
    report("x", 1.0)
    for collector in (first, second, explicit):
        collector.update()
    assert (first.num("x"), second.num("x"), explicit.num("x")) == (0, 1, 1)


@pytest.mark.parametrize("interval", [1, 3, 200])
def test_spread_of_an_interval_survives_a_far_larger_mean(interval: int) -> None:
    values = 1e8 + 1e-3 * np.random.RandomState(0).randn(600)
    collector, whole = Collector(), Collector()
    for begin in range(0, 600, interval):
        part = values[begin : begin + interval]
        report("x", torch.from_numpy(part))
        collector.update()
        assert collector.std("x") == pytest.approx((part - 1e8).std(), rel=2e-3, abs=1e-12)
    whole.update()
    assert whole.std("x") == pytest.approx((values - 1e8).std(), rel=1e-4)


def random_reports(seed: int, rank: int) -> list[tuple[str, list[float]]]:
    """What a rank reports in one interval: names in an order of its own, some known to it alone, perhaps nothing."""
    rng = random.Random(f"{seed} {rank}")
    names = [f"common{i}" for i in range(5)] + [f"only{rank}_{i}" for i in range(3)] + [f"round{seed}"]
    rng.shuffle(names)
    reports = []
    for name in names[: rng.randint(0, len(names))]:
        values = [rng.gauss(rank, 2.0) if rng.random() > 0.1 else math.inf for _ in range(rng.randint(0, 6))]
        reports.append((name, values))
    return reports


def several_rounds(rank: int, exchange: Exchange, *, num_rounds: int) -> list[dict[str, dict[str, float]]]:
    """All rounds' as_dict of a rank that reports `random_reports`."""
    statistics = Statistics(rank=rank)
    collector = Collector(keep_previous=False, statistics=statistics)
    slow = Collector(keep_previous=False, statistics=statistics)
    found = []
    for number in range(num_rounds):
        for name, values in random_reports(number, rank):
            statistics.report(name, torch.tensor(values, dtype=torch.float64) if len(values) % 2 else values)
        collector.update(exchange)
        found.append(collector.as_dict())
    slow.update(exchange)
    return [*found, slow.as_dict()]


def check_rounds(answers: list[list[dict[str, dict[str, float]]]]) -> None:
    world_size, num_rounds = len(answers), len(answers[0]) - 1
    known: set[str] = set()
    everything: dict[str, list[float]] = {}
    for number in range(num_rounds):
        reported: dict[str, list[float]] = {}
        for rank in range(world_size):
            for name, values in random_reports(number, rank):
                known.add(name)
                reported.setdefault(name, []).extend(values)
                everything.setdefault(name, []).extend(values)
        assert_same(answers[0][number], {name: reported.get(name, []) for name in known})
    assert_same(answers[0][-1], everything)
    for answer in answers[1:]:
        assert json.dumps(answer) == json.dumps(answers[0])


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_names_of_some_ranks_in_any_order_give_right_numbers_on_all_ranks(world_size: int) -> None:
    world = FakeWorld(world_size)
    check_rounds(world.run(lambda rank, exchange: several_rounds(rank, exchange, num_rounds=6)))


def test_when_all_ranks_know_all_names_a_row_costs_two_exchanges() -> None:
    world = FakeWorld(3)

    def work(rank: int, exchange: Exchange) -> None:
        statistics = Statistics(rank=rank)
        collector = Collector(statistics=statistics)
        collector.update(exchange)
        for _ in range(3):
            for name in ("a", f"only{rank}"):
                statistics.report(name, 1.0)
            statistics.report0("on rank 0", 1.0)
            collector.update(exchange)

    world.run(work)
    # Nothing known: the header. Then header, names, moments; afterwards header and moments.
    assert [len(shape) for shape in world.shapes] == [1, 1, 1, 2, 1, 2, 1, 2]
    assert world.shapes[0] == world.shapes[1] == (4,)
    assert world.shapes[3:] == [(5, 6), (4,), (5, 6), (4,), (5, 6)]


def test_values_spread_over_ranks_are_one_set() -> None:
    values = 1e8 + 1e-3 * np.random.RandomState(1).randn(4000)

    def work(rank: int, exchange: Exchange) -> tuple[float, int]:
        statistics = Statistics(rank=rank)
        collector = Collector(statistics=statistics)
        for part in np.array_split(values, 4)[rank].reshape(-1, 10):
            statistics.report("x", torch.from_numpy(part))
        collector.update(exchange)
        return collector.std("x"), collector.num("x")

    for std, num in FakeWorld(4).run(work):
        assert num == 4000
        assert std == pytest.approx((values - 1e8).std(), rel=1e-4)


def test_ranks_at_different_collectors_raise_rather_than_mix() -> None:
    def work(rank: int, exchange: Exchange) -> str:
        statistics = Statistics(rank=rank)
        statistics.report("a", 1.0)
        with pytest.raises(RuntimeError, match="different collectors"):
            Collector("a|b"[: 1 + 2 * rank], statistics=statistics).update(exchange)
        return "raised"

    assert FakeWorld(2).run(work) == ["raised", "raised"]


def all_gather(tensor: Tensor) -> Tensor:
    """The all-gather of torch.distributed."""
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    return torch.stack(everyone)


def rounds_of_a_real_rank(num_rounds: int) -> list[dict[str, Any]]:
    return several_rounds(dist.get_rank(), all_gather, num_rounds=num_rounds)


@pytest.mark.parametrize("world_size", [2, 4])
def test_real_ranks_agree(world_size: int) -> None:
    check_rounds(run_ranks(rounds_of_a_real_rank, world_size, 5))


def test_report0_of_all_ranks_counts_once() -> None:
    def work(rank: int, exchange: Exchange) -> int:
        statistics = Statistics(rank=rank)
        collector = Collector(statistics=statistics)
        statistics.report0("x", 1.0)
        collector.update(exchange)
        return collector.num("x")

    assert FakeWorld(3).run(work) == [1, 1, 1]
    assert report0("x", 2.0) == 2.0
