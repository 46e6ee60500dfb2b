"""Laws of one step: how a batch is cut changes nothing, nothing waits for the device, a bad step is skipped by all."""

from typing import Any

import numpy as np
import pytest
import torch
from no_sync import HostWaited, NoHostSync
from ranks import run_ranks

from iddpm_ray.data.order import slice_of
from iddpm_ray.diffusion.gaussian import LossType, MeanType, VarianceType
from iddpm_ray.diffusion.resample import LossSecondMomentResampler
from iddpm_ray.diffusion.respace import make_diffusion
from iddpm_ray.models.unet import UNet
from iddpm_ray.models.weights import init_weights
from iddpm_ray.parallel.gather import SampleGather
from iddpm_ray.parallel.replicas import replicate, settle
from iddpm_ray.stats import Statistics, report0, use
from iddpm_ray.stats.loss_terms import report_loss_terms
from iddpm_ray.train.ema import Ema
from iddpm_ray.train.inputs import Augmentation, make_inputs
from iddpm_ray.train.loop import Words, late_read
from iddpm_ray.train.optim import LossScale, make_adamw
from iddpm_ray.train.rehearsal import Rehearsal
from iddpm_ray.train.state import Health, TrainState
from iddpm_ray.train.step import StepOutcome, StepSettings, step

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)
T = 20


def make_state(
    *, rank: int = 0, world_size: int = 1, batch: int = 7, fp16: bool = False, dropout: float = 0.0, device: torch.device = CPU
) -> TrainState:
    torch.set_num_threads(1)
    model = UNet(
        image_channels=1,
        model_channels=32,
        out_channels=2,
        num_res_blocks=1,
        attention_factors=(1,),
        channel_mult=(1,),
        num_heads=2,
        num_classes=3,
        null_class=True,
        dropout=dropout,
    )
    init_weights(model, seed=1)
    model.to(device)
    diffusion = make_diffusion(
        schedule="cosine",
        num_timesteps=T,
        sections=None,
        mean_type=MeanType.EPSILON,
        variance_type=VarianceType.LEARNED_RANGE,
        loss_type=LossType.RESCALED_MSE,
        rescale_timesteps=True,
    ).to(device)
    replica = replicate(model, device=device)
    augmentation = Augmentation(class_cond=True, null_class=3, class_dropout=0.1, flip=True)
    settle(replica, lambda: Rehearsal(diffusion, SHAPE, augmentation, None, device).backward(replica, samples=1))
    parameters = list(model.parameters())
    counts = [
        slice_of(batch, rank=r, world_size=world_size).stop - slice_of(batch, rank=r, world_size=world_size).start
        for r in range(world_size)
    ]
    return TrainState(
        model=model,
        replica=replica,
        diffusion=diffusion,
        optimizer=make_adamw(parameters, betas=(0.9, 0.999), eps=1e-8),
        ema=Ema.begin(parameters, [0.9]),
        resampler=LossSecondMomentResampler(T, history=1, uniform_prob=0.01, device=device),
        scale=LossScale.begin(enabled=fp16, growth=0.001, device=device),
        health=Health.begin(T, device=device),
        gather=SampleGather(counts, rank=rank, num_values=3, device=device),
        names=[name for name, _ in model.named_parameters()],
    )


def inputs_of(state: TrainState, *, own: slice, batch: int = 7) -> Any:
    chosen = np.random.default_rng(state.step)
    pixels = torch.from_numpy(chosen.integers(0, 256, (batch, *SHAPE), dtype=np.uint8))[own]
    labels = torch.from_numpy(chosen.integers(0, 3, batch))[own]
    return make_inputs(
        pixels,
        labels,
        seed=5,
        first_position=state.step * batch,
        global_batch=batch,
        own=own,
        resampler=state.resampler,
        augmentation=Augmentation(class_cond=True, null_class=3, class_dropout=0.1, flip=True),
        device=CPU,
    )


def run_steps(count: int, *, microbatch: int, rank: int = 0, world_size: int = 1, batch: int = 7, **kwargs: Any) -> list[StepOutcome]:
    state = make_state(rank=rank, world_size=world_size, batch=batch, **kwargs)
    settings = StepSettings(microbatch=microbatch, rank=rank, world_size=world_size)
    own = slice_of(batch, rank=rank, world_size=world_size)
    return [step(state, inputs_of(state, own=own, batch=batch), lr=1e-3, word=0, settings=settings) for _ in range(count)]


def losses_on_rank(count: int) -> tuple[list[list[float]], list[list[int]]]:
    import torch.distributed as dist

    outcomes = run_steps(count, microbatch=2, rank=dist.get_rank(), world_size=dist.get_world_size())
    return [outcome.loss.tolist() for outcome in outcomes], [outcome.t.tolist() for outcome in outcomes]


