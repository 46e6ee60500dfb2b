"""Laws of the noising process and of the model's step."""

import pytest
import torch
from diffusions import answering, gaussians, make, pictures
from torch import Tensor

from iddpm_ray.diffusion.gaussian import (
    GaussianDiffusion,
    MeanType,
    VarianceType,
    eps_from_xstart,
    lookup,
    p_log_variance,
    p_moments,
    p_variance,
    predict,
    q_moments,
    q_posterior,
    q_sample,
    xstart_from_eps,
    xstart_from_previous,
)

SHAPE = (6, 2, 5, 3)
T = torch.tensor([0, 1, 7, 20, 48, 49])


@pytest.fixture(params=["linear", "cosine"])
def diffusion(request: pytest.FixtureRequest) -> GaussianDiffusion:
    return make(request.param, 50)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)


def test_eps_and_x_start_determine_each_other(diffusion: GaussianDiffusion) -> None:
    x_start, eps = pictures(*SHAPE), gaussians(*SHAPE)
    x_t = q_sample(diffusion, x_start=x_start, t=T, noise=eps)
    close(xstart_from_eps(diffusion, x_t=x_t, t=T, eps=eps), x_start)
    close(eps_from_xstart(diffusion, x_t=x_t, t=T, x_start=x_start), eps)


def test_the_posterior_mean_determines_x_start(diffusion: GaussianDiffusion) -> None:
    x_start, x_t = pictures(*SHAPE), gaussians(*SHAPE)
    mean = q_posterior(diffusion, x_start=x_start, x_t=x_t, t=T).mean
    close(xstart_from_previous(diffusion, x_t=x_t, t=T, x_previous=mean), x_start)


def test_noised_pictures_have_the_moments_of_q(diffusion: GaussianDiffusion) -> None:
    x_start = pictures(1, 1, 1, 1).expand(4000, 1, 1, 1)
    t = torch.full((4000,), 20)
    drawn = q_sample(diffusion, x_start=x_start, t=t, noise=gaussians(4000, 1, 1, 1))
    q = q_moments(diffusion, x_start=x_start, t=t)
    assert q.variance.shape == (4000, 1, 1, 1)
    assert abs(drawn.mean() - q.mean[0]) < 5 * (q.variance[0] / 4000).sqrt()
    assert drawn.var() / q.variance[0] == pytest.approx(1, abs=0.15)
    close(q.log_variance.exp(), q.variance)


@pytest.mark.parametrize("mean", MeanType)
def test_a_network_that_is_right_steps_to_the_true_posterior(mean: MeanType) -> None:
    diffusion = make(mean=mean, variance=VarianceType.FIXED_SMALL)
    x_start, eps = pictures(*SHAPE), gaussians(*SHAPE)
    x_t = q_sample(diffusion, x_start=x_start, t=T, noise=eps)
    true = q_posterior(diffusion, x_start=x_start, x_t=x_t, t=T)
    output = {MeanType.EPSILON: eps, MeanType.START_X: x_start, MeanType.PREVIOUS_X: true.mean}[mean]
    for clip in (False, True):
        moments = p_moments(diffusion, output=output, x_t=x_t, t=T, clip=clip)
        close(moments.mean, true.mean)
        close(moments.pred_xstart, x_start)
        close(moments.log_variance, true.log_variance)


def test_a_learned_range_runs_from_the_posterior_variance_to_beta() -> None:
    diffusion = make(variance=VarianceType.LEARNED_RANGE)
    x_t = gaussians(*SHAPE)
    for v, table in ((-1.0, diffusion.tables.posterior_log_variance_clipped), (1.0, diffusion.tables.log_betas)):
        output = torch.cat([x_t, torch.full_like(x_t, v)], dim=1)
        log_variance = p_log_variance(diffusion, output=output, x_t=x_t, t=T)
        close(log_variance, table[T].view(-1, 1, 1, 1).expand(SHAPE))
        close(p_variance(diffusion, log_variance=log_variance, t=T), log_variance.exp())


def test_the_small_fixed_variance_is_zero_at_the_end_but_its_logarithm_is_not() -> None:
    diffusion = make(variance=VarianceType.FIXED_SMALL)
    x_t, t = gaussians(2, 1, 2, 2), torch.tensor([0, 1])
    log_variance = p_log_variance(diffusion, output=x_t, x_t=x_t, t=t)
    variance = p_variance(diffusion, log_variance=log_variance, t=t)
    assert variance[0] == 0
    assert torch.equal(log_variance[0], log_variance[1])
    large = make(variance=VarianceType.FIXED_LARGE)
    assert p_log_variance(large, output=x_t, x_t=x_t, t=t)[0] == log_variance[1]


def test_predictions_are_postprocessed_then_clamped() -> None:
    diffusion = make(mean=MeanType.START_X, variance=VarianceType.FIXED_SMALL)
    x_t = gaussians(*SHAPE)
    moments = p_moments(diffusion, output=3 * x_t, x_t=x_t, t=T, clip=True, denoised=lambda x: x + 0.5)
    assert torch.equal(moments.pred_xstart, (3 * x_t + 0.5).clamp(-1, 1))
    close(moments.mean, q_posterior(diffusion, x_start=moments.pred_xstart, x_t=x_t, t=T).mean)


def test_table_values_are_rounded_only_when_they_meet_a_tensor() -> None:
    diffusion = make("cosine", 50)
    table = diffusion.tables.sqrt_recipm1_alphas_cumprod
    for dtype in (torch.float32, torch.float64):
        found = lookup(table, T, like=torch.zeros(SHAPE, dtype=dtype))
        assert torch.equal(found.flatten(), table[T].to(dtype))
        assert found.shape == (6, 1, 1, 1)


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_the_network_may_have_any_channels_and_compute_in_bfloat16(channels: int) -> None:
    diffusion = make(variance=VarianceType.LEARNED_RANGE)
    x_t = gaussians(3, channels, 4, 7, dtype=torch.float32)
    told: list[Tensor] = []

    def network(x: Tensor, t: Tensor, *, y: Tensor) -> Tensor:
        told.append(t)
        return torch.cat([x, x], dim=1).bfloat16() * y.view(-1, 1, 1, 1).bfloat16()

    output = predict(diffusion, network, x_t=x_t, t=torch.tensor([0, 3, 49]), cond={"y": torch.tensor([1, 2, 3])})
    assert (output.dtype, output.shape) == (torch.float32, (3, 2 * channels, 4, 7))
    assert told[0].tolist() == [0.0, 60.0, 980.0]


def test_a_network_of_other_channels_is_caught() -> None:
    x_t = gaussians(2, 3, 4, 4)
    with pytest.raises(AssertionError, match=r"network gave \(2, 3, 4, 4\)"):
        predict(make(variance=VarianceType.LEARNED), answering(x_t), x_t=x_t, t=torch.tensor([0, 1]), cond={})


def test_channels_last_stays_channels_last(diffusion: GaussianDiffusion) -> None:
    x_start, noise = pictures(*SHAPE), gaussians(*SHAPE)
    laid_out = [x.contiguous(memory_format=torch.channels_last) for x in (x_start, noise)]
    x_t = q_sample(diffusion, x_start=laid_out[0], t=T, noise=laid_out[1])
    assert x_t.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x_t, q_sample(diffusion, x_start=x_start, t=T, noise=noise))
