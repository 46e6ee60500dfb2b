"""The stratified estimate is unbiased, its standard error is honest, and its draws depend on seed, row, stratum and pass alone."""

import math

import numpy as np
import pytest
import torch
from diffusions import make, pictures

from iddpm_ray.diffusion.gaussian import VarianceType
from iddpm_ray.evaluate.nll import Pictures, drawn_terms, noise_variance, seeded_noise, whole_bound
from iddpm_ray.evaluate.strata import draw_timesteps, estimate_sums, make_strata, mean_estimate


@pytest.mark.parametrize(("timesteps", "count"), [(1, 1), (2, 16), (7, 3), (16, 16), (1000, 1), (1000, 16), (1000, 64), (4000, 24)])
def test_strata_hold_every_timestep_once(timesteps: int, count: int) -> None:
    strata = make_strata(timesteps, count=count)
    assert strata.edges[0] == 0
    assert strata.edges[-1] == timesteps
    assert (strata.widths >= 1).all()
    assert len(strata) == min(count, timesteps)
    if count > 1:
        assert strata.edges[1] == 1, "the decoder's term is alone"


def test_draws_lie_in_their_strata_and_reach_all_of_them() -> None:
    strata = make_strata(60, count=8)
    drawn = draw_timesteps(strata, rows=torch.arange(400), seed=3, number=0)
    t = drawn.t.view(400, 8, 2).numpy()
    for stratum in range(8):
        inside = range(strata.edges[stratum], strata.edges[stratum + 1])
        assert set(t[:, stratum].ravel().tolist()) == set(inside)
    assert len(set(drawn.positions.tolist())) == len(drawn.positions)


def test_a_draw_knows_its_row_and_pass_and_not_its_company() -> None:
    strata = make_strata(60, count=8)
    together = draw_timesteps(strata, rows=torch.tensor([5, 9, 2]), seed=3, number=1)
    alone = draw_timesteps(strata, rows=torch.tensor([9]), seed=3, number=1)
    assert torch.equal(together.t.view(3, -1)[1], alone.t)
    assert torch.equal(together.positions.view(3, -1)[1], alone.positions)
    for other in (
        draw_timesteps(strata, rows=torch.tensor([9]), seed=3, number=2),
        draw_timesteps(strata, rows=torch.tensor([9]), seed=4, number=1),
    ):
        assert not torch.equal(other.t, alone.t)


def test_a_stratum_of_one_timestep_is_no_guess() -> None:
    strata = make_strata(5, count=5)
    terms = np.arange(5.0)[None, :, None].repeat(2, axis=2)
    sums = estimate_sums(strata, terms)
    assert sums.total.tolist() == [10.0]
    assert sums.variance.tolist() == [0.0]


def test_the_estimate_is_unbiased_and_its_error_is_what_it_says() -> None:
    """Over 400 seeds: the mean meets the sum over all timesteps, and the squared errors meet the estimated variances."""
    strata = make_strata(200, count=10)
    curve = 3.0 / (1 + np.arange(200)) + 0.1 * np.cos(np.arange(200) / 9)
    errors, variances = [], []
    for seed in range(400):
        t = draw_timesteps(strata, rows=torch.tensor([7]), seed=seed, number=0).t.view(1, 10, 2).numpy()
        sums = estimate_sums(strata, curve[t])
        errors.append(sums.total[0] - curve.sum())
        variances.append(sums.variance[0])
    spread = math.sqrt(np.mean(variances) / 400)
    assert abs(np.mean(errors)) < 4 * spread
    assert 0.8 < np.mean(np.square(errors)) / np.mean(variances) < 1.25