@pytest.mark.parametrize("microbatch", [1, 3, 5])
def test_microbatches_change_no_loss_beyond_rounding(microbatch: int) -> None:
    whole, cut = run_steps(4, microbatch=7), run_steps(4, microbatch=microbatch)
    for one, other in zip(whole, cut, strict=True):
        torch.testing.assert_close(one.loss, other.loss, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.update.grad_norm, other.update.grad_norm, rtol=1e-4, atol=1e-6)


def test_every_world_size_sees_the_same_timesteps_and_losses() -> None:
    alone = run_steps(6, microbatch=7)
    for world_size in (2, 3):
        for losses, timesteps in run_ranks(losses_on_rank, world_size, 6):
            assert timesteps == [outcome.t.tolist() for outcome in alone]
            np.testing.assert_allclose(losses, torch.stack([outcome.loss for outcome in alone]).numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("bad", [False, True])
def test_nothing_in_a_step_waits_for_the_device(fp16: bool, clip_norm: float | None, bad: bool) -> None:
    state = make_state(fp16=fp16, dropout=0.1)
    statistics = use(Statistics())
    if bad:
        with torch.no_grad():
            next(state.model.parameters()).fill_(float("nan"))
    settings = StepSettings(microbatch=3, clip_norm=clip_norm, dropout=True, autocast=torch.bfloat16 if fp16 else None)
    for _ in range(3):
        with NoHostSync():
            outcome = step(state, inputs_of_device(state), lr=1e-3, word=0, settings=settings)
            report_loss_terms(outcome.t, loss=outcome.loss, weights=outcome.weights, mse=outcome.mse, vb=outcome.vb, num_timesteps=T)
            report0("grad_norm", outcome.update.grad_norm)
    assert bool(outcome.update.skipped) == bad
    assert int(state.health.streak) == (3 if bad else 0)
    assert statistics.rank == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
def test_nothing_in_a_step_waits_for_the_gpu() -> None:
    """CUDA itself refuses whatever would wait."""
    state = make_state(dropout=0.1, device=torch.device("cuda"))
    settings = StepSettings(microbatch=3, clip_norm=0.5, dropout=True, autocast=torch.bfloat16)
    step(state, inputs_of_device(state), lr=1e-3, word=0, settings=settings)  # kernels are loaded and buffers made
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(3):
            step(state, inputs_of_device(state), lr=1e-3, word=0, settings=settings)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def inputs_of_device(state: TrainState) -> Any:
    """Inputs out of tensors that are there already, as a loader leaves them."""
    return make_inputs(
        torch.full((7, *SHAPE), 100, dtype=torch.uint8),
        torch.zeros(7, dtype=torch.int64),
        seed=5,
        first_position=state.step * 7,
        global_batch=7,
        own=slice(0, 7),
        resampler=state.resampler,
        augmentation=Augmentation(class_cond=True, null_class=3, class_dropout=0.1, flip=True),
        device=next(state.model.parameters()).device,
    )


def test_the_detector_of_waiting_does_detect() -> None:
    state = make_state()
    outcome = step(state, inputs_of_device(state), lr=1e-3, word=3, settings=StepSettings(microbatch=7))
    with NoHostSync(), pytest.raises(HostWaited):
        late_read(Words.sent(outcome.words))
    assert late_read(Words.sent(outcome.words)) == 3


def test_a_non_finite_loss_skips_the_step_and_never_enters_the_history() -> None:
    state = make_state()
    inputs = inputs_of_device(state)
    inputs.x_start[2] = float("nan")
    before = [parameter.detach().clone() for parameter in state.model.parameters()]
    outcome = step(state, inputs, lr=1e-3, word=0, settings=StepSettings(microbatch=7))
    assert outcome.update.skipped == 1
    assert all(torch.equal(one, two) for one, two in zip(before, state.model.parameters(), strict=True))
    assert torch.isfinite(state.resampler.state_dict()["history"]).all()
    assert int(state.health.nonfinite[inputs.t[2]]) == 1
    assert int(state.health.nonfinite.sum()) == 1


def digests_over_many_steps(steps: int) -> list[int]:
    """The history's digest after every step, with NaN losses planted and slices of unequal length."""
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    state = make_state(rank=rank, world_size=world_size)
    own = slice_of(7, rank=rank, world_size=world_size)
    settings = StepSettings(microbatch=2, rank=rank, world_size=world_size)
    digests = []
    for number in range(steps):
        inputs = inputs_of(state, own=own)
        if number % 5 == 4 and rank == number % world_size:
            inputs.x_start[0] = float("nan")
        step(state, inputs, lr=1e-3, word=0, settings=settings)
        digests.append(int(state.resampler.digest()))
    assert bool(state.resampler.warmed_up())  # pyright: ignore[reportAttributeAccessIssue] the kind made above
    return digests


@pytest.mark.parametrize("steps", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_histories_stay_equal_on_all_ranks_at_every_step(steps: int) -> None:
    first, *others = run_ranks(digests_over_many_steps, 3, steps, timeout_s=200)
    assert len(set(first)) == steps
    assert all(digests == first for digests in others)
