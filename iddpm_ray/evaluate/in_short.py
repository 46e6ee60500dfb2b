"""Likelihood and quality in one call each, in this process, for small things: the demo, a notebook."""

import torch
from torch import Tensor

from iddpm_ray import build
from iddpm_ray.evaluate.features import FeatureBatch, Features
from iddpm_ray.evaluate.measured import other_data
from iddpm_ray.evaluate.nll_job import Looking, Measured, chunks_a_pass, make_chunk, measured_drawn
from iddpm_ray.evaluate.nll_report import describe
from iddpm_ray.evaluate.quality import Parts, Quality, measure, reference_of
from iddpm_ray.evaluate.rows import choose_rows
from iddpm_ray.evaluate.strata import make_strata
from iddpm_ray.evaluate.subject import choose_subject

_AT_ONCE = 256


def estimated_bpd(run: str, path: str, *, count: int, strata: int = 8, ema: str | None = None, seed: int = 0, batch: int = 32) -> str:
    """The estimated bits a dimension of `count` pictures drawn from a folder under a run's newest weights, in words.

    Args:
        path: pictures that the run was not trained on, labelled as its own are.
        strata: ranges of timesteps; the network sees each picture twice as often.
        ema: `raw`, a rate, or None for what the run's section `sample` says.

    Raises:
        UserError: no weights or no pictures.
    """
    subject = choose_subject(run, ema=ema)
    manifest = other_data(path, subject.spec, classes=subject.source.classes)
    looking = Looking("all", count, seed, strata, batch)
    chosen = choose_rows(manifest, "all", count=count, seed=seed)
    trained, device = subject.open("cpu"), torch.device("cpu")
    numbers = range(chunks_a_pass(count, batch))
    parts = [make_chunk(trained, manifest, chosen.rows, looking, chunk, device=device) for chunk in numbers]
    timesteps = build.diffusion(subject.spec.diffusion).num_timesteps
    cut = make_strata(timesteps, count=strata)
    found: Measured = measured_drawn(parts, population=chosen.population, num_timesteps=timesteps, strata=cut, num_rows=count, batch=batch)
    return describe(found, subject, looking)


def compare(samples: Tensor, references: Tensor, *, features: Features) -> Quality:
    """Every metric of samples [N, C, H, W] uint8 against references [M, C, H, W] uint8."""
    reference = reference_of(_parts(references, features), count=len(references))
    return measure(_parts(samples, features), reference, count=len(samples), features=features.name)


def _parts(pictures: Tensor, features: Features) -> Parts:
    made: list[FeatureBatch] = [features(part) for part in pictures.split(_AT_ONCE)]
    return lambda: made
