"""Laws of the update: rate as a function of samples, clipping, skipping, loss scale."""

import math

import pytest
import torch

from iddpm_ray.train.optim import LearningRate, LossScale, apply_update, make_adamw, moments


def layer(seed: int = 0) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(4, 3)


def give_gradients(module: torch.nn.Module, *, factor: float = 1.0) -> None:
    for number, parameter in enumerate(module.parameters()):
        parameter.grad = factor * torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape) * (number + 1)


def test_linear_rate_falls_to_zero_at_the_horizon_and_stays() -> None:
    rate = LearningRate(1.0, "linear", anneal=100)
    assert rate.at(before=0, after=10) == 1.0
    assert rate.at(before=50, after=60) == 0.5
    assert rate.at(before=100, after=110) == 0.0
    assert rate.at(before=900, after=910) == 0.0


def test_cosine_rate_is_half_way_at_half_the_horizon() -> None:
    rate = LearningRate(1.0, "cosine", anneal=100)
    assert rate.at(before=0, after=1) == 1.0
    assert math.isclose(rate.at(before=50, after=51), 0.5)
    assert rate.at(before=100, after=101) == 0.0


def test_warm_up_counts_the_step_itself_so_that_no_step_is_idle() -> None:
    rate = LearningRate(1.0, "constant", warmup=100)
    assert rate.at(before=0, after=10) == 0.1
    assert rate.at(before=90, after=100) == 1.0
    assert rate.at(before=500, after=510) == 1.0


def test_update_matches_unfused_adamw() -> None:
    ours, plain = layer(), layer()
    optimizer = make_adamw(list(ours.parameters()), betas=(0.9, 0.99), eps=1e-8)
    peer = torch.optim.AdamW(plain.parameters(), lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, fused=False)
    for _ in range(5):
        give_gradients(ours)
        give_gradients(plain)
        apply_update(optimizer, lr=0.01, weight_decay=0.1)
        peer.step()
    torch.testing.assert_close(ours.weight, plain.weight, rtol=1e-6, atol=1e-7)


def test_clipping_scales_the_whole_gradient_to_the_norm() -> None:
    module = layer()
    optimizer = make_adamw(list(module.parameters()), betas=(0.0, 0.0), eps=1e-8)
    give_gradients(module)
    before = torch.cat([p.grad.flatten() for p in module.parameters()])
    update = apply_update(optimizer, lr=0.0, weight_decay=0.0, clip_norm=0.5)
    after = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(update.grad_norm, before.norm())
    torch.testing.assert_close(after.norm(), torch.tensor(0.5), rtol=1e-5, atol=0)
    torch.testing.assert_close(after / after.norm(), before / before.norm())


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_non_finite_gradient_changes_no_weight_and_no_moment(poison: float, clip_norm: float | None, scaled: bool) -> None:
    module = layer()
    optimizer = make_adamw(list(module.parameters()), betas=(0.9, 0.999), eps=1e-8)
    scale = LossScale.begin(enabled=scaled, growth=0.001, device=torch.device("cpu"))
    give_gradients(module)
    apply_update(optimizer, lr=0.1, weight_decay=0.1, clip_norm=clip_norm, scale=scale)
    before = {name: tensor.clone() for name, tensor in moments(optimizer, ["weight", "bias"]).items()} | {
        "w": module.weight.detach().clone()
    }
    give_gradients(module)
    assert module.weight.grad is not None
    module.weight.grad[1, 2] = poison
    update = apply_update(optimizer, lr=0.1, weight_decay=0.1, clip_norm=clip_norm, scale=scale)
    after = moments(optimizer, ["weight", "bias"]) | {"w": module.weight.detach()}
    assert update.skipped == 1
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name


def test_the_loss_scale_creeps_up_and_drops_by_half() -> None:
    scale = LossScale.begin(enabled=True, growth=0.25, device=torch.device("cpu"))
    scale.update(torch.tensor(0.0))
    assert scale.log2 == 20.25
    scale.update(torch.tensor(1.0))
    assert scale.log2 == 19.25
    assert LossScale.begin(enabled=False, growth=0.25, device=torch.device("cpu")).factor() is None


def test_the_loss_scale_grows_by_exactly_what_the_spec_says() -> None:
    scale, log2 = LossScale.begin(enabled=True, growth=0.001, device=torch.device("cpu")), 20.0
    for _ in range(1000):
        scale.update(torch.tensor(0.0))
        log2 += 0.001
    assert scale.log2 is not None
    assert scale.log2.dtype == torch.float64
    assert scale.log2.item() == log2


def test_the_loss_scale_cancels_out_of_the_update() -> None:
    plain, scaled = layer(), layer()
    give_gradients(plain)
    give_gradients(scaled, factor=2.0**20)
    scale = LossScale.begin(enabled=True, growth=0.001, device=torch.device("cpu"))
    one = apply_update(make_adamw(list(plain.parameters()), betas=(0.9, 0.999), eps=1e-8), lr=0.1, weight_decay=0.0, clip_norm=0.3)
    two = apply_update(
        make_adamw(list(scaled.parameters()), betas=(0.9, 0.999), eps=1e-8), lr=0.1, weight_decay=0.0, clip_norm=0.3, scale=scale
    )
    torch.testing.assert_close(one.grad_norm, two.grad_norm)
    torch.testing.assert_close(plain.weight, scaled.weight)
