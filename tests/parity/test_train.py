"""Whole training runs: twenty recorded steps through `train.step`, with the draws they had."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from golden import Golden, GoldenFile
from networks import build_recorded, fill_by_formula

from iddpm_ray import stats
from iddpm_ray.diffusion.gaussian import LossType, MeanType, VarianceType
from iddpm_ray.diffusion.resample import LossSecondMomentResampler, UniformResampler
from iddpm_ray.diffusion.respace import make_diffusion
from iddpm_ray.parallel.gather import SampleGather
from iddpm_ray.stats.loss_terms import report_loss_terms
from iddpm_ray.train.ema import Ema
from iddpm_ray.train.inputs import StepInputs
from iddpm_ray.train.optim import LearningRate, LossScale, make_adamw
from iddpm_ray.train.state import Health, TrainState
from iddpm_ray.train.step import StepOutcome, StepSettings, step

CPU = torch.device("cpu")


@dataclass
class Recorded:
    """What twenty steps left: a value a step, and the state at the end."""

    outcomes: list[StepOutcome]
    lrs: list[float]
    warmed: list[int]
    state: TrainState


def recorded_runs(golden: Golden) -> list[dict[str, Any]]:
    return golden.json("train.json") if golden.file("train.json").exists() else []


def replay(run: dict[str, Any], g: GoldenFile, *, dtype: torch.dtype) -> Recorded:
    """The recorded run through our own step; only the draws are given."""
    diffusion = make_diffusion(
        schedule=run["schedule"],
        num_timesteps=run["T"],
        sections=None if run["sections"] in (None, "", [run["T"]]) else run["sections"],
        mean_type=MeanType[run["mean"]],
        variance_type=VarianceType[run["var"]],
        loss_type=LossType[run["loss"]],
        rescale_timesteps=run["rescale_timesteps"],
    )
    model = build_recorded(run["unet"])
    fill_by_formula(model)
    model.to(dtype).train()
    parameters = list(model.parameters())
    steps_shape, batch = g.input("t").shape
    kl, learned = "KL" in run["loss"], "LEARNED" in run["var"]
    resampler = (
        UniformResampler(diffusion.num_timesteps)
        if run["sampler"] == "uniform"
        else LossSecondMomentResampler(diffusion.num_timesteps, history=10, uniform_prob=0.001)
    )
    rates = [float(rate) for rate in run["ema_rates"].split(",")]
    state = TrainState(
        model=model,
        replica=model,
        diffusion=diffusion,
        optimizer=make_adamw(parameters, betas=(0.9, 0.999), eps=1e-8),
        ema=Ema.begin(parameters, rates),
        resampler=resampler,
        scale=LossScale(None),
        health=Health.begin(diffusion.num_timesteps, device=CPU),
        gather=SampleGather([batch], rank=0, num_values=1 if kl else 3 if learned else 2, device=CPU),
        names=[name for name, _ in model.named_parameters()],
    )
    anneal = run["lr_anneal_steps"]
    rate = LearningRate(run["lr"], "linear" if anneal else "constant", anneal=anneal or None)
    assert run["microbatch"] == -1, "microbatches of the original are summed, ours are averaged"
    settings = StepSettings(microbatch=batch, weight_decay=run["weight_decay"])
    out = Recorded([], [], [], state)
    for number in range(steps_shape):
        t = torch.from_numpy(g.input("t")[number])
        inputs = StepInputs(
            x_start=torch.from_numpy(g.input("batches")[number]).to(dtype),
            noise=torch.from_numpy(g.input("noise")[number]).to(dtype),
            cond={},
            own=slice(0, batch),
            t=t,
            weights=resampler.importance(t),
        )
        lr = rate.at(before=number, after=number + 1)
        out.outcomes.append(step(state, inputs, lr=lr, word=0, settings=settings))
        out.lrs.append(lr)
        if isinstance(resampler, LossSecondMomentResampler):
            out.warmed.append(int(resampler.warmed_up()))
    return out


def zero_gradient_parameters(run: dict[str, Any], g: GoldenFile) -> list[bool]:
    """For each parameter in alphabetical order whether (a part of) its exact gradient is zero, seen in float64."""
    state = replay_gradients(run, g)
    return [bool((gradient.abs() < 1e-13 * gradient.abs().max().clamp(min=1e-3)).any()) for _, gradient in sorted(state.items())]


def replay_gradients(run: dict[str, Any], g: GoldenFile) -> dict[str, torch.Tensor]:
    from iddpm_ray.diffusion.loss import training_losses

    model = build_recorded(run["unet"])
    fill_by_formula(model)
    model.double()
    diffusion = make_diffusion(
        schedule=run["schedule"],
        num_timesteps=run["T"],
        sections=None if run["sections"] in (None, "", [run["T"]]) else run["sections"],
        mean_type=MeanType[run["mean"]],
        variance_type=VarianceType[run["var"]],
        loss_type=LossType[run["loss"]],
        rescale_timesteps=run["rescale_timesteps"],
    )
    terms = training_losses(
        diffusion,
        model,
        x_start=torch.from_numpy(g.input("batches")[0]).double(),
        t=torch.from_numpy(g.input("t")[0]),
        noise=torch.from_numpy(g.input("noise")[0]).double(),
        cond={},
    )
    terms.loss.sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def per_step(recorded: Recorded, name: str) -> torch.Tensor:
    return torch.stack([getattr(outcome, name) for outcome in recorded.outcomes])


def check_steps(g: GoldenFile, recorded: Recorded, *, exact: Recorded) -> None:
    for name in ("loss", "mse", "vb", "weights"):
        if f"rec.{name}" in g.arrays:
            g.check_rounded(f"rec.{name}", per_step(recorded, name), exact=per_step(exact, name), rtol=1e-5, atol=1e-6)
    g.check("rec.grad_norm", torch.stack([outcome.update.grad_norm.double() for outcome in recorded.outcomes]), rtol=1e-4, atol=1e-3)
    g.check("rec.lr", np.array(recorded.lrs), rtol=1e-12)
    if "rec.warmed" in g.arrays:
        g.check("rec.warmed", np.array(recorded.warmed))


def weights_of(recorded: Recorded) -> dict[str, dict[str, torch.Tensor]]:
    """Weights and averages by the recorded prefix, then by parameter."""
    state = recorded.state
    sets = {"model": dict(zip(state.names, state.ema.parameters, strict=True))}
    return sets | {f"ema_{rate}": dict(zip(state.names, averages, strict=True)) for rate, averages in state.ema.averages.items()}


def check_weights(g: GoldenFile, recorded: Recorded, *, exact: Recorded, suffix: str, vague: list[bool], lr: float) -> None:
    """Compares weights and averages after the last step.

    Args:
        vague: parameters that hold elements without a gradient: AdamW makes full-size steps of their rounding noise, so their norm and sum
            are held only to within those steps.
    """
    reach = lr * len(recorded.outcomes)
    precise = weights_of(exact)
    for prefix, tensors in weights_of(recorded).items():
        ordered = [tensors[name].detach().double() for name in sorted(tensors)]
        exactly = [precise[prefix][name].detach().double() for name in sorted(tensors)]
        for kind, measure in (("norms", torch.Tensor.norm), ("sums", torch.Tensor.sum)):
            key = f"{prefix}.{kind}{suffix}"
            if key not in g.arrays:
                continue
            ours, best = (torch.stack([measure(tensor) for tensor in those]) for those in (ordered, exactly))
            expected = torch.from_numpy(g.input(key))
            for index, loose in enumerate(vague):
                if loose:
                    room = reach * ordered[index].numel() ** (0.5 if kind == "norms" else 1.0)
                    assert abs(ours[index] - expected[index]) <= room, (key, index)
                    ours[index] = best[index] = expected[index]
            # A sum may all but cancel; its size is then that of its terms.
            terms = np.array([1e-4 * float(tensor.norm()) if kind == "sums" else 1e-6 for tensor in exactly])
            g.check_rounded(key, ours, exact=best, rtol=1e-4, atol=terms)
        for name, tensor in tensors.items():
            if f"{prefix}.param.{name}{suffix}" in g.arrays:
                g.check_rounded(f"{prefix}.param.{name}{suffix}", tensor.detach(), exact=precise[prefix][name], rtol=0, atol=5e-6)


def test_recorded_training_is_reproduced(golden: Golden) -> None:
    for run in recorded_runs(golden):
        g = golden.open(f"train_{run['name']}.npz")
        recorded, exact = (replay(run, g, dtype=dtype) for dtype in (torch.float32, torch.float64))
        vague = zero_gradient_parameters(run, g)
        check_steps(g, recorded, exact=exact)
        check_weights(g, recorded, exact=exact, suffix="", vague=vague, lr=run["lr"])
        check_weights(g, exact, exact=exact, suffix=".f64", vague=vague, lr=run["lr"])
        if "rec.loss.f64" in g.arrays:
            g.check("rec.loss.f64", per_step(exact, "loss"), rtol=1e-5)
        if "rec.grad_norm.f64" in g.arrays:
            g.check("rec.grad_norm.f64", torch.stack([outcome.update.grad_norm for outcome in exact.outcomes]), rtol=1e-5)
        check_log(g, recorded)
        resampler = recorded.state.resampler
        if isinstance(resampler, LossSecondMomentResampler):
            state = resampler.state_dict()
            g.check("sampler.history", state["history"], rtol=2e-5, atol=1e-6)
            g.check("sampler.counts", state["counts"])
            g.check("sampler.weights", resampler.weights(), rtol=2e-5)


def check_log(g: GoldenFile, recorded: Recorded) -> None:
    """What a row holds when it covers the last step alone."""
    last = recorded.outcomes[-1]
    statistics = stats.use(stats.Statistics())
    collector = stats.Collector(statistics=statistics)
    report_loss_terms(
        last.t, loss=last.loss, weights=last.weights, mse=last.mse, vb=last.vb, num_timesteps=recorded.state.diffusion.num_timesteps
    )
    stats.report0("grad_norm", last.update.grad_norm)
    collector.update()
    # The original labels a step by the updates before it.
    ours = collector.means() | {"step": recorded.state.step - 1.0, "samples": float(recorded.state.step * last.t.shape[0])}
    prefix = "last_step_log."
    for key in g.names():
        if key.startswith(prefix):
            g.check(key, np.float64(ours[key.removeprefix(prefix)]), rtol=1e-4, atol=1e-6)


def test_the_recorded_network_has_our_parameters_in_our_order(golden: Golden) -> None:
    if not golden.file("train_keys.json").exists():
        return
    listed, runs = golden.json("train_keys.json"), golden.json("train.json")
    for run in runs:
        expected = listed[run["name"]] if isinstance(listed, dict) else listed
        ours = [[name, list(parameter.shape)] for name, parameter in build_recorded(run["unet"]).named_parameters()]
        assert ours == [entry[:2] for entry in expected]
