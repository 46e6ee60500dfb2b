"""Our training step as the loop makes it, on one process and pictures that are already there."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from iddpm_ray import stats
from iddpm_ray.data.batch import Batch
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping
from iddpm_ray.stats.loss_terms import report_loss_terms
from iddpm_ray.train import setup
from iddpm_ray.train.inputs import make_inputs
from iddpm_ray.train.session import LocalSession
from iddpm_ray.train.step import StepOutcome, step


@dataclass(frozen=True)
class NoPictures:
    """Sources that only know how many pictures and classes there would be."""

    num_rows: int = 10_000
    classes: tuple[str, ...] = tuple("0123456789")
    num_validation: int = 0

    def batches(self, *, start_step: int, stop_step: int | None) -> Generator[Batch, None, None]:
        """None."""
        yield from ()

    def validation(self, own: slice, *, size: int) -> Iterator[Batch]:
        """None."""
        return iter(())

    def pictures(self, own: slice) -> Batch:
        """None to be had."""
        raise LookupError("a benchmark of the step has no pictures")


def bench_spec(*, size: int, channels: int, batch: int, sections: dict[str, dict[str, Any]]) -> JobSpec:
    """A class-conditional run with learned variance, the hybrid loss, the cosine schedule and one average, else as given."""
    given: dict[str, dict[str, Any]] = {
        "run": {"name": "bench", "output_dir": "bench"},
        "data": {"path": "bench", "image_size": size, "channels": channels, "labels": "folder"},
        "model": {"class_cond": True, "num_classes": 10},
        "diffusion": {"timesteps": 1000, "schedule": "cosine", "variance": "learned_range", "loss": "rescaled_mse"},
        "optim": {"ema_rates": [0.9999]},
        "train": {"global_batch": batch, "duration": "1000 steps"},
    }
    for section, fields in sections.items():
        given[section] = {**given.get(section, {}), **fields}
    return load_mapping(given)


class OurTrainer:
    """The state of a run, and one step of it with its statistics."""

    def __init__(self, spec: JobSpec, *, device: torch.device) -> None:
        self.spec, self.device = spec, device
        threads = torch.get_num_threads()
        self.kit = setup.make(spec, LocalSession(device=device), sources=NoPictures(), known_microbatch=lambda device, count: None)
        torch.set_num_threads(threads)
        self.statistics = stats.use(stats.Statistics(device=device))

    def step(self, pixels: Tensor, labels: Tensor) -> StepOutcome:
        """One update on pixels [N, C, H, W] uint8, which are the whole global batch."""
        kit, batch = self.kit, self.spec.train.global_batch
        inputs = make_inputs(
            pixels,
            labels,
            seed=0,
            first_position=kit.state.step * batch,
            global_batch=batch,
            own=kit.own,
            resampler=kit.state.resampler,
            augmentation=kit.augmentation,
            device=self.device,
        )
        outcome = step(kit.state, inputs, lr=1e-4, word=0, settings=kit.step_settings)
        self.observe(outcome)
        return outcome

    def observe(self, outcome: StepOutcome) -> None:
        """Books what the loop books."""
        report_loss_terms(
            outcome.t,
            loss=outcome.loss,
            weights=outcome.weights,
            mse=outcome.mse,
            vb=outcome.vb,
            num_timesteps=self.kit.state.diffusion.num_timesteps,
            num_bins=self.spec.log.timestep_bins,
        )
        stats.report0("grad_norm", outcome.update.grad_norm)
        stats.report("data_wait_s", 0.0)
