"""The demo judges itself fairly: nothing held out is trained on, copies are seen as copies, wrong digits as wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from iddpm_ray.evaluate import digits
from iddpm_ray.evaluate.classifier import LabelledPictures, train_classifier
from iddpm_ray.evaluate.digits import Judgement


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("digits")
    digits.export_digits(directory)
    return directory


@pytest.fixture(scope="module")
def real(folder: Path) -> dict[str, LabelledPictures]:
    return {name: digits.load_digit_files(folder / name, size=(16, 16)) for name in ("train", "held_out")}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def numbers(directory: Path) -> set[str]:
    return {file.stem for file in directory.rglob("*.png")}


def test_held_out_digits_are_in_no_way_part_of_training(folder: Path) -> None:
    train, held_out = numbers(folder / "train"), numbers(folder / "held_out")
    assert (len(train), len(held_out)) == (1437, 360)
    assert not train & held_out
    assert len(train | held_out) == 1797


def test_files_are_the_digits_themselves(folder: Path) -> None:
    source = load_digits()
    for file in [*(folder / "train" / "7").iterdir(), *(folder / "held_out" / "0").iterdir()]:
        picture = Image.open(file)
        assert (picture.format, picture.mode, picture.size) == ("PNG", "L", (8, 8))
        number = int(file.stem)
        assert source.target[number] == int(file.parent.name)
        np.testing.assert_allclose(np.asarray(picture) * (16 / 255), source.images[number], atol=0.04)


def test_the_split_is_a_function_of_the_seed() -> None:
    first = digits.held_out_numbers(100, count=20, seed=3)
    assert len(first) == 20
    assert first == digits.held_out_numbers(100, count=20, seed=3)
    assert first != digits.held_out_numbers(100, count=20, seed=4)


def test_every_digit_is_in_both_parts(real: dict[str, LabelledPictures]) -> None:
    for data in real.values():
        assert data.pictures.shape[1:] == (1, 16, 16)
        assert torch.bincount(data.labels, minlength=10).min() >= 20


def test_labels_to_draw_are_balanced() -> None:
    assert torch.bincount(digits.balanced_labels(200)).tolist() == [20] * 10


def test_real_digits_are_judged_good_and_right(real: dict[str, LabelledPictures]) -> None:
    held_out = real["held_out"]
    classifier = train_classifier(real["train"], num_classes=digits.NUM_CLASSES)
    judgement = digits.judge(held_out, classifier=classifier, train=real["train"], held_out=held_out)
    assert judgement.classifier_accuracy == judgement.sample_agreement >= 0.95
    assert judgement.sample_distance == judgement.held_out_distance > 5
    assert digits.good_enough(judgement)
    copies = LabelledPictures(real["train"].pictures[:100], (real["train"].labels[:100] + 1) % 10)
    wrong = digits.judge(copies, classifier=classifier, train=real["train"], held_out=held_out)
    assert wrong.sample_agreement < 0.05
    assert wrong.sample_distance == 0
    assert not digits.good_enough(wrong)


@pytest.mark.parametrize(("accuracy", "agreement", "good"), [(0.95, 0.95, True), (0.99, 0.945, False), (0.94, 1.0, False)])
def test_both_shares_must_reach_95_percent(accuracy: float, agreement: float, good: bool) -> None:
    assert digits.good_enough(Judgement(accuracy, agreement, 20.0, 25.0, (agreement,) * 10)) is good


def test_the_agreement_has_a_line_of_its_own() -> None:
    text = digits.report(Judgement(0.9917, 0.985, 21.04, 27.3, (1.0,) * 9 + (0.85,)), count=200)
    assert "agreement 98.5 % of 200 samples" in text.splitlines()
    assert "samples 21.0, held-out real digits 27.3" in text
