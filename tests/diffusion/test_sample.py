"""Laws of drawing pictures."""

from collections.abc import Callable

import pytest
import torch
from diffusions import gaussians, knowing, make, pictures
from torch import Tensor

from iddpm_ray.diffusion.gaussian import GaussianDiffusion, VarianceType
from iddpm_ray.diffusion.sample import (
    ddim_reverse_sample,
    ddim_reverse_steps,
    ddim_sample,
    ddim_step,
    ddim_steps,
    ddpm_sample,
    ddpm_step,
    ddpm_steps,
    to_bytes,
    to_bytes_truncated,
)

SHAPE = (3, 2, 4, 5)


def small(variance: VarianceType = VarianceType.FIXED_SMALL) -> GaussianDiffusion:
    return make("cosine", 80, "8", rescale=False, variance=variance)


def noise_of(done: int) -> Tensor:
    return gaussians(*SHAPE, seed=100 + done)


def test_a_network_that_knows_the_picture_draws_it() -> None:
    x_start, start = pictures(*SHAPE), gaussians(*SHAPE)
    diffusion = small()
    network = knowing(diffusion, x_start)
    for drawn in (
        ddpm_sample(diffusion, network, start=start, noise=noise_of, cond={}),
        ddim_sample(diffusion, network, start=start, noise=noise_of, cond={}),
        ddim_sample(diffusion, network, start=start, noise=noise_of, cond={}, eta=1.0),
    ):
        torch.testing.assert_close(drawn, x_start, rtol=0, atol=1e-6)


def test_ddim_at_eta_one_is_ddpm_with_the_small_variance() -> None:
    diffusion = small()
    x_t, noise = gaussians(*SHAPE), noise_of(0)
    for index in range(diffusion.num_timesteps):
        t = torch.full((3,), index)

        def network(x: Tensor, t: Tensor) -> Tensor:
            return 0.3 * x + 0.1

        ancestral = ddpm_step(diffusion, network, x_t=x_t, t=t, noise=noise, cond={})
        implicit = ddim_step(diffusion, network, x_t=x_t, t=t, noise=noise, cond={}, eta=1.0)
        torch.testing.assert_close(implicit.sample, ancestral.sample, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(implicit.pred_xstart, ancestral.pred_xstart)


class GaussianNetwork:
    """The best eps for data that are N(0, std^2) in every pixel."""

    def __init__(self, diffusion: GaussianDiffusion, std: float) -> None:
        kept = diffusion.tables.alphas_cumprod
        self.factor = (1 - kept).sqrt() / (kept * std**2 + 1 - kept)

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return self.factor[t].view(-1, 1, 1, 1) * x


@pytest.mark.parametrize("method", [ddpm_sample, ddim_sample])
def test_the_best_network_for_gaussian_data_draws_their_distribution(method: Callable[..., Tensor]) -> None:
    diffusion = make("cosine", 200, rescale=False, variance=VarianceType.FIXED_SMALL)
    network = GaussianNetwork(diffusion, 0.3)
    start = gaussians(2000, 1, 1, 1)
    drawn = method(diffusion, network, start=start, noise=lambda done: gaussians(2000, 1, 1, 1, seed=50 + done), cond={}, clip=False)
    assert drawn.std().item() == pytest.approx(0.3, rel=0.08)
    assert abs(drawn.mean().item()) < 0.03


def test_ddim_backwards_finds_the_noise_that_ddim_draws_the_picture_from() -> None:
    diffusion = make("cosine", 1000, rescale=False, variance=VarianceType.FIXED_SMALL)
    network = GaussianNetwork(diffusion, 0.5)
    x_start = 0.5 * gaussians(*SHAPE)
    found = ddim_reverse_sample(diffusion, network, start=x_start, cond={}, clip=False)
    assert found.std().item() == pytest.approx(x_start.std().item() / 0.5, rel=0.05)
    again = ddim_sample(diffusion, network, start=found, noise=noise_of, cond={}, clip=False)
    torch.testing.assert_close(again, x_start, rtol=0.03, atol=0.01)


@pytest.mark.parametrize("eta", [0.9, 0.999, 1.0])
def test_ddim_near_eta_one_is_never_nan(eta: float) -> None:
    diffusion = make("cosine", 4000, "20", variance=VarianceType.FIXED_LARGE)
    start = gaussians(*SHAPE, dtype=torch.float32)
    for step in ddim_steps(diffusion, lambda x, t: 0.9 * x, start=start, noise=lambda done: noise_of(done).float(), cond={}, eta=eta):
        assert torch.isfinite(step.sample).all()


def test_noise_is_asked_for_by_the_number_of_steps_done_and_only_when_used() -> None:
    diffusion, start = small(), gaussians(*SHAPE)
    asked: list[int] = []

    def noise(done: int) -> Tensor:
        asked.append(done)
        return noise_of(done)

    def network(x: Tensor, t: Tensor) -> Tensor:
        return 0.1 * x

    ddpm_sample(diffusion, network, start=start, noise=noise, cond={})
    assert asked == list(range(7)), "the last step of 8 takes none"
    asked.clear()
    ddim_sample(diffusion, network, start=start, noise=noise, cond={}, eta=0.5)
    assert asked == list(range(7))
    asked.clear()
    ddim_sample(diffusion, network, start=start, noise=noise, cond={})
    assert asked == []


def test_the_last_step_takes_no_noise() -> None:
    diffusion, x_t, t = small(), gaussians(*SHAPE), torch.tensor([0, 0, 3])

    def network(x: Tensor, t: Tensor) -> Tensor:
        return 0.1 * x

    for step in (ddpm_step, ddim_step):
        extra = {"eta": 0.7} if step is ddim_step else {}
        one, other = (step(diffusion, network, x_t=x_t, t=t, noise=n, cond={}, **extra).sample for n in (noise_of(0), noise_of(1)))
        assert torch.equal(one[:2], other[:2])
        assert not torch.equal(one[2], other[2])


def test_steps_run_down_and_backwards_up_the_original_timesteps() -> None:
    diffusion, told = small(), []

    def network(x: Tensor, t: Tensor, **cond: Tensor) -> Tensor:
        told.append((t[0].item(), cond["y"].tolist()))
        return 0.1 * x

    cond = {"y": torch.tensor([4, 5, 6])}
    list(ddpm_steps(diffusion, network, start=gaussians(*SHAPE), noise=noise_of, cond=cond))
    timesteps = diffusion.timestep_map.tolist()
    assert told == [(t, [4, 5, 6]) for t in reversed(timesteps)]
    told.clear()
    list(ddim_reverse_steps(diffusion, network, start=gaussians(*SHAPE), cond=cond))
    assert told == [(t, [4, 5, 6]) for t in timesteps]


def test_a_loop_leaves_gradients_as_its_caller_has_them() -> None:
    diffusion, start = small(), gaussians(*SHAPE)
    weight = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)

    def network(x: Tensor, t: Tensor) -> Tensor:
        return weight * x

    for steps in (
        ddpm_steps(diffusion, network, start=start, noise=noise_of, cond={}),
        ddim_steps(diffusion, network, start=start, noise=noise_of, cond={}, eta=0.5),
        ddim_reverse_steps(diffusion, network, start=start, cond={}),
    ):
        for step in steps:
            assert torch.is_grad_enabled(), "between steps"
            assert not step.sample.requires_grad, "a chain keeps no graph"
        assert torch.is_grad_enabled()


