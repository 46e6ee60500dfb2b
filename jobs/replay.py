"""Does a step of a run again and shows what it saw: `python jobs/replay.py RUN step=120 [sample=3]`."""

import argparse
from collections.abc import Sequence

from iddpm_ray import signals, storage
from iddpm_ray.errors import SpecError
from iddpm_ray.evaluate.command import run_program


def main(argv: Sequence[str]) -> int:
    """Steps there from the checkpoint before, prints and writes what the step saw; returns the exit code."""
    return run_program(_replay, _parser(), argv)


def _replay(wanted: argparse.Namespace) -> int:
    numbers = _numbers(wanted.numbers)
    from iddpm_ray.evaluate.measured import pinned_data  # torch is imported only once the numbers are understood
    from iddpm_ray.evaluate.replay import plan
    from iddpm_ray.evaluate.replay_ranks import replay_all
    from iddpm_ray.evaluate.replay_report import check_sample, describe, together, write_results

    planned = plan(wanted.run, numbers["step"])
    sample = numbers.get("sample")
    manifest = pinned_data(planned.run_url, planned.spec)
    print(planned.describe(), flush=True)
    seen = together(planned, replay_all(planned))
    check_sample(seen, sample)
    print(describe(seen, manifest, sample=sample))
    folder = wanted.out or storage.join(planned.run_url, "replays", f"step-{planned.step:08d}")
    files = write_results(storage.absolute(folder), seen, manifest, sample=sample)
    print(f"{', '.join(files)} in {storage.shown(folder)}")
    return 0


def _numbers(words: Sequence[str]) -> dict[str, int]:
    """`step=120 sample=3` as numbers."""
    numbers: dict[str, int] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in ("step", "sample") or not value.isdecimal():
            raise SpecError("what to replay", value=word, fix="say step=N and perhaps sample=I, such as step=120 sample=3")
        numbers[name] = int(value)
    if "step" not in numbers:
        raise SpecError("which step is to be replayed", fix="say step=N: the one after which N updates were completed")
    return numbers


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", metavar="RUN", help="the run's directory, {run.output_dir}/{run.name}, at any fsspec URL; it may still run")
    parser.add_argument("numbers", nargs="*", metavar="step=N [sample=I]", help="the step, and one of its samples (all of them)")
    parser.add_argument("--out", metavar="FOLDER", help="where table and picture go (RUN/replays/step-N)")
    return parser


if __name__ == "__main__":
    signals.run_main(main)
