"""Measures the likelihood of pictures in bits a dimension: `python jobs/nll.py RUN`; resumable, on this machine or on a Ray cluster."""

import argparse
from collections.abc import Sequence

from iddpm_ray import signals, storage
from iddpm_ray.errors import SpecError
from iddpm_ray.evaluate.command import WEIGHTS, add_pool, add_weights, at_least, check_urls, number, pool_options, run_program


def main(argv: Sequence[str]) -> int:
    """Measures what is not measured yet, writes the results, prints the mean; returns the exit code."""
    return run_program(_measure, _parser(), argv)


def _measure(wanted: argparse.Namespace) -> int:
    from iddpm_ray.evaluate.measured import other_data, pinned_data  # torch is imported only once there is something to measure
    from iddpm_ray.evaluate.nll_job import Looking
    from iddpm_ray.evaluate.nll_report import describe, target_missed, write_results
    from iddpm_ray.evaluate.subject import choose_subject
    from iddpm_ray.runtime.chunks import Pool
    from iddpm_ray.runtime.nll import run_nll

    check_urls(wanted, "run", "data", "out", "spec")
    if wanted.target_se is not None and not wanted.estimate:
        raise SpecError("--target-se", value=wanted.target_se, fix="is where an estimate stops: give --estimate too")
    subject = choose_subject(wanted.run, which=wanted.step or "newest", ema=wanted.ema, spec_url=wanted.spec)
    spec, classes = subject.spec, subject.source.classes
    manifest = pinned_data(subject.run_url, spec) if wanted.data is None else other_data(wanted.data, spec, classes=classes)
    side = wanted.rows or ("validation" if wanted.data is None else "all")
    looking = Looking(side, wanted.count, wanted.seed, wanted.strata if wanted.estimate else 0, wanted.batch, wanted.clip)
    pool = Pool(**pool_options(wanted))
    found = run_nll(subject, looking, manifest=manifest, folder=wanted.out, pool=pool, target_se=wanted.target_se)
    if found is None:
        return 130
    files = write_results(found.folder, found.measured, subject, looking, manifest=manifest)
    print(describe(found.measured, subject, looking))
    if (missed := target_missed(found.measured, wanted.target_se)) is not None:
        print(missed)
    print(f"{', '.join(files)} in {storage.shown(found.folder)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, usage="%(prog)s RUN [options]")
    parser.add_argument("run", metavar="RUN", help=WEIGHTS)
    add_weights(parser)
    parser.add_argument("--data", metavar="PATH", help="other pictures, at any fsspec URL (those that the run is pinned to)")
    parser.add_argument(
        "--rows", choices=("train", "validation", "all"), help="which side of the split (validation; with --data all of the pictures)"
    )
    parser.add_argument("--count", type=at_least(1), help="so many of them, chosen at random by --seed (all)")
    parser.add_argument("--estimate", action="store_true", help="look at a few timesteps of each picture; unbiased, with a standard error")
    parser.add_argument("--strata", type=at_least(1), default=16, help="ranges of timesteps of an estimate, two draws in each (16)")
    parser.add_argument("--target-se", type=_error, metavar="BPD", help="stop an estimate once its standard error is as small as this")
    parser.add_argument("--seed", type=int, default=0, help="of rows, timesteps and noises (0)")
    parser.add_argument("--batch", type=at_least(1), default=32, help="pictures a chunk (32)")
    parser.add_argument("--no-clip", dest="clip", action="store_false", help="do not clamp predicted pictures to [-1, 1]")
    parser.add_argument("--out", metavar="FOLDER", help="where chunks and results go (a folder of its own in RUN/evaluations)")
    add_pool(parser)
    return parser


def _error(text: str) -> float:
    value = number(text, least=0)
    if value == 0:
        raise argparse.ArgumentTypeError("should be above 0")
    return value


if __name__ == "__main__":
    signals.run_main(main)