def test_an_abandoned_loop_leaves_gradients_on() -> None:
    steps = ddpm_steps(small(), lambda x, t: 0.1 * x, start=gaussians(*SHAPE), noise=noise_of, cond={})
    next(steps)
    del steps
    assert torch.is_grad_enabled()


def test_a_single_step_can_be_differentiated() -> None:
    x_t = gaussians(*SHAPE).requires_grad_()
    t = torch.tensor([2, 3, 4])
    for step in (ddpm_step, ddim_step):
        sample = step(small(), lambda x, t: 0.1 * x, x_t=x_t, t=t, noise=noise_of(0), cond={}, clip=False).sample
        (gradient,) = torch.autograd.grad(sample.sum(), x_t)
        assert (gradient != 0).all()


def test_a_loop_is_its_steps() -> None:
    diffusion, start = small(VarianceType.LEARNED_RANGE), gaussians(*SHAPE, dtype=torch.float32)

    def network(x: Tensor, t: Tensor) -> Tensor:
        return torch.cat([0.2 * x, torch.sin(3 * x)], dim=1)

    x = start
    for done in range(8):
        t = torch.full((3,), 7 - done)
        x = ddpm_step(diffusion, network, x_t=x, t=t, noise=noise_of(done), cond={}).sample
    assert torch.equal(ddpm_sample(diffusion, network, start=start, noise=noise_of, cond={}), x)


@pytest.mark.parametrize("variance", VarianceType)
def test_a_bfloat16_network_is_sampled_in_float32(variance: VarianceType) -> None:
    diffusion = small(variance)

    def network(x: Tensor, t: Tensor) -> Tensor:
        output = 0.2 * x.bfloat16()
        return torch.cat([output, output], dim=1) if variance.learned else output

    start = gaussians(*SHAPE, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    for draw in (ddpm_sample, ddim_sample):
        drawn = draw(diffusion, network, start=start, noise=noise_of, cond={})
        assert drawn.dtype == torch.float32
        assert torch.isfinite(drawn).all()


def test_bytes_survive_the_way_there_and_back() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    floats = levels.float() / 127.5 - 1
    assert torch.equal(to_bytes(floats), levels)
    assert to_bytes(torch.tensor([-7.0, 7.0])).tolist() == [0, 255]


def test_truncated_bytes_come_back_lower_as_in_the_original() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    lower = levels.int() - to_bytes_truncated(levels.float() / 127.5 - 1).int()
    assert sorted(set(lower.tolist())) == [0, 1]
    assert lower.sum() == 63
    assert to_bytes_truncated(torch.tensor([-7.0, 7.0])).tolist() == [0, 255]
