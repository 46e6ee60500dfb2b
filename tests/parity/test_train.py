"""Whole training runs: twenty recorded steps through `train.step`, with the draws they had."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden import DEFAULT_DIRECTORY, Golden, GoldenFile
from networks import build_recorded, fill_by_formula
from process import process
from torch import Tensor, nn

from iddpm_ray import stats
from iddpm_ray.diffusion.gaussian import GaussianDiffusion
from iddpm_ray.diffusion.loss import training_losses
from iddpm_ray.diffusion.resample import LossSecondMomentResampler, UniformResampler
from iddpm_ray.parallel.gather import SampleGather
from iddpm_ray.stats.loss_terms import report_loss_terms
from iddpm_ray.train.ema import Ema
from iddpm_ray.train.inputs import StepInputs
from iddpm_ray.train.optim import LearningRate, LossScale, make_adamw
from iddpm_ray.train.state import Health, TrainState
from iddpm_ray.train.step import StepOutcome, StepSettings, step

CPU = torch.device("cpu")
TERMS = ("loss", "mse", "vb", "weights")


@dataclass
class Recorded:
    """What the steps left: a value a step, and the state at the end."""

    outcomes: list[StepOutcome]
    lrs: list[float]
    warmed: list[int]
    state: TrainState

    def per_step(self, name: str) -> Tensor:
        """[steps, batch] of one term."""
        return torch.stack([getattr(outcome, name) for outcome in self.outcomes])

    def grad_norms(self) -> Tensor:
        """[steps]"""
        return torch.stack([outcome.update.grad_norm.double() for outcome in self.outcomes])


@dataclass
class Replays:
    """One recorded run as it was, in float64, and as it was from weights a rounding apart: twenty steps at a large learning rate
    amplify a rounding, in some runs a hundredfold, and these show by how much."""

    rounded: Recorded
    exact: Recorded
    nudged: list[Recorded]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a recorded run; a directory without any gives one that has nothing to do."""
    if "run" in metafunc.fixturenames:
        runs = _recorded_runs(Golden(Path(str(metafunc.config.getoption("--golden"))), load=False))
        metafunc.parametrize("run", runs or [{}], ids=[run["name"] for run in runs] or [""])


def _recorded_runs(golden: Golden) -> list[dict[str, Any]]:
    return golden.json("train.json") if golden.file("train.json").exists() else []


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As recorded; and two threads on busy cores wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def diffusion_of(run: dict[str, Any]) -> GaussianDiffusion:
    return process(
        run["schedule"],
        run["T"],
        run["sections"] or None,
        mean=run["mean"],
        variance=run["var"],
        loss=run["loss"],
        rescale=run["rescale_timesteps"],
    )


def condition(g: GoldenFile, number: int) -> dict[str, Tensor]:
    return {"y": torch.from_numpy(g.input("y")[number])} if "y" in g.arrays else {}


