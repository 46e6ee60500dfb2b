"""The judge learns what can be learned, the same way every time, and leaves the process as it found it."""

import pytest
import torch

from iddpm_ray.errors import DataError
from iddpm_ray.evaluate.classifier import LabelledPictures, agreement, classify, train_classifier


def halves(count: int) -> LabelledPictures:
    """Class 0 is bright on the left, class 1 on the right."""
    noise = torch.randint(0, 60, (count, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = torch.arange(count) % 2
    noise[labels == 0, :, :, :4] += 150
    noise[labels == 1, :, :, 4:] += 150
    return LabelledPictures(noise, labels)


def test_it_learns_and_is_reproducible_and_disturbs_no_draw() -> None:
    torch.set_num_threads(1)
    data = halves(200)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = train_classifier(data, num_classes=2, epochs=3)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
    assert agreement(first, data) > 0.98
    torch.rand(7)
    second = train_classifier(data, num_classes=2, epochs=3)
    assert all(torch.equal(one, two) for one, two in zip(first.parameters(), second.parameters(), strict=True))


def test_agreement_is_the_share_of_right_answers() -> None:
    data = halves(200)
    network = train_classifier(data, num_classes=2, epochs=3)
    seen = classify(network, data.pictures)
    half_wrong = torch.where(torch.arange(200) < 100, seen, 1 - seen)
    assert agreement(network, LabelledPictures(data.pictures, half_wrong)) == 0.5


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(DataError, match="no pictures"):
        train_classifier(LabelledPictures(torch.zeros(0, 1, 8, 8, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)), num_classes=2)
