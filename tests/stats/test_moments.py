"""Rows of moments are what numpy computes of all values at once, however the values were cut, grouped and merged."""

import math

import numpy as np
import pytest
import torch
from no_sync import NoHostSync
from torch import Tensor

from iddpm_ray.stats import moments


def check(row: Tensor | list[float], values: np.ndarray, *, rtol: float = 1e-12) -> None:
    found = moments.summary(row.tolist() if isinstance(row, Tensor) else row)
    finite = values[np.isfinite(values)]
    assert (found.num, found.num_nonfinite) == (finite.size, values.size - finite.size)
    expected = [finite.mean(), finite.std(), finite.min(), finite.max()] if finite.size else [math.nan] * 4
    scale = float(np.abs(finite).max(initial=0.0))
    np.testing.assert_allclose([found.mean, found.std, found.minimum, found.maximum], expected, rtol=rtol, atol=1e-13 * scale)


def some_values(rng: np.random.RandomState, count: int) -> np.ndarray:
    values = rng.randn(count) * 10.0 ** rng.randint(-2, 3) + rng.randn()
    values[rng.rand(count) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
    return values


@pytest.mark.parametrize("seed", range(20))
def test_merged_rows_are_the_row_of_all_values(seed: int) -> None:
    rng = np.random.RandomState(seed)
    parts = [some_values(rng, rng.randint(1, 30)) for _ in range(rng.randint(1, 12))]
    merged, on_host = moments.empty(1)[0], moments.empty_number()
    for part in parts:
        merged = moments.merge(merged, moments.of_values(torch.from_numpy(part)))
        for value in part.tolist():
            moments.add_number(on_host, value)
    check(merged, np.concatenate(parts))
    check(on_host[: moments.WIDTH], np.concatenate(parts))
    rows = torch.stack([moments.of_values(torch.from_numpy(part)) for part in parts])
    check(moments.fold(rows[:, None])[0], np.concatenate(parts))


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_the_rows_of_their_members(seed: int) -> None:
    rng = np.random.RandomState(100 + seed)
    count, num_groups = rng.randint(1, 60), rng.randint(1, 9)
    values = np.stack([some_values(rng, count) for _ in range(3)])
    index = rng.randint(-1, num_groups + 1, size=count)
    rows = moments.of_groups(torch.from_numpy(values), torch.from_numpy(index), num_groups=num_groups)
    assert rows.shape == (3, num_groups, moments.WIDTH)
    for line in range(3):
        for group in range(num_groups):
            check(rows[line, group], values[line][index == group])


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_spread_survives_next_to_a_far_larger_mean(cut: int) -> None:
    values = 1e8 + 1e-3 * np.random.RandomState(0).randn(5000)
    # What 1e-3 at 1e8 still is in float64, computed without cancellation.
    expected = (values - 1e8).std()
    row, on_host = moments.empty(1)[0], moments.empty_number()
    for part in torch.from_numpy(values).split(cut):
        row = moments.merge(row, moments.of_values(part))
    for value in values.tolist():
        moments.add_number(on_host, value)
    assert expected == pytest.approx(1e-3, rel=0.05)
    assert moments.summary(row.tolist()).std == pytest.approx(expected, rel=1e-4)
    assert moments.summary(on_host[: moments.WIDTH]).std == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("mean", [1e9, 1e12, 1e14, 1e15])
def test_numbers_one_by_one_have_the_spread_of_all_at_once(mean: float) -> None:
    values = mean + np.arange(5000) % 5
    on_host = moments.empty_number()
    for value in values.tolist():
        moments.add_number(on_host, value)
    at_once = moments.summary(moments.of_values(torch.from_numpy(values)).tolist())
    assert at_once.std == pytest.approx(2**0.5, rel=1e-12)
    found = moments.summary(on_host[: moments.WIDTH])
    assert (found.num, found.mean, found.minimum, found.maximum) == (5000, mean + 2, mean, mean + 4)
    assert found.std == pytest.approx(2**0.5, rel=1e-12)


def test_numbers_of_several_ranks_merge_with_what_rounding_took() -> None:
    values = 1e15 + np.arange(3001) % 7
    parts = np.split(values, [1000])
    rows = [moments.empty_number() for _ in parts]
    for row, part in zip(rows, parts, strict=True):
        for value in part.tolist():
            moments.add_number(row, value)
    merged = moments.number_of_rows(moments.fold(torch.stack([moments.rows_of_number(row) for row in rows])))
    assert (merged[3] - 1e15) + merged[6] == pytest.approx((values - 1e15).mean(), abs=0.13)  # half the distance of floats there
    assert moments.summary(merged[: moments.WIDTH]).std == pytest.approx((values - 1e15).std(), rel=1e-3)
    assert moments.number_of_rows(moments.rows_of_number(rows[0])) == rows[0]


def test_merging_no_values_changes_no_bit() -> None:
    row = moments.of_values(torch.tensor([0.1, 1e300, -1e-300, math.nan], dtype=torch.float64))
    single = moments.of_values(torch.tensor(1e200, dtype=torch.float64))
    for kept in (row, single):
        assert torch.equal(moments.merge(kept, moments.empty(1)[0]), kept)
        assert torch.equal(moments.merge(moments.empty(1)[0], kept), kept)


def test_one_value_has_no_spread_and_none_has_no_mean() -> None:
    assert moments.summary(moments.of_values(torch.tensor(3.25)).tolist()) == moments.Summary(1, 3.25, 0.0, 3.25, 3.25, 0)
    for row in (moments.empty(1)[0], moments.of_values(torch.tensor(math.nan)), moments.of_values(torch.tensor([math.inf, math.nan]))):
        found = moments.summary(row.tolist())
        assert found.num == 0
        assert all(math.isnan(number) for number in (found.mean, found.std, found.minimum, found.maximum))
    assert moments.summary(moments.of_values(torch.tensor([math.inf, math.nan])).tolist()).num_nonfinite == 2


def test_equal_values_have_no_spread_at_all() -> None:
    row = moments.empty(1)[0]
    for _ in range(1000):
        row = moments.merge(row, moments.of_values(torch.full((3,), 0.1)))
    assert moments.summary(row.tolist()).std == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3, 4)])
def test_any_real_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    check(moments.of_values(values), values.double().numpy().ravel())


def test_nothing_waits_for_the_device() -> None:
    values, index = torch.randn(3, 8), torch.randint(0, 4, (8,))
    with NoHostSync():
        rows = moments.of_groups(values, index, num_groups=4)
        moments.merge(rows, rows)
        moments.merge(moments.of_values(values), moments.of_values(values[0, 0]))
    assert moments.of_groups(values.to("meta"), index.to("meta"), num_groups=4).device.type == "meta"