@torch.no_grad()
def nudge(model: nn.Module, *, seed: int) -> None:
    """Moves every weight by a unit in its last place, or leaves it, at random."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        towards = torch.randint(-1, 2, parameter.shape, generator=generator) * torch.inf
        parameter.copy_(torch.where(towards.isnan(), parameter, torch.nextafter(parameter, towards.to(parameter.dtype))))


def replay(run: dict[str, Any], g: GoldenFile, *, dtype: torch.dtype, nudged_by: int | None = None) -> Recorded:
    """The recorded run through our own step; only the draws are given. `nudged_by` seeds a nudge of the first weights."""
    diffusion = diffusion_of(run)
    model = build_recorded(run["unet"])
    fill_by_formula(model)
    model.to(dtype).train()
    if nudged_by is not None:
        nudge(model, seed=nudged_by)
    parameters = list(model.parameters())
    steps, batch = g.input("t").shape
    kl, learned = "KL" in run["loss"], "LEARNED" in run["var"]
    resampler = (
        UniformResampler(diffusion.num_timesteps)
        if run["sampler"] == "uniform"
        else LossSecondMomentResampler(diffusion.num_timesteps, history=10, uniform_prob=0.001)
    )
    state = TrainState(
        model=model,
        replica=model,
        diffusion=diffusion,
        optimizer=make_adamw(parameters, betas=(0.9, 0.999), eps=1e-8),
        ema=Ema.begin(parameters, [float(rate) for rate in ema_rates(run)]),
        resampler=resampler,
        scale=LossScale(None),
        health=Health.begin(diffusion.num_timesteps, device=CPU),
        gather=SampleGather([batch], rank=0, num_values=1 if kl else 3 if learned else 2, device=CPU),
        names=[name for name, _ in model.named_parameters()],
    )
    anneal = run["lr_anneal_steps"]
    rate = LearningRate(run["lr"], "linear" if anneal else "constant", anneal=anneal or None)
    assert run["microbatch"] == -1 or run["microbatch"] >= batch, "microbatches of the original are summed, ours are averaged"
    settings = StepSettings(microbatch=batch, weight_decay=run["weight_decay"])
    out = Recorded([], [], [], state)
    for number in range(steps):
        t = torch.from_numpy(g.input("t")[number])
        inputs = StepInputs(
            x_start=torch.from_numpy(g.input("batches")[number]).to(dtype),
            noise=torch.from_numpy(g.input("noise")[number]).to(dtype),
            cond=condition(g, number),
            own=slice(0, batch),
            t=t,
            weights=resampler.importance(t).to(dtype),
        )
        lr = rate.at(before=number, after=number + 1)
        out.outcomes.append(step(state, inputs, lr=lr, word=0, settings=settings))
        out.lrs.append(lr)
        if isinstance(resampler, LossSecondMomentResampler):
            out.warmed.append(int(resampler.warmed_up()))
    return out


def ema_rates(run: dict[str, Any]) -> list[str]:
    """As the directory writes them, which its array names repeat."""
    return str(run["ema_rates"]).split(",")


def without_gradient(run: dict[str, Any], g: GoldenFile) -> dict[str, Tensor]:
    """For each parameter which of its elements have an exact gradient of zero, seen in float64 at the first step.

    AdamW makes full-size steps of their rounding noise.
    """
    model = build_recorded(run["unet"])
    fill_by_formula(model)
    model.double()
    terms = training_losses(
        diffusion_of(run),
        model,
        x_start=torch.from_numpy(g.input("batches")[0]).double(),
        t=torch.from_numpy(g.input("t")[0]),
        noise=torch.from_numpy(g.input("noise")[0]).double(),
        cond=condition(g, 0),
    )
    terms.loss.sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {name: gradient.abs() < 1e-13 * gradient.abs().max().clamp(min=1e-3) for name, gradient in gradients.items()}


def check_steps(g: GoldenFile, replays: Replays) -> None:
    rounded, exact = replays.rounded, replays.exact
    for name in TERMS:
        if f"rec.{name}" in g.arrays:
            others = [each.per_step(name) for each in replays.nudged]
            g.check_rounded(f"rec.{name}", rounded.per_step(name), exact=exact.per_step(name), others=others, rtol=1e-5, atol=1e-6)
        if f"rec.{name}.f64" in g.arrays:
            g.check(f"rec.{name}.f64", exact.per_step(name), rtol=1e-5)
    g.check("rec.grad_norm", rounded.grad_norms(), rtol=1e-4, atol=1e-3)
    if "rec.grad_norm.f64" in g.arrays:
        g.check("rec.grad_norm.f64", exact.grad_norms(), rtol=1e-5)
    for name in ("rec.lr", "rec.lr.f64"):
        if name in g.arrays:
            g.check(name, np.array(rounded.lrs), rtol=1e-12)
    for name, run in (("rec.warmed", rounded), ("rec.warmed.f64", exact)):
        if name in g.arrays:
            g.check(name, np.array(run.warmed))


def weights_of(recorded: Recorded, rates: list[str]) -> dict[str, dict[str, Tensor]]:
    """Weights and averages by the recorded prefix, then by parameter."""
    state = recorded.state
    sets = {"model": dict(zip(state.names, state.ema.parameters, strict=True))}
    return sets | {f"ema_{rate}": dict(zip(state.names, state.ema.averages[float(rate)], strict=True)) for rate in rates}


def check_weights(g: GoldenFile, replays: Replays, run: dict[str, Any], *, suffix: str) -> None:
    """Compares weights and averages after the last step, the float64 run's where the suffix says so."""
    sources = [replays.exact] if suffix else [replays.rounded, *replays.nudged]
    (ours, *others), exact = [weights_of(each, ema_rates(run)) for each in sources], weights_of(replays.exact, ema_rates(run))
    still = without_gradient(run, g)
    reach = run["lr"] * len(replays.exact.outcomes)
    for prefix, tensors in ours.items():
        for kind, measure in (("norms", Tensor.norm), ("sums", Tensor.sum)):
            key = f"{prefix}.{kind}{suffix}"
            if key not in g.arrays:
                continue
            names = sorted(tensors)
            mine, best, *spread = (
                torch.stack([measure(each[prefix][name].detach().double()) for name in names]) for each in (ours, exact, *others)
            )
            expected = torch.from_numpy(g.input(key))
            for index, name in enumerate(names):
                if bool(still[name].any()):
                    room = reach * tensors[name].numel() ** (0.5 if kind == "norms" else 1.0)
                    assert abs(mine[index] - expected[index]) <= room, (key, name)
                    mine[index] = best[index] = expected[index]
            # A sum may all but cancel; its size is then that of its terms.
            terms = np.array([1e-4 * float(exact[prefix][name].detach().norm()) if kind == "sums" else 1e-6 for name in names])
            g.check_rounded(key, mine, exact=best, others=spread, rtol=1e-4, atol=terms)
        for name, tensor in tensors.items():
            key = f"{prefix}.param.{name}{suffix}"
            if key in g.arrays:
                spread = [each[prefix][name] for each in others]
                g.check_rounded(key, tensor.detach(), exact=exact[prefix][name], others=spread, rtol=0, atol=5e-6)


