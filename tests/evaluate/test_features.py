"""Features say whose they are; weights are only ever those that were asked for, and never fetched."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

from iddpm_ray.errors import DataError, SpecError
from iddpm_ray.evaluate import features
from iddpm_ray.evaluate.classifier import LabelledPictures, agreement, train_classifier
from iddpm_ray.evaluate.features import ClassifierFile, InceptionFile, inception_file, save_classifier
from iddpm_ray.evaluate.inception import Inception, resize_as_tensorflow


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of the right shape that has learned nothing."""
    path = tmp_path_factory.mktemp("inception") / "weights.pth"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Inception()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 2)
    torch.save(network.state_dict(), path)
    return path


def labelled(count: int = 60) -> LabelledPictures:
    """Bright upper or lower halves."""
    labels = torch.arange(count) % 2
    pictures = torch.randint(0, 80, (count, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for picture, label in zip(pictures, labels, strict=True):
        picture[0, 4 * int(label) : 4 * int(label) + 4] += 150
    return LabelledPictures(pictures, labels)


def test_inception_weights_are_loaded_by_their_checksum_and_named_by_it(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    opened = inception_file(str(weights), digest.upper()).open("cpu")
    assert opened.name == f"inception-{digest[:8]}", "only the published weights may be called inception"
    assert opened.sizes == (2048, 2023)
    pictures = torch.randint(0, 256, (2, 3, 16, 12), dtype=torch.uint8)
    batch = opened(pictures)
    assert (batch.pooled.shape, batch.spatial.shape, batch.logits.shape) == ((2, 2048), (2, 2023), (2, 1008))
    grey = pictures[:, :1]
    assert (opened(grey).pooled == opened(grey.repeat(1, 3, 1, 1)).pooled).all()
    monkeypatch.setattr(features, "PUBLISHED", digest[:8])
    assert inception_file(str(weights), digest).open("cpu").name == "inception"


def test_the_network_is_that_of_torch_fidelity(weights: Path) -> None:
    """Where that package can be imported, which needs a torchvision built for this torch."""
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except (ImportError, RuntimeError) as error:
        pytest.skip(str(error))
    theirs = FeatureExtractorInceptionV3("x", ["2048", "logits_unbiased"], feature_extractor_weights_path=str(weights))
    pictures = torch.randint(0, 256, (2, 3, 40, 32), dtype=torch.uint8)
    ours = InceptionFile(str(weights), hashlib.sha256(weights.read_bytes()).hexdigest()).open("cpu")(pictures)
    pooled, logits = theirs(pictures)
    torch.testing.assert_close(torch.from_numpy(ours.pooled), pooled, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.from_numpy(ours.logits), logits, rtol=1e-5, atol=1e-6)


def test_pictures_are_resized_from_their_corner() -> None:
    row = torch.tensor([[[[0.0, 10.0]]]])
    assert resize_as_tensorflow(row, side=4)[0, 0, 0].tolist() == [0.0, 5.0, 10.0, 10.0]
    picture = torch.rand(1, 3, 299, 299)
    assert torch.equal(resize_as_tensorflow(picture, side=299), picture)


def test_without_weights_the_error_says_what_to_do(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"not part of this package.*--inception.*nothing is downloaded.*digits-classifier"):
        inception_file(None, None)
    with pytest.raises(SpecError, match=r"without a checksum.*sha256sum"):
        inception_file(str(weights), None)
    with pytest.raises(DataError, match=r"no Inception weights: cannot read .*none\.pth"):
        inception_file(str(tmp_path / "none.pth"), "0" * 64).open("cpu")
    with pytest.raises(DataError, match=r"has SHA-256 [0-9a-f]{64}"):
        inception_file(str(weights), "0" * 64).open("cpu")
    torch.save({"conv.weight": torch.zeros(3)}, tmp_path / "other.pth")
    digest = hashlib.sha256((tmp_path / "other.pth").read_bytes()).hexdigest()
    with pytest.raises(DataError, match="holds no weights of the Inception network"):
        inception_file(str(tmp_path / "other.pth"), digest).open("cpu")


def test_weights_with_code_in_them_are_refused(tmp_path: Path) -> None:
    torch.save({"x": print}, tmp_path / "code.pth")
    digest = hashlib.sha256((tmp_path / "code.pth").read_bytes()).hexdigest()
    with pytest.raises(Exception, match="was refused"):
        inception_file(str(tmp_path / "code.pth"), digest).open("cpu")


def test_a_classifier_comes_back_as_it_was_and_knows_its_name(tmp_path: Path) -> None:
    data = labelled()
    opened = save_classifier(str(tmp_path / "c.npz"), data, name="halves-classifier", num_classes=2).open("cpu")
    assert opened.name == "halves-classifier"
    assert opened.sizes == (64, 7 * 2 * 2)
    batch = opened(data.pictures)
    assert batch.pooled.shape == (60, 64)
    assert (batch.logits.argmax(axis=1) == data.labels.numpy()).mean() > 0.9
    direct = train_classifier(data, num_classes=2)
    assert agreement(direct, data) == agreement(opened.network, data)
    again = save_classifier(str(tmp_path / "again.npz"), data, name="halves-classifier", num_classes=2).open("cpu")
    assert torch.equal(torch.from_numpy(again(data.pictures).pooled), torch.from_numpy(batch.pooled))
    other = save_classifier(str(tmp_path / "other.npz"), data, name="halves-classifier", num_classes=2, seed=1).open("cpu")
    assert other.digest != opened.digest
    with pytest.raises(DataError, match=r"knows pictures of \[1, 8, 8\] \(got \[3, 8, 8\]\)"):
        opened(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


def test_what_is_no_classifier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the classifier"):
        ClassifierFile(str(tmp_path / "none.npz")).open("cpu")
    (tmp_path / "bad.npz").write_bytes(b"no")
    with pytest.raises(DataError, match="damaged"):
        ClassifierFile(str(tmp_path / "bad.npz")).open("cpu")
    with pytest.raises(DataError, match="fewer than 4 pixels"):
        save_classifier(
            str(tmp_path / "x.npz"), LabelledPictures(torch.zeros(2, 1, 3, 3).byte(), torch.zeros(2).long()), name="x", num_classes=1
        )
