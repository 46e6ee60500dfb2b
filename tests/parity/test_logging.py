"""Recorded log: averages of calls, averages of samples by quartile, and which quartile a timestep lies in."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from golden import Golden, GoldenFile

from iddpm_ray import stats
from iddpm_ray.stats.loss_terms import report_loss_terms, timestep_group


@pytest.fixture
def collector() -> Iterator[stats.Collector]:
    before = stats.current()
    stats.use(stats.Statistics())
    yield stats.Collector()
    stats.use(before)


def _calls(file: GoldenFile) -> list[int]:
    return sorted(int(match[1]) for name in file.names() if (match := re.fullmatch(r"call(\d+)\.t", name)))


def test_logged_averages_are_the_recorded_ones(golden: Golden, collector: stats.Collector) -> None:
    file = golden.open("logging.npz")
    num_timesteps = int(file.input("T"))
    for call in _calls(file):
        report_loss_terms(
            torch.from_numpy(file.input(f"call{call}.t")),
            loss=torch.from_numpy(file.input(f"call{call}.loss")),
            weights=torch.from_numpy(file.input(f"call{call}.weights")),
            num_timesteps=num_timesteps,
        )
    collector.update()
    for name in file.names():
        kind, _, key = name.partition(".")
        if kind == "logged":
            file.check(name, collector[key], rtol=1e-6)
        elif kind == "count":
            file.check(name, np.int64(collector.num(key)))
    ours = {key for key in collector.names() if re.fullmatch(r"loss(_q\d+)?", key) and collector.num(key)}
    assert ours == {name.removeprefix("logged.") for name in file.names() if name.startswith("logged.")}


def test_quartiles_are_the_recorded_ones(golden: Golden) -> None:
    file = golden.open("logging.npz")
    for name in file.names():
        match = re.fullmatch(r"quartile\.T(\d+)", name)
        if match is None:
            continue
        num_timesteps, count = int(match[1]), file.arrays[name].shape[0]
        edges = [0, num_timesteps // 4 - 1, num_timesteps // 4, num_timesteps // 2 - 1]
        edges += [num_timesteps // 2, 3 * num_timesteps // 4 - 1, 3 * num_timesteps // 4, num_timesteps - 1]
        t = torch.arange(num_timesteps) if count == num_timesteps else torch.tensor(edges)
        file.check(name, timestep_group(t, num_timesteps=num_timesteps, num_groups=4))