def test_the_standard_error_of_a_subset_counts_the_pictures_left_out() -> None:
    rng = np.random.default_rng(0)
    population = rng.normal(3.0, 0.5, size=60)
    squares, said, alone = [], [], []
    for _ in range(2000):
        seen = rng.choice(60, size=20, replace=False)
        noisy = population[seen] + rng.normal(0, 0.3, size=20)
        estimate = mean_estimate(noisy, np.full(20, 0.09), population=60)
        squares.append((estimate.mean - population.mean()) ** 2)
        said.append(estimate.standard_error**2)
        alone.append(estimate.unseen**2)
    assert np.mean(alone) == pytest.approx((1 - 20 / 60) * population.var(ddof=1) / 20, rel=0.1), "without what the draws add"
    assert np.mean(squares) == pytest.approx(np.mean(said), rel=0.1)
    whole = mean_estimate(population, np.zeros(60), population=60)
    assert whole.standard_error == whole.unseen == 0
    assert mean_estimate(population[:1], np.zeros(1), population=60).standard_error == math.inf


def network(x: torch.Tensor, t: torch.Tensor, **cond: torch.Tensor) -> torch.Tensor:
    """A formula that is wrong by an amount that depends on the timestep."""
    level = (t.float() / 1000).view(-1, 1, 1, 1).to(x.dtype)
    return torch.cat([0.9 * x * level.sqrt() + 0.05, torch.sin(3 * x)], dim=1)


def test_the_estimate_meets_the_whole_bound_at_a_small_part_of_its_forwards() -> None:
    diffusion = make("cosine", 500, variance=VarianceType.LEARNED_RANGE)
    those = Pictures(pictures(12, 1, 4, 4, dtype=torch.float32), torch.arange(100, 112), {})
    bound = whole_bound(diffusion, network, those, noise=seeded_noise(those, num_timesteps=500, seed=0))
    whole = mean_estimate(bound.total_bpd.double().numpy(), noise_variance(bound.vb.double().numpy()), population=12)
    strata = make_strata(500, count=16)
    scores = []
    for seed in range(20):
        drawn = drawn_terms(diffusion, network, those, strata=strata, seed=seed, batch=50)
        sums = estimate_sums(strata, drawn.vb)
        estimate = mean_estimate(sums.total + drawn.prior_bpd, sums.variance, population=12)
        scores.append((estimate.mean - whole.mean) / math.hypot(estimate.standard_error, whole.standard_error))
        assert estimate.standard_error < 0.1 * whole.mean
    assert max(map(abs, scores)) < 3.5
    assert 0.4 < np.std(scores) < 1.5


def test_the_order_and_size_of_pieces_change_nothing_but_rounding() -> None:
    diffusion, strata = make("cosine", 50), make_strata(50, count=6)
    x_start, rows = pictures(5, 1, 4, 4, dtype=torch.float32), torch.tensor([3, 0, 8, 1, 5])
    together = drawn_terms(diffusion, network, Pictures(x_start, rows, {}), strata=strata, seed=1, batch=7)
    order = torch.tensor([4, 2, 0, 1, 3])
    apart = drawn_terms(diffusion, network, Pictures(x_start[order], rows[order], {}), strata=strata, seed=1, batch=60)
    assert np.array_equal(together.t[order.numpy()], apart.t)
    np.testing.assert_allclose(together.vb[order.numpy()], apart.vb, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(together.prior_bpd[order.numpy()], apart.prior_bpd, rtol=1e-5)


def test_the_noise_variance_of_the_whole_bound_is_about_right() -> None:
    diffusion = make("cosine", 100)
    those = Pictures(pictures(2, 1, 6, 6, dtype=torch.float64), torch.arange(2), {})
    bounds = [whole_bound(diffusion, network, those, noise=seeded_noise(those, num_timesteps=100, seed=seed)) for seed in range(60)]
    totals = torch.stack([bound.total_bpd for bound in bounds]).var(dim=0).numpy()
    said = np.mean([noise_variance(bound.vb.numpy()) for bound in bounds], axis=0)
    assert (said > 0.6 * totals).all()
    assert (said < 1.6 * totals).all()
