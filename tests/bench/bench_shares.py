"""What resampler and statistics take of a step."""

from collections.abc import Callable

import torch
from cases import Case, on_cpu, on_gpu
from our_step import OurTrainer
from timing import Comparison, Effort, by_turns, timed

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.diffusion.resample import LossSecondMomentResampler


def results(effort: Effort) -> list[Comparison]:
    """For each network the share of each part; the peer is the whole step."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = on_cpu(effort) if device.type == "cpu" else on_gpu()
    return [result for case in cases for result in _shares(case, device=device, effort=effort)]


def _shares(case: Case, *, device: torch.device, effort: Effort) -> list[Comparison]:
    sync: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    ours = OurTrainer(case.spec, device=device)
    pixels, labels = case.batch()
    outcome = ours.step(pixels, labels)
    resampler = _warm(case, device=device)
    uniforms = draws.uniforms(0, Purpose.TIMESTEP, torch.arange(case.spec.train.global_batch, device=device)).squeeze(1)
    parts: dict[str, Callable[[], object]] = {
        "resampler, loss second moment, warmed up": lambda: resampler.update(resampler.draw(uniforms).t, outcome.loss),
        "statistics": lambda: ours.observe(outcome),
    }
    ways = {name: lambda part=part: timed(part, calls=20, sync=sync) for name, part in parts.items()}
    ways["step"] = lambda: timed(lambda: ours.step(pixels, labels), calls=case.calls, sync=sync)
    times = by_turns(ways, repeats=effort.of(9))
    return [
        Comparison(f"share of a step: {name}, {case.name}", times[name], times["step"], name.split(",")[0], "whole step", at_most=0.01)
        for name in parts
    ]


def _warm(case: Case, *, device: torch.device) -> LossSecondMomentResampler:
    steps = case.spec.diffusion.timesteps
    resampler = LossSecondMomentResampler(steps, history=10, uniform_prob=0.001, device=device)
    for _ in range(10):
        resampler.update(torch.arange(steps, device=device), torch.rand(steps, device=device) + 0.1)
    return resampler
