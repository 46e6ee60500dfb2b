"""Loss terms are averaged by call, by quartile and by bin, on rank 0 alone, without a wait."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from no_sync import NoHostSync

from iddpm_ray import stats
from iddpm_ray.stats import Collector, Statistics
from iddpm_ray.stats.loss_terms import report_loss_terms, timestep_group


@pytest.fixture(autouse=True)
def _own_statistics() -> Iterator[None]:
    before = stats.current()
    stats.use(Statistics())
    yield
    stats.use(before)


@pytest.mark.parametrize(("num_timesteps", "num_groups"), [(1, 4), (3, 4), (7, 4), (1000, 4), (4000, 10), (10, 100), (1000, 1)])
def test_groups_are_equal_parts_of_the_timesteps(num_timesteps: int, num_groups: int) -> None:
    found = timestep_group(torch.arange(num_timesteps), num_timesteps=num_timesteps, num_groups=num_groups)
    assert found.tolist() == [num_groups * t // num_timesteps for t in range(num_timesteps)]
    assert int(found.max()) < num_groups


@pytest.mark.parametrize("seed", range(8))
def test_every_key_is_what_a_loop_over_samples_finds(seed: int) -> None:
    rng = np.random.RandomState(seed)
    num_timesteps, num_bins = int(rng.choice([1, 5, 100, 4000])), int(rng.choice([1, 7, 10, 120]))
    terms = ["loss", "mse", "vb"][: 1 + seed % 3]
    collector = Collector()
    by_call: dict[str, list[float]] = {}
    by_sample: dict[str, list[float]] = {}
    for _ in range(3):
        count = rng.randint(0, 12)
        t = rng.randint(0, num_timesteps, size=count)
        weights = rng.rand(count) + 0.5
        values = {name: rng.rand(count) for name in terms}
        report_loss_terms(
            torch.from_numpy(t),
            weights=torch.from_numpy(weights),
            num_timesteps=num_timesteps,
            num_bins=num_bins,
            loss=torch.from_numpy(values["loss"]),
            mse=torch.from_numpy(values["mse"]) if "mse" in values else None,
            vb=torch.from_numpy(values["vb"]) if "vb" in values else None,
        )
        logged = {name: value * weights for name, value in values.items()} | {"loss_unweighted": values["loss"]}
        for key, value in logged.items():
            if count:
                by_call.setdefault(key, []).append(value.mean())
            for step, number in zip(t, value, strict=True):
                by_sample.setdefault(f"{key}_q{4 * step // num_timesteps}", []).append(number)
                digits = 3 if num_bins > 100 else 2
                by_sample.setdefault(f"{key}_bin{num_bins * step // num_timesteps:0{digits}}", []).append(number)
    collector.update()
    expected = {key: np.mean(numbers) for key, numbers in (by_call | by_sample).items()}
    assert collector.means() == pytest.approx(expected, rel=1e-12)
    assert {key: collector.num(key) for key in expected} == {key: len(numbers) for key, numbers in (by_call | by_sample).items()}


def test_a_nan_is_counted_where_it_belongs_and_nowhere_else() -> None:
    collector = Collector()
    loss = torch.tensor([1.0, math.nan, 3.0])
    report_loss_terms(torch.tensor([0, 5, 9]), loss=loss, weights=torch.ones(3), num_timesteps=10)
    collector.update()
    assert {name for name in collector.names() if collector.num_nonfinite(name) == 1} == {
        "loss",
        "loss_q2",
        "loss_bin05",
        "loss_unweighted",
        "loss_unweighted_q2",
        "loss_unweighted_bin05",
    }
    assert collector["loss_q0"] == 1.0
    assert collector["loss_q3"] == 3.0


def test_other_ranks_know_the_names_and_count_nothing() -> None:
    stats.use(Statistics(rank=1))
    collector = Collector()
    report_loss_terms(torch.tensor([0]), loss=torch.ones(1), weights=torch.ones(1), num_timesteps=10, num_bins=2)
    collector.update()
    assert collector.means() == {}
    assert collector.names() == sorted(
        key + part for key in ("loss", "loss_unweighted") for part in ("", "_q0", "_q1", "_q2", "_q3", "_bin00", "_bin01")
    )


def test_reporting_waits_for_nothing() -> None:
    t, loss = torch.randint(0, 1000, (16,)), torch.rand(16, requires_grad=True)
    with NoHostSync():
        for _ in range(2):
            report_loss_terms(t, loss=loss, weights=torch.rand(16), mse=loss, vb=loss, num_timesteps=1000)
    meta = loss.detach().to("meta")
    report_loss_terms(t.to("meta"), loss=meta, weights=meta, num_timesteps=1000)
    assert {key[0] for key in stats.current().blocks} == {"cpu", "meta"}
    assert not any(rows.requires_grad for rows in stats.current().blocks.values())