def test_recorded_training_is_reproduced(golden: Golden, run: dict[str, Any]) -> None:
    if not run:
        return
    g = golden.open(f"train_{run['name']}.npz")
    replays = Replays(
        replay(run, g, dtype=torch.float32),
        replay(run, g, dtype=torch.float64),
        [replay(run, g, dtype=torch.float32, nudged_by=seed) for seed in range(3)],
    )
    with g.collecting():
        check_steps(g, replays)
        check_weights(g, replays, run, suffix="")
        check_weights(g, replays, run, suffix=".f64")
        check_log(g, replays.rounded, suffix="")
        check_log(g, replays.exact, suffix=".f64")
        check_resampler(g, replays, suffix="")
        check_resampler(g, replays, suffix=".f64")
    if golden.directory == DEFAULT_DIRECTORY:
        assert not g.widened, "the recordings of the original need no wider allowance"


def check_resampler(g: GoldenFile, replays: Replays, *, suffix: str) -> None:
    sources = [replays.exact] if suffix else [replays.rounded, *replays.nudged]
    resamplers = [source.state.resampler for source in (replays.exact, *sources)]
    left = [_left_by(resampler) for resampler in resamplers if isinstance(resampler, LossSecondMomentResampler)]
    for name in left[0] if left else ():
        key, (exact, ours, *others) = f"sampler.{name}{suffix}", [each[name] for each in left]
        if key not in g.arrays:
            continue
        if name == "counts":
            g.check(key, ours)
        else:
            g.check_rounded(key, ours, exact=exact, others=others, rtol=2e-5, atol=1e-6 if name == "history" else 0)


def _left_by(resampler: LossSecondMomentResampler) -> dict[str, Tensor]:
    return {"history": resampler.history, "counts": resampler.counts, "weights": resampler.weights()}


def check_log(g: GoldenFile, recorded: Recorded, *, suffix: str) -> None:
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
        if key.startswith(prefix) and key.endswith(".f64") == bool(suffix):
            g.check(key, np.float64(ours[key.removeprefix(prefix).removesuffix(suffix)]), rtol=1e-4, atol=1e-6)


def test_the_recorded_networks_have_our_parameters_in_our_order(golden: Golden) -> None:
    if not golden.file("train_keys.json").exists():
        return
    listed, runs = golden.json("train_keys.json"), _recorded_runs(golden)
    ours = {run["name"]: [[name, list(value.shape)] for name, value in build_recorded(run["unet"]).named_parameters()] for run in runs}
    if isinstance(listed, dict):
        assert ours == {name: [entry[:2] for entry in entries] for name, entries in listed.items()}
    else:
        assert not runs or [entry[:2] for entry in listed] in ours.values()
