"""Judges samples by FID and its kin: `python jobs/evaluate.py RUN`, or `... evaluate.py samples.npz --reference ref.npz`; resumable."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from iddpm_ray import signals, storage
from iddpm_ray.errors import SpecError
from iddpm_ray.evaluate.command import check_urls, pool_options, run_program
from iddpm_ray.evaluate.command_evaluate import assessment_of, parser, subject_of

if TYPE_CHECKING:
    from iddpm_ray.evaluate.subject import Subject


def main(argv: Sequence[str]) -> int:
    """Gathers features that are missing, measures, prints and writes the result; returns the exit code."""
    return run_program(_evaluate, parser(__doc__), argv)


def _evaluate(wanted: argparse.Namespace) -> int:
    from iddpm_ray.evaluate.assessment import assess, forget_samples, write_result  # torch comes once the words are understood
    from iddpm_ray.evaluate.reference import write_reference
    from iddpm_ray.runtime.chunks import Pool, run_chunks

    check_urls(wanted, "samples", "reference", "features", "inception", "write_reference", "out", "spec")
    if wanted.write_reference is not None:
        storage.check_writable(storage.parent(storage.absolute(wanted.write_reference)), field="--write-reference")
    subject = subject_of(wanted)
    assessment = assessment_of(wanted, subject)
    pool = Pool(**pool_options(wanted))
    to_write: str | None = wanted.write_reference
    found = assess(assessment, lambda chunks, worker, unit: run_chunks(chunks, worker, pool=pool, unit=unit), to_write=to_write is not None)
    if found is None:
        return 130
    if to_write is not None:
        write_reference(to_write, found.reference, features=found.features)
        print(f"reference: {storage.shown(to_write)}")
    if wanted.score and subject is not None:
        _keep_score(subject, dict(found.quality.metrics))
    print(found.quality.describe())
    print(f"in {storage.shown(write_result(found, assessment))}")
    if not wanted.keep_chunks:
        forget_samples(assessment)
    return 0


def _keep_score(subject: "Subject", metrics: dict[str, float]) -> None:
    from iddpm_ray.checkpoint.commit import checkpoint_named
    from iddpm_ray.sinks.evaluations import keep_evaluation

    checkpoint = checkpoint_named(subject.run_url, subject.source.name)
    if checkpoint is None:
        raise SpecError("--score", value=subject.source.name, fix="is for checkpoints of a run")
    spec = subject.spec
    keep_evaluation(subject.run_url, checkpoint, metrics, global_batch=spec.train.global_batch, tensorboard=spec.log.tensorboard)


if __name__ == "__main__":
    signals.run_main(main)
