"""Trains on scikit-learn's handwritten digits, draws 200, and judges them: `make demo`, or `python jobs/demo.py`."""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from iddpm_ray.errors import UserError
from iddpm_ray.evaluate import digits, figures, generate, in_short
from iddpm_ray.evaluate.classifier import LabelledPictures, train_classifier
from iddpm_ray.evaluate.features import ClassifierFeatures
from iddpm_ray.sinks.jsonl import read_rows

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "demo"
RUN = HOME / "runs" / "digits"
NUM_SAMPLES = 200
NUM_LIKELIHOOD = 64


def main() -> int:
    """Everything under demo/ is made anew; returns 0 if at least 95 % of the samples are what was asked for."""
    torch.set_num_threads(1)  # small networks gain little from more, and lose much where other programs want the cores
    seconds: dict[str, float] = {}
    shutil.rmtree(HOME, ignore_errors=True)
    with part("writing the digits as PNG files", seconds):
        digits.export_digits(HOME / "digits")
    with part("training", seconds):
        train()
    labels = digits.balanced_labels(NUM_SAMPLES)
    with part("sampling", seconds):
        pictures = generate.sample_run(
            str(RUN), count=NUM_SAMPLES, labels=labels, ema=0.98, method="ddpm", respacing="25", guidance=2.5, seed=0, batch=100
        )
    with part("judging", seconds):
        samples = LabelledPictures(pictures, labels)
        size = (pictures.shape[2], pictures.shape[3])
        real = {name: digits.load_digit_files(HOME / "digits" / name, size=size) for name in ("train", "held_out")}
        classifier = train_classifier(real["train"], num_classes=digits.NUM_CLASSES)
        judgement = digits.judge(samples, classifier=classifier, train=real["train"], held_out=real["held_out"])
        shape = (pictures.shape[1], *size)
        features = ClassifierFeatures(classifier, "digits-classifier", "", shape)
        quality = in_short.compare(pictures, real["train"].pictures, features=features)
        bpd = in_short.estimated_bpd(str(RUN), str(HOME / "digits" / "held_out"), count=NUM_LIKELIHOOD, ema="0.98")
    with part("drawing", seconds):
        figures.save_sheet(pictures[:100], HOME / "samples.png", columns=digits.NUM_CLASSES)
        figures.save_curves(read_rows(str(RUN / "metrics" / "train.jsonl")), HOME / "curves.png", title="digits")
    print(digits.report(judgement, count=NUM_SAMPLES))
    fid = "fid[digits-classifier]"
    print(f"{fid} {quality.metrics[fid]:.2f} of {NUM_SAMPLES} samples against the {len(real['train'])} digits it was trained on")
    print(f"held-out digits, {NUM_LIKELIHOOD} of them: {bpd}")
    print("\nwhere everything is (the first 100 samples, a digit a column; what the rows say; the run itself)")
    for path in (HOME / "samples.png", HOME / "curves.png", RUN):
        print(f"  {path}")
    print("\nhow long it took\n" + "\n".join(f"  {took:6.1f} s  {name}" for name, took in seconds.items()))
    return 0 if digits.good_enough(judgement) else 1


def _parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=f"{__doc__} Everything goes to demo/, which is made anew; there are no options.")


def train() -> None:
    """Runs the training program as a person would."""
    settings = ["run.name=digits", f"run.output_dir={RUN.parent}", f"data.path={HOME / 'digits' / 'train'}"]
    command = [sys.executable, "jobs/train.py", "--preset", "digits", *settings]
    print("  " + " ".join(command), flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


@contextmanager
def part(name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Says what begins, and books how long it took."""
    print(f"{name} ...", flush=True)
    began = time.monotonic()
    yield
    seconds[name] = time.monotonic() - began


if __name__ == "__main__":
    _parser().parse_args()
    try:
        sys.exit(main())
    except (UserError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
