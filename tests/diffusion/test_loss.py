"""Laws of the four losses."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from diffusions import answering, gaussians, make, pictures
from torch import Tensor

from iddpm_ray.diffusion import loss as loss_module
from iddpm_ray.diffusion.gaussian import GaussianDiffusion, LossType, MeanType, VarianceType, q_posterior, q_sample
from iddpm_ray.diffusion.loss import LossTerms, training_losses

SHAPE = (5, 2, 4, 6)
T = torch.tensor([0, 1, 10, 30, 49])
ALL = [(mean, variance, loss) for mean in MeanType for variance in VarianceType for loss in LossType]


def losses(diffusion: GaussianDiffusion, output: Tensor, *, dtype: torch.dtype = torch.float64, t: Tensor = T) -> LossTerms:
    x_start, noise = pictures(*SHAPE, dtype=dtype), gaussians(*SHAPE, dtype=dtype)
    return training_losses(diffusion, answering(output), x_start=x_start, t=t, noise=noise, cond={})


def output_of(diffusion: GaussianDiffusion, dtype: torch.dtype = torch.float64) -> Tensor:
    channels = SHAPE[1] * (2 if diffusion.variance_type.learned else 1)
    return 0.5 * gaussians(SHAPE[0], channels, *SHAPE[2:], seed=3, dtype=dtype)


@pytest.mark.parametrize("mean", MeanType)
def test_a_network_that_is_right_has_no_mean_squared_error(mean: MeanType) -> None:
    diffusion = make(mean=mean, variance=VarianceType.FIXED_LARGE)
    x_start, noise = pictures(*SHAPE), gaussians(*SHAPE)
    x_t = q_sample(diffusion, x_start=x_start, t=T, noise=noise)
    posterior = q_posterior(diffusion, x_start=x_start, x_t=x_t, t=T).mean
    right = {MeanType.EPSILON: noise, MeanType.START_X: x_start, MeanType.PREVIOUS_X: posterior}[mean]
    terms = losses(diffusion, right)
    assert terms.mse is not None
    assert terms.mse.max() < 1e-20
    assert losses(diffusion, right + 0.1).loss.tolist() == pytest.approx([0.01] * 5)


@pytest.mark.parametrize(("mean", "variance", "loss"), ALL)
def test_terms_are_per_sample_float32_and_add_up(mean: MeanType, variance: VarianceType, loss: LossType) -> None:
    diffusion = make(mean=mean, variance=variance, loss=loss)
    terms = losses(diffusion, output_of(diffusion, torch.float32), dtype=torch.float32)
    kl = loss in (LossType.KL, LossType.RESCALED_KL)
    assert (terms.mse is None) == kl
    assert (terms.vb is None) == (kl or not variance.learned)
    parts = [part for part in (terms.mse, terms.vb) if part is not None]
    for term in (terms.loss, *parts):
        assert (term.shape, term.dtype) == ((5,), torch.float32)
        assert torch.isfinite(term).all()
    if parts:
        torch.testing.assert_close(terms.loss, sum(parts, torch.zeros(5)))


@pytest.mark.parametrize("variance", [VarianceType.LEARNED, VarianceType.LEARNED_RANGE])
def test_rescaling_multiplies_the_bound(variance: VarianceType) -> None:
    diffusions = {loss: make("cosine", 200, "50", variance=variance, loss=loss) for loss in LossType}
    terms = {loss: losses(diffusion, output_of(diffusion)) for loss, diffusion in diffusions.items()}
    bound, hybrid, simple = terms[LossType.KL].loss, terms[LossType.RESCALED_MSE].vb, terms[LossType.MSE].vb
    torch.testing.assert_close(terms[LossType.RESCALED_KL].loss, 50 * bound)
    assert hybrid is not None
    assert simple is not None
    torch.testing.assert_close(simple, bound)
    torch.testing.assert_close(hybrid, bound * 50 / 1000)


@pytest.mark.parametrize("loss", [LossType.MSE, LossType.RESCALED_MSE])
def test_the_bound_trains_the_variance_alone(loss: LossType) -> None:
    learned, fixed = make(loss=loss), make(loss=loss, variance=VarianceType.FIXED_LARGE)
    output = output_of(learned).requires_grad_()
    losses(learned, output).loss.sum().backward()
    mean_alone = output.detach()[:, : SHAPE[1]].clone().requires_grad_()
    losses(fixed, mean_alone).loss.sum().backward()
    assert output.grad is not None
    assert mean_alone.grad is not None
    assert torch.equal(output.grad[:, : SHAPE[1]], mean_alone.grad)
    assert (output.grad[:, SHAPE[1] :] != 0).any(dim=(1, 2, 3)).all()


def test_the_kl_loss_trains_the_mean_too() -> None:
    diffusion = make(loss=LossType.KL)
    output = output_of(diffusion).requires_grad_()
    losses(diffusion, output).loss.sum().backward()
    assert output.grad is not None
    assert (output.grad[:, : SHAPE[1]] != 0).any(dim=(1, 2, 3)).all()


@pytest.mark.parametrize(("mean", "variance", "loss"), ALL)
def test_a_sample_does_not_see_its_batch(mean: MeanType, variance: VarianceType, loss: LossType) -> None:
    diffusion = make(mean=mean, variance=variance, loss=loss)
    whole = losses(diffusion, output_of(diffusion)).loss
    x_start, noise, output = pictures(*SHAPE), gaussians(*SHAPE), output_of(diffusion)
    alone = [
        training_losses(
            diffusion, answering(output[i : i + 1]), x_start=x_start[i : i + 1], t=T[i : i + 1], noise=noise[i : i + 1], cond={}
        ).loss
        for i in range(5)
    ]
    torch.testing.assert_close(whole, torch.cat(alone), rtol=1e-12, atol=1e-12)


def test_a_bfloat16_network_is_judged_in_float32() -> None:
    diffusion = make()
    half = output_of(diffusion).bfloat16()
    terms = losses(diffusion, half, dtype=torch.float32)
    assert terms.loss.dtype == torch.float32
    assert torch.equal(terms.loss, losses(diffusion, half.float(), dtype=torch.float32).loss)


def test_bfloat16_pictures_are_noised_in_float32() -> None:
    seen: list[Tensor] = []
    training_losses(
        make(variance=VarianceType.FIXED_LARGE),
        lambda x, t: (seen.append(x), x)[1],
        x_start=pictures(*SHAPE, dtype=torch.bfloat16),
        t=T,
        noise=gaussians(*SHAPE, dtype=torch.bfloat16),
        cond={},
    )
    assert seen[0].dtype == torch.float32


def test_channels_last_changes_nothing() -> None:
    diffusion = make()
    x_start, noise, output = pictures(*SHAPE), gaussians(*SHAPE), output_of(diffusion)
    plain = training_losses(diffusion, answering(output), x_start=x_start, t=T, noise=noise, cond={})
    laid = [x.contiguous(memory_format=torch.channels_last) for x in (x_start, noise, output)]
    last = training_losses(diffusion, answering(laid[2]), x_start=laid[0], t=T, noise=laid[1], cond={})
    torch.testing.assert_close(last.loss, plain.loss, rtol=1e-12, atol=1e-12)


def test_conditions_reach_the_network_by_name() -> None:
    given: dict[str, Any] = {}

    def network(x: Tensor, t: Tensor, **cond: Tensor) -> Tensor:
        given.update(cond)
        return x

    cond = {"y": torch.arange(5), "low_res": pictures(5, 2, 2, 3)}
    diffusion = make(variance=VarianceType.FIXED_SMALL)
    training_losses(diffusion, network, x_start=pictures(*SHAPE), t=T, noise=gaussians(*SHAPE), cond=cond)
    assert given == cond


@pytest.mark.parametrize("mean", MeanType)
def test_only_the_target_in_use_is_computed(mean: MeanType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(loss_module, "q_posterior", lambda *args, **kw: (asked.append("posterior"), q_posterior(*args, **kw))[1])
    diffusion = make(mean=mean, variance=VarianceType.FIXED_LARGE)
    losses(diffusion, output_of(diffusion))
    assert asked == (["posterior"] if mean is MeanType.PREVIOUS_X else [])


@contextmanager
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything by which the host would wait for a device raises."""

    def refuse(*args: object, **kw: object) -> None:
        raise AssertionError("the host waits for the device")

    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero"):
            patch.setattr(Tensor, name, refuse)
        yield


@pytest.mark.parametrize(("mean", "variance", "loss"), ALL)
def test_nothing_waits_for_the_device(mean: MeanType, variance: VarianceType, loss: LossType, monkeypatch: pytest.MonkeyPatch) -> None:
    diffusion = make("cosine", 100, "50", mean=mean, variance=variance, loss=loss)
    output = output_of(diffusion).requires_grad_()
    with no_waiting(monkeypatch):
        losses(diffusion, output).loss.sum().backward()
    meta = training_losses(
        diffusion.to("meta"),
        answering(output.to("meta")),
        x_start=torch.zeros(SHAPE, device="meta"),
        t=T.to("meta"),
        noise=torch.zeros(SHAPE, device="meta"),
        cond={},
    )
    assert meta.loss.device.type == "meta", "a tensor without values suffices, so no value was looked at, and no table was elsewhere"
