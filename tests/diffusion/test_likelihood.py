"""Laws of the variational bound and of its parts."""

import math

import pytest
import torch
from diffusions import gaussians, knowing, make, pictures
from torch import Tensor

from iddpm_ray.diffusion.gaussian import MeanType, VarianceType, p_moments, q_sample
from iddpm_ray.diffusion.likelihood import (
    approximate_normal_cdf,
    bits_per_dim,
    discretized_log_likelihood,
    mean_over_pixels,
    normal_kl,
    prior_bpd,
    vb_term,
)


def test_kl_is_that_of_torch_and_zero_between_equals() -> None:
    mean1, mean2, std1, std2 = gaussians(9), gaussians(9, seed=2), gaussians(9, seed=3).exp(), gaussians(9, seed=4).exp()
    normal = torch.distributions.Normal
    wanted = torch.distributions.kl_divergence(normal(mean1, std1), normal(mean2, std2))
    ours = normal_kl(mean1=mean1, log_variance1=2 * std1.log(), mean2=mean2, log_variance2=2 * std2.log())
    torch.testing.assert_close(ours, wanted)
    same = normal_kl(mean1=mean1, log_variance1=std1.log(), mean2=mean1, log_variance2=std1.log())
    assert same.abs().max() < 1e-15


def test_kl_broadcasts() -> None:
    one = torch.zeros(2, 1, 1, 1)
    assert normal_kl(mean1=torch.ones(2, 3, 4, 5), log_variance1=one, mean2=one, log_variance2=one).shape == (2, 3, 4, 5)


def test_the_cdf_is_the_normal_one_to_two_ten_thousandths() -> None:
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    true = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    assert (approximate_normal_cdf(x) - true).abs().max() < 2e-4


@pytest.mark.parametrize("log_scale", [-5.0, -2.0, 0.5])
def test_the_bins_of_a_pixel_hold_all_probability(log_scale: float) -> None:
    levels = torch.arange(256, dtype=torch.float64) / 127.5 - 1
    means = torch.tensor([[-1.3], [0.1234], [0.99]], dtype=torch.float64)
    scale = torch.tensor(log_scale, dtype=torch.float64)
    total = discretized_log_likelihood(levels, mean=means, log_scale=scale).exp().sum(dim=1)
    torch.testing.assert_close(total, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-9)


def test_an_impossible_pixel_has_a_finite_likelihood_and_gradient() -> None:
    mean = torch.tensor([0.9], requires_grad=True)
    likelihood = discretized_log_likelihood(torch.tensor([-0.5]), mean=mean, log_scale=torch.tensor(-9.0))
    likelihood.sum().backward()
    assert likelihood.item() == pytest.approx(math.log(1e-12))
    assert mean.grad is not None
    assert torch.isfinite(mean.grad).all()


@pytest.mark.parametrize(("schedule", "most"), [("linear", 2e-4), ("cosine", 1e-6)])
def test_nothing_of_the_picture_is_left_at_the_end(schedule: str, most: float) -> None:
    prior = prior_bpd(make(schedule, 1000), x_start=pictures(4, 1, 6, 3))
    assert prior.shape == (4,)
    assert ((prior >= 0) & (prior < most)).all()


def test_mean_over_pixels_weighs_all_alike() -> None:
    x = gaussians(3, 2, 5, 4)
    torch.testing.assert_close(mean_over_pixels(x), x.reshape(3, -1).mean(dim=1))
    torch.testing.assert_close(mean_over_pixels(x.contiguous(memory_format=torch.channels_last)), x.reshape(3, -1).mean(dim=1))


def test_a_step_that_is_the_posterior_costs_nothing_but_the_decoder() -> None:
    diffusion = make(mean=MeanType.START_X, variance=VarianceType.FIXED_SMALL)
    x_start, t = pictures(4, 2, 3, 5), torch.tensor([0, 1, 25, 49])
    x_t = q_sample(diffusion, x_start=x_start, t=t, noise=gaussians(4, 2, 3, 5))
    moments = p_moments(diffusion, output=x_start, x_t=x_t, t=t, clip=False)
    terms = vb_term(diffusion, moments=moments, x_start=x_start, x_t=x_t, t=t)
    scale = 0.5 * diffusion.tables.posterior_log_variance_clipped[0]
    decoder = -discretized_log_likelihood(x_start[:1], mean=x_start[:1], log_scale=scale).mean() / math.log(2)
    torch.testing.assert_close(terms[0], decoder)
    assert terms[1:].abs().max() < 1e-12


def test_the_bound_goes_from_the_noisiest_timestep_down_and_adds_up() -> None:
    diffusion = make("cosine", 60, "6", rescale=False, variance=VarianceType.FIXED_LARGE)
    x_start, told, asked = pictures(3, 1, 4, 6), [], []
    knows = knowing(diffusion, x_start)

    def network(x: Tensor, t: Tensor, **cond: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert cond["y"].tolist() == [1, 2, 3]
        told.append(t.tolist())
        return knows(x, t)

    def noise(done: int) -> Tensor:
        asked.append(done)
        return gaussians(3, 1, 4, 6, seed=done)

    bound = bits_per_dim(diffusion, network, x_start=x_start, noise=noise, cond={"y": torch.tensor([1, 2, 3])})
    assert told == [[int(k)] * 3 for k in reversed(diffusion.timestep_map)]
    assert asked == list(range(6))
    assert bound.vb.shape == bound.mse.shape == bound.xstart_mse.shape == (3, 6)
    torch.testing.assert_close(bound.total_bpd, bound.vb.sum(dim=1) + bound.prior_bpd)
    torch.testing.assert_close(bound.prior_bpd, prior_bpd(diffusion, x_start=x_start))
    assert bound.xstart_mse.max() < 1e-12
    assert bound.mse.max() < 1e-6
    assert torch.is_grad_enabled()


def test_the_bound_of_a_one_step_process_is_finite() -> None:
    diffusion = make("linear", 1000, "1", variance=VarianceType.FIXED_SMALL, rescale=False)
    x_start = pictures(2, 3, 4, 4, dtype=torch.float32)
    noise = gaussians(2, 3, 4, 4, dtype=torch.float32)
    bound = bits_per_dim(diffusion, knowing(diffusion, x_start), x_start=x_start, noise=lambda done: noise, cond={})
    assert torch.isfinite(bound.total_bpd).all()
    assert bound.vb.shape == (2, 1)


def test_a_better_network_needs_fewer_bits() -> None:
    diffusion = make("cosine", 60, "6", rescale=False, variance=VarianceType.FIXED_SMALL)
    x_start = pictures(3, 1, 4, 6)
    right = knowing(diffusion, x_start)
    bounds = [
        bits_per_dim(
            diffusion,
            lambda x, t, error=error: right(x, t) + error,
            x_start=x_start,
            noise=lambda done: gaussians(3, 1, 4, 6, seed=done),
            cond={},
        ).total_bpd
        for error in (0.0, 0.01, 0.1)
    ]
    assert (bounds[0] < bounds[1]).all()
    assert (bounds[1] < bounds[2]).all()
