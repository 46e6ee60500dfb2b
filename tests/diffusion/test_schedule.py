"""Laws of the schedules and of their tables."""

import dataclasses

import pytest
import torch

from iddpm_ray.diffusion.schedule import check_schedule, make_betas, tables_of
from iddpm_ray.errors import SpecError

CASES = [("linear", 21), ("linear", 100), ("linear", 4000), ("cosine", 2), ("cosine", 7), ("cosine", 1000)]


@pytest.mark.parametrize(("schedule", "num_timesteps"), CASES)
def test_the_picture_fades_and_never_returns(schedule: str, num_timesteps: int) -> None:
    tables = tables_of(make_betas(schedule, num_timesteps=num_timesteps))
    kept = tables.alphas_cumprod
    assert kept.dtype == torch.float64
    assert (kept.diff() < 0).all()
    assert 0 < kept[-1] < kept[0] < 1
    assert torch.equal(tables.alphas_cumprod_prev, torch.cat([torch.ones(1, dtype=torch.float64), kept[:-1]]))
    assert torch.equal(tables.alphas_cumprod_next, torch.cat([kept[1:], torch.zeros(1, dtype=torch.float64)]))


@pytest.mark.parametrize(("schedule", "num_timesteps"), CASES)
def test_the_posterior_undoes_one_step(schedule: str, num_timesteps: int) -> None:
    """Marginalising q(x_{t-1} given x_t, x_start) over q(x_t given x_start) gives q(x_{t-1} given x_start)."""
    tables = tables_of(make_betas(schedule, num_timesteps=num_timesteps))
    mean = tables.posterior_mean_coef1 + tables.posterior_mean_coef2 * tables.sqrt_alphas_cumprod
    torch.testing.assert_close(mean, tables.alphas_cumprod_prev.sqrt(), rtol=1e-9, atol=1e-12)
    variance = tables.posterior_mean_coef2**2 * tables.one_minus_alphas_cumprod + tables.posterior_variance
    torch.testing.assert_close(variance, 1 - tables.alphas_cumprod_prev, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("schedule", "num_timesteps"), CASES)
def test_every_table_is_finite_and_the_posterior_varies_less_than_the_step(schedule: str, num_timesteps: int) -> None:
    tables = tables_of(make_betas(schedule, num_timesteps=num_timesteps))
    for field in dataclasses.fields(tables):
        assert torch.isfinite(getattr(tables, field.name)).all(), field.name
    assert tables.posterior_variance[0] == 0
    assert (tables.posterior_variance <= tables.betas).all()
    assert (tables.posterior_log_variance_clipped[1:] <= tables.log_betas[1:]).all()


def test_linear_has_the_papers_ends_and_scales_with_the_number_of_timesteps() -> None:
    betas = make_betas("linear", num_timesteps=1000)
    assert (betas[0], betas[-1]) == pytest.approx((1e-4, 0.02))
    assert make_betas("linear", num_timesteps=4000).sum() == pytest.approx(betas.sum(), rel=1e-9)


def test_cosine_follows_its_cosine_until_its_betas_are_capped() -> None:
    betas = make_betas("cosine", num_timesteps=1000)
    assert betas.max() == 0.999
    kept = tables_of(betas).alphas_cumprod[:-1]
    u = torch.arange(1, 1000, dtype=torch.float64) / 1000
    wanted = torch.cos((u + 0.008) / 1.008 * torch.pi / 2) ** 2 / torch.cos(torch.tensor(0.008 / 1.008 * torch.pi / 2)) ** 2
    torch.testing.assert_close(kept, wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("num_timesteps", [1, 2, 8, 19, 20])
def test_linear_with_too_few_timesteps_is_refused_with_the_way_out(num_timesteps: int) -> None:
    with pytest.raises(SpecError, match=rf"diffusion\.timesteps.*\(got {num_timesteps}\).*") as refused:
        check_schedule("linear", num_timesteps=num_timesteps)
    assert "at least" in str(refused.value)


def test_one_timestep_none_and_an_unknown_schedule_are_refused() -> None:
    for schedule in ("linear", "cosine"):
        for num_timesteps in (1, 0, -3):
            with pytest.raises(SpecError, match=rf"diffusion\.timesteps \(got {num_timesteps}\).*at least 2"):
                check_schedule(schedule, num_timesteps=num_timesteps)
    with pytest.raises(SpecError, match=r'diffusion\.schedule \(got sigmoid\).*"linear" or "cosine"'):
        check_schedule("sigmoid", num_timesteps=100)


def test_the_smallest_trainable_processes_are_accepted() -> None:
    check_schedule("linear", num_timesteps=21)
    check_schedule("cosine", num_timesteps=2)


def test_tables_keep_their_precision_on_a_device() -> None:
    moved = tables_of(make_betas("cosine", num_timesteps=5)).to("meta")
    for field in dataclasses.fields(moved):
        table = getattr(moved, field.name)
        assert (table.device.type, table.dtype, table.shape) == ("meta", torch.float64, (5,)), field.name
