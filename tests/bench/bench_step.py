"""One training step: ours against a plain-torch rendering of the original's; and what the resampler and the statistics take of ours."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from our_step import OurTrainer, bench_spec
from plain_step import PlainTables, PlainTrainer
from timing import Comparison, Measurement, compare, spread, timed
from torch import Tensor

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.diffusion.resample import LossSecondMomentResampler
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.inputs import to_float


@dataclass(frozen=True)
class Case:
    """A network and batch; `calls` steps are timed together."""

    name: str
    spec: JobSpec
    calls: int


def cases(device: torch.device) -> list[Case]:
    """On a CPU networks a CPU can train; on a GPU those it is made for."""
    digits: dict[str, dict[str, Any]] = {
        "model": {"num_channels": 32, "num_res_blocks": 1, "channel_mult": [1, 1, 2], "attention_resolutions": [4]}
    }
    small = Case("digits, 16 px, 0.9 M parameters, batch 64", bench_spec(size=16, channels=1, batch=64, sections=digits), 2)
    if device.type == "cpu":
        tiny = Case("digits, 16 px, 0.9 M parameters, batch 8", bench_spec(size=16, channels=1, batch=8, sections=digits), 5)
        return [tiny, small]
    cifar: dict[str, dict[str, Any]] = {"model": {"num_channels": 128, "num_res_blocks": 3}}
    large = Case("CIFAR-10 recipe, 32 px, batch 128", bench_spec(size=32, channels=3, batch=128, sections=cifar), 5)
    return [small, large]


def results() -> list[Comparison | Measurement]:
    """For each case the ratio of steps; for the first one the shares of resampler and statistics."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sync: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    out: list[Comparison | Measurement] = []
    for case in cases(device):
        ours = OurTrainer(case.spec, device=device)
        plain = PlainTrainer(OurTrainer(case.spec, device=device).kit.state.model, PlainTables.cosine(case.spec.diffusion.timesteps))
        pixels, labels = _batch(case.spec)
        out.append(
            compare(
                f"step, {case.name}",
                lambda ours=ours, pixels=pixels, labels=labels: ours.step(pixels, labels),
                lambda plain=plain, pixels=pixels, labels=labels: plain.step(to_float(pixels.to(device)), labels.to(device)),
                ours_label="train.step with draws, statistics",
                peer_label="plain torch, as the original",
                goal="above 1",
                calls=case.calls,
                sync=sync,
            )
        )
        out += _shares(ours, case, pixels, labels, sync=sync)
    return out


def _shares(ours: OurTrainer, case: Case, pixels: Tensor, labels: Tensor, *, sync: Callable[[], object]) -> list[Measurement]:
    """What part of a step goes to a warmed-up loss-second-moment resampler, and to the statistics."""
    batch, device, steps = case.spec.train.global_batch, ours.device, case.spec.diffusion.timesteps
    outcome = ours.step(pixels, labels)
    resampler = LossSecondMomentResampler(steps, history=10, uniform_prob=0.001, device=device)
    for _ in range(10):
        resampler.update(torch.arange(steps, device=device), torch.rand(steps, device=device) + 0.1)
    uniforms = draws.uniforms(0, Purpose.TIMESTEP, torch.arange(batch, device=device)).squeeze(1)

    def resample() -> None:
        resampler.update(resampler.draw(uniforms).t, outcome.loss)

    parts = {"resampler (loss second moment)": resample, "statistics": lambda: ours.observe(outcome)}
    shares: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(9):
        whole = timed(lambda: ours.step(pixels, labels), calls=case.calls, sync=sync)
        for name, part in parts.items():
            shares[name].append(100 * timed(part, calls=10, sync=sync) / whole)
    spreads = {name: spread(values) for name, values in shares.items()}
    return [Measurement(f"{name}, {case.name}", s.median, s.low, s.high, "% of a step", "goal: below 1") for name, s in spreads.items()]


def _batch(spec: JobSpec) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    batch = spec.train.global_batch
    pixels = torch.randint(0, 256, (batch, *spec.picture_shape()), generator=generator, dtype=torch.uint8)
    return pixels, torch.randint(0, 10, (batch,), generator=generator)
