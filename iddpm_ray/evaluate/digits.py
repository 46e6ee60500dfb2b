"""scikit-learn's handwritten digits as a data set of real files, and the judgement of samples drawn in their image."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn

from iddpm_ray.data.image import Decoding, decode
from iddpm_ray.evaluate.classifier import LabelledPictures, agreement, classify
from iddpm_ray.evaluate.nearest import median_distance

NUM_CLASSES = 10
NUM_HELD_OUT = 360  # a fifth of the 1,797


@dataclass(frozen=True)
class Judgement:
    """What a classifier of real digits and the nearest real digits say of samples.

    Attributes:
        classifier_accuracy: share of held-out real digits that the classifier reads rightly.
        sample_agreement: share of samples in which it sees the digit that was asked for.
        sample_distance: median distance of a sample to its nearest training digit, in grey levels 0..255.
        held_out_distance: the same for held-out real digits.
        by_class: [10] agreement of the samples of each digit; NaN where none was asked for.
    """

    classifier_accuracy: float
    sample_agreement: float
    sample_distance: float
    held_out_distance: float
    by_class: tuple[float, ...]


def export_digits(directory: Path, *, seed: int = 0) -> None:
    """Writes the digits, 8 x 8 pixels each, as grey `train/{digit}/{number}.png` and `held_out/{digit}/{number}.png`.

    The 360 held-out ones are a function of the seed alone and are in no way part of `train`.
    """
    rows, labels = load_digits(return_X_y=True)
    pictures = np.rint(np.asarray(rows).reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    held_out = held_out_numbers(len(pictures), count=NUM_HELD_OUT, seed=seed)
    for number, (picture, label) in enumerate(zip(pictures, np.asarray(labels), strict=True)):
        folder = directory / ("held_out" if number in held_out else "train") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{number:04d}.png")


def held_out_numbers(total: int, *, count: int, seed: int) -> frozenset[int]:
    """Which of `total` numbered pictures are kept from training: those with the smallest SHA-256 of seed and number."""
    return frozenset(sorted(range(total), key=lambda number: hashlib.sha256(f"{seed} {number}".encode()).digest())[:count])


def load_digit_files(directory: Path, *, size: tuple[int, int]) -> LabelledPictures:
    """The pictures of `directory/{digit}/*.png` in name order, grey, decoded to `size` (height, width) as training decodes them."""
    files = sorted(directory.glob("*/*.png"))
    decoding = Decoding(height=size[0], width=size[1], channels=1)
    pictures = np.stack([decode(file.read_bytes(), decoding, name=str(file)) for file in files])
    return LabelledPictures(torch.from_numpy(pictures), torch.tensor([int(file.parent.name) for file in files]))


def balanced_labels(count: int) -> Tensor:
    """`count` labels 0, 1, .. 9, 0, 1, .. as [count] int64."""
    return torch.arange(count) % NUM_CLASSES


def judge(samples: LabelledPictures, *, classifier: nn.Module, train: LabelledPictures, held_out: LabelledPictures) -> Judgement:
    """Asks a classifier of real digits, and the training digits themselves, about the samples."""
    right = classify(classifier, samples.pictures) == samples.labels
    return Judgement(
        classifier_accuracy=agreement(classifier, held_out),
        sample_agreement=right.double().mean().item(),
        sample_distance=median_distance(samples.pictures, train.pictures),
        held_out_distance=median_distance(held_out.pictures, train.pictures),
        by_class=tuple(right[samples.labels == digit].double().mean().item() for digit in range(NUM_CLASSES)),
    )


def good_enough(judgement: Judgement) -> bool:
    """Whether the classifier can be trusted (95 % of held-out real digits) and sees what was asked for in 95 % of the samples."""
    return judgement.classifier_accuracy >= 0.95 and judgement.sample_agreement >= 0.95


def report(judgement: Judgement, *, count: int) -> str:
    """The judgement of `count` samples in words, the agreement on a line of its own."""
    by_class = " ".join(f"{digit}:{100 * share:.0f}" for digit, share in enumerate(judgement.by_class))
    return "\n".join(
        [
            f"classifier {100 * judgement.classifier_accuracy:.1f} % right on held-out real digits (at least 95 wanted)",
            f"agreement {100 * judgement.sample_agreement:.1f} % of {count} samples",
            f"by digit, in % (at least 95 wanted over all): {by_class}",
            f"median distance to the nearest training digit, in grey levels: samples {judgement.sample_distance:.1f}, "
            f"held-out real digits {judgement.held_out_distance:.1f} (a copy would be at 0)",
        ]
    )
