"""Laws of DPM-Solver++ 2M: exact for a known picture, of second order, and DDIM where it looks back at nothing."""

import math

import pytest
import torch
from diffusions import gaussians, knowing, make, pictures
from torch import Tensor

from iddpm_ray.diffusion.gaussian import GaussianDiffusion, VarianceType
from iddpm_ray.diffusion.multistep import dpmpp_step, dpmpp_steps
from iddpm_ray.diffusion.sample import ddim_step, ddim_steps

SHAPE = (3, 2, 4, 5)


class BestForGaussian:
    """The best eps for data that are N(0, std^2) in every pixel, given the original timestep."""

    def __init__(self, whole: GaussianDiffusion, std: float) -> None:
        kept = whole.tables.alphas_cumprod
        self.factor = (1 - kept).sqrt() / (kept * std**2 + 1 - kept)

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return self.factor[t].view(-1, 1, 1, 1) * x


def spaced(count: int | None, variance: VarianceType = VarianceType.FIXED_SMALL) -> GaussianDiffusion:
    return make("cosine", 1000, None if count is None else str(count), rescale=False, variance=variance)


def last(steps: object) -> Tensor:
    return list(steps)[-1].sample  # type: ignore[call-overload]


def test_a_network_that_knows_the_picture_draws_it() -> None:
    diffusion, x_start = spaced(6), pictures(*SHAPE)
    drawn = last(dpmpp_steps(diffusion, knowing(diffusion, x_start), start=gaussians(*SHAPE), cond={}))
    torch.testing.assert_close(drawn, x_start, rtol=0, atol=1e-6)


def test_the_first_step_is_ddims() -> None:
    diffusion, x_t = spaced(10), gaussians(*SHAPE)

    def network(x: Tensor, t: Tensor) -> Tensor:
        return 0.3 * x + 0.1

    for index in range(1, 10):
        one = dpmpp_step(diffusion, network, x_t=x_t, index=index, previous=None, cond={})
        other = ddim_step(diffusion, network, x_t=x_t, t=torch.full((3,), index), noise=None, cond={})
        torch.testing.assert_close(one.sample, other.sample, rtol=1e-9, atol=1e-9)


def test_it_is_of_second_order_or_better_where_ddim_is_of_the_first() -> None:
    """Between two fixed timesteps the exact solution for Gaussian data is known: x shrinks or grows as its standard deviation."""
    std, start = 0.4, gaussians(1, 1, 3, 3)
    whole = spaced(None)
    network = BestForGaussian(whole, std)
    kept = whole.tables.alphas_cumprod

    def deviation(index: int) -> float:
        return math.sqrt(float(kept[index]) * std**2 + 1 - float(kept[index]))

    def errors(stride: int) -> list[float]:
        """Of both methods, from timestep 800 to 160 in steps of `stride`."""
        from iddpm_ray.diffusion.respace import make_diffusion

        chosen = list(range(160, 801, stride))
        sections = [1 if index in chosen else 0 for index in range(1000)]
        diffusion = make_diffusion(
            schedule="cosine",
            num_timesteps=1000,
            sections=sections,
            mean_type=whole.mean_type,
            variance_type=whole.variance_type,
            loss_type=whole.loss_type,
            rescale_timesteps=False,
        )
        exact = start * deviation(160) / deviation(800)
        found = []
        for steps in (
            dpmpp_steps(diffusion, network, start=start, cond={}, clip=False),
            ddim_steps(diffusion, network, start=start, noise=lambda done: start, cond={}, clip=False),
        ):
            before_last = list(steps)[-2].sample  # at timestep 160
            found.append((before_last - exact).abs().max().item())
        return found

    coarse, fine = errors(16), errors(8)
    assert coarse[0] / fine[0] > 3.6, (coarse, fine)  # 4 would be the second order
    assert 1.9 < coarse[1] / fine[1] < 2.1, (coarse, fine)
    assert fine[0] < 0.01 * fine[1]


@pytest.mark.parametrize("variance", VarianceType)
def test_few_steps_end_finite_in_float32_whatever_the_variance(variance: VarianceType) -> None:
    def network(x: Tensor, t: Tensor) -> Tensor:
        return torch.cat([0.9 * x, x], dim=1) if variance.learned else 0.9 * x

    for count in (1, 2, 20):
        steps = list(dpmpp_steps(spaced(count, variance), network, start=gaussians(*SHAPE, dtype=torch.float32), cond={}))
        assert len(steps) == count
        assert steps[-1].sample.dtype == torch.float32
        assert steps[-1].sample.abs().max() <= 1  # the last step is the clamped prediction itself
        assert all(torch.isfinite(step.sample).all() for step in steps)
