"""Metrics of quality against closed forms and against torchmetrics; features say whose they are in every name."""

import math
import warnings
import zipfile
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from iddpm_ray.errors import DataError
from iddpm_ray.evaluate import quality
from iddpm_ray.evaluate.features import FeatureBatch, metric_name
from iddpm_ray.evaluate.frechet import Gaussian, frechet_distance, sums_in_order, sums_of
from iddpm_ray.evaluate.inception_score import inception_score
from iddpm_ray.evaluate.kernel_distance import kernel_distance
from iddpm_ray.evaluate.manifold import inside, precision_recall
from iddpm_ray.evaluate.quality import measure, reference_of
from iddpm_ray.evaluate.reference import read_reference, write_reference

RNG = np.random.default_rng(0)


def features(count: int, *, size: int = 6, shift: float = 0.0, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(count, size)) + shift).astype(np.float32)


def batches(count: int, *, shift: float = 0.0, seed: int = 0, sizes: Iterable[int] = (7,)) -> Callable[[], list[FeatureBatch]]:
    """Chunks of features; all sizes in turn."""
    pooled, spatial, logits = (features(count, size=size, shift=shift, seed=seed + size) for size in (6, 4, 10))
    cuts, turn = [0], list(sizes)
    while cuts[-1] < count:
        cuts.append(min(count, cuts[-1] + turn[len(cuts) % len(turn)]))
    parts = [FeatureBatch(pooled[a:b], spatial[a:b], logits[a:b]) for a, b in pairwise(cuts)]
    return lambda: parts


class Named:
    """Features by name alone."""

    name, digest, sizes = "digits-classifier", "ab" * 32, (6, 4)

    def __call__(self, pictures: Tensor) -> FeatureBatch:
        raise NotImplementedError


def test_the_distance_of_two_gaussians_is_the_closed_form() -> None:
    one = Gaussian(np.array([1.0, 2.0, 3.0]), np.diag([4.0, 9.0, 1.0]))
    other = Gaussian(np.array([1.0, 0.0, 3.5]), np.diag([1.0, 25.0, 1.0]))
    assert frechet_distance(one, other) == pytest.approx(4.0 + 0.25 + (2 - 1) ** 2 + (3 - 5) ** 2)
    turn = np.linalg.qr(RNG.normal(size=(3, 3)))[0]
    turned = [Gaussian(turn @ g.mean, turn @ g.covariance @ turn.T) for g in (one, other)]
    assert frechet_distance(*turned) == pytest.approx(frechet_distance(one, other))
    a, b = RNG.normal(size=(3, 3)), RNG.normal(size=(3, 3))
    s, t = a @ a.T, b @ b.T
    root = np.sqrt(np.linalg.eigvals(s @ t).real.clip(min=0)).sum()
    zero = np.zeros(3)
    assert frechet_distance(Gaussian(zero, s), Gaussian(zero, t)) == pytest.approx(np.trace(s) + np.trace(t) - 2 * root, rel=1e-7)


def test_equal_sets_are_at_distance_nought_also_where_the_covariance_has_no_full_rank() -> None:
    for count in (200, 3):
        own = sums_of(features(count)).gaussian()
        assert frechet_distance(own, own) == pytest.approx(0.0, abs=1e-7)


def test_sums_do_not_depend_on_how_pictures_were_cut_but_for_rounding_and_on_nothing_else() -> None:
    whole = features(500, shift=100.0)
    direct = sums_of(whole)
    merged = sums_in_order(np.split(whole, [3, 10, 11, 300]))
    assert merged.count == 500
    np.testing.assert_allclose(merged.mean, direct.mean, rtol=1e-12)
    np.testing.assert_allclose(merged.scatter, np.cov(whole.T.astype(np.float64)) * 499, rtol=1e-9)
    again = sums_in_order(np.split(whole, [3, 10, 11, 300]))
    assert np.array_equal(merged.scatter, again.scatter)


def test_the_kernel_distance_is_unbiased_and_its_interval_holds_the_truth() -> None:
    """Both sets from one distribution: the truth is nought, met by about 95 % of the intervals and by the mean."""
    found = [kernel_distance(features(60, seed=n), features(50, seed=1000 + n), seed=n) for n in range(100)]
    values = np.array([one.value for one in found])
    assert abs(values.mean()) < 4 * values.std() / 10
    assert (values < 0).any()
    far = kernel_distance(features(60), features(60, shift=1.0, seed=1))
    assert far.low > 0.5
    assert far.low < far.value < far.high


def test_replicas_of_one_picture_alone_tell_no_kernel_distance() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few = [kernel_distance(features(4, seed=n), features(4, seed=50 + n), seed=n) for n in range(20)]
        two = kernel_distance(features(2), features(2, seed=1), replicas=60)
    assert all(one.low is not None and one.high is not None and one.low <= one.high for one in few)
    assert (two.low, two.high) == (None, None), "a quarter of the replicas have a pair on each side"
    assert math.isfinite(two.value)


def test_precision_and_recall_know_copies_and_strangers() -> None:
    x = features(40)
    same = precision_recall(x, x)
    assert (same.precision.value, same.recall.value) == (1.0, 1.0)
    apart = precision_recall(x, features(40, shift=50.0, seed=1))
    assert (apart.precision.value, apart.recall.value) == (0.0, 0.0)
    narrow = precision_recall(0.05 * features(200, seed=3), features(200, seed=4))
    assert narrow.precision.value > 0.9
    assert narrow.recall.value < 0.1
    assert narrow.recall.low <= narrow.recall.value <= narrow.recall.high


def test_the_manifold_is_that_of_the_third_neighbour() -> None:
    line = np.array([[0.0], [1.0], [2.0], [3.0], [10.0]])
    # Radii are the third-nearest distances: 3, 2, 2, 3, 9.
    assert inside(np.array([[-2.9], [-3.1], [18.9], [19.1]]), manifold_of=line).tolist() == [True, False, True, False]


def test_the_inception_score_is_the_number_of_sure_and_even_classes() -> None:
    sure = np.full((100, 10), -1000.0)
    sure[np.arange(100), np.arange(100) % 10] = 0.0
    assert inception_score([sure[:33], sure[33:]], count=100).mean == pytest.approx(10.0)
    assert inception_score([np.zeros((100, 10))], count=100).mean == pytest.approx(1.0)
    assert inception_score([np.zeros((3, 10))], count=3).splits == 3


class _Given(nn.Module):
    """Features that torchmetrics takes from the pictures it is given: their first numbers."""

    num_features = 6

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :6].float()


def _as_pictures(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([values, np.zeros((len(values), 6), dtype=np.float32)], axis=1)).view(-1, 3, 2, 2)


@pytest.mark.filterwarnings("ignore")
def test_all_metrics_agree_with_torchmetrics(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchmetrics")
    from torchmetrics.image.fid import FrechetInceptionDistance
    from torchmetrics.image.inception import InceptionScore
    from torchmetrics.image.kid import KernelInceptionDistance

    fake, real = features(120, shift=0.3), features(120, seed=5)
    fid = FrechetInceptionDistance(feature=_Given(), input_img_size=(3, 2, 2))
    fid.set_dtype(torch.float64)
    kid = KernelInceptionDistance(feature=_Given(), subsets=1, subset_size=120)
    for metric in (fid, kid):
        metric.update(_as_pictures(real), real=True)
        metric.update(_as_pictures(fake), real=False)
    ours = frechet_distance(sums_of(fake).gaussian(), sums_of(real).gaussian())
    assert ours == pytest.approx(float(fid.compute()), rel=1e-5)
    assert kernel_distance(fake, real).value == pytest.approx(float(kid.compute()[0]), rel=1e-4)
    monkeypatch.setattr("iddpm_ray.evaluate.inception_score.SPLITS", 1)
    score = InceptionScore(feature=_Given(), splits=1)
    score.update(_as_pictures(fake))
    assert inception_score([fake], count=120).mean == pytest.approx(float(score.compute()[0]), rel=1e-5)


def test_the_inception_score_of_one_split_is_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = features(120, size=10, shift=0.3)
    monkeypatch.setattr("iddpm_ray.evaluate.inception_score.SPLITS", 1)
    p = torch.from_numpy(logits).double().softmax(1)
    closed = (p * (p.log() - p.mean(0).log())).sum(1).mean().exp()
    assert inception_score([logits[:50], logits[50:]], count=120).mean == pytest.approx(float(closed))


def test_every_metric_says_whose_features_it_is_of() -> None:
    assert metric_name("fid", "inception") == "fid"
    found = measure(batches(60, shift=0.2), reference_of(batches(80, seed=50), count=80), count=60, features="digits-classifier")
    names = ["fid", "sfid", "is", "kid", "precision", "recall"]
    assert list(found.metrics) == [f"{name}[digits-classifier]" for name in names]
    text = found.describe()
    assert "fid " not in text
    assert "fid[digits-classifier] of 60 samples against 80 reference pictures is biased upwards" in text
    assert set(found.intervals) == {f"{name}[digits-classifier]" for name in ("kid", "precision", "recall")}


def test_better_samples_have_better_numbers() -> None:
    reference = reference_of(batches(200, seed=50), count=200)
    near, far = (measure(batches(200, shift=shift, seed=9), reference, count=200, features="x") for shift in (0.1, 1.5))
    assert near.metrics["fid[x]"] < far.metrics["fid[x]"]
    assert near.metrics["kid[x]"] < far.metrics["kid[x]"]
    assert near.metrics["precision[x]"] > far.metrics["precision[x]"]


def test_the_bias_of_few_samples_is_said_and_is_about_right() -> None:
    reference = reference_of(batches(20000, seed=77, sizes=(5000,)), count=20000)
    few = measure(batches(60, seed=3), reference, count=60, features="x")
    said = float(few.notes[0].split("so about ")[1].split()[0])
    assert 0.3 * few.metrics["fid[x]"] < said < 3 * few.metrics["fid[x]"], few.notes[0]


def test_large_sets_are_compared_by_a_random_part_of_their_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "MOST_POINTS", 50)
    whole = batches(200, seed=1, sizes=(33,))
    points = reference_of(whole, count=200, seed=4).points
    assert points is not None
    pooled = np.concatenate([part.pooled for part in whole()])
    where = [int(np.flatnonzero((pooled == point).all(axis=1))[0]) for point in points]
    assert len(set(where)) == 50
    assert where == sorted(where)
    assert max(where) > 150
    assert not np.array_equal(points, reference_of(whole, count=200, seed=5).points)


def test_a_reference_comes_back_as_it_was_written(tmp_path: Path) -> None:
    reference = reference_of(batches(80), count=80)
    write_reference(str(tmp_path / "ref.npz"), reference, features=Named())
    back = read_reference(str(tmp_path / "ref.npz"), features=Named())
    assert back.count == 80
    assert back.points is None
    assert back.spatial is not None
    assert np.array_equal(back.pooled.covariance, reference.pooled.covariance)
    with np.load(tmp_path / "ref.npz", allow_pickle=False) as arrays:
        assert {"mu", "sigma", "mu_s", "sigma_s"} <= set(arrays.files)
    found = measure(batches(60), back, count=60, features="digits-classifier")
    assert list(found.metrics) == [f"{name}[digits-classifier]" for name in ("fid", "sfid", "is")]
    assert "give the reference's pictures" in found.describe()


def test_statistics_of_adm_s_evaluator_are_read(tmp_path: Path) -> None:
    own = sums_of(features(40)).gaussian()
    np.savez(tmp_path / "adm.npz", mu=own.mean.astype(np.float32), sigma=own.covariance, arr_0=np.zeros((2, 4, 4, 3), np.uint8))
    back = read_reference(str(tmp_path / "adm.npz"), features=Named())
    assert back.spatial is None
    assert back.count is None
    np.testing.assert_allclose(back.pooled.mean, own.mean, rtol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"mu": np.zeros(2048), "sigma": np.eye(2048)}, r"mu .* is float64 \[2048\], the features of digits-classifier need \[6\]"),
        ({"mu": np.zeros(6), "sigma": np.eye(5)}, r"sigma .*\[5, 5\]"),
        ({"mu": np.zeros(6)}, r"holds mu: give an npz with mu, sigma"),
        ({"mu": np.zeros(6), "sigma": np.eye(6), "mu_s": np.zeros(4)}, "mu_s and no sigma_s"),
        ({"mu": np.full(6, math.nan), "sigma": np.eye(6)}, "not finite"),
        ({"mu": np.zeros(6), "sigma": np.eye(6), "features": np.array("inception " + "cd" * 32)}, r"of inception \(cd.*not of digits"),
        ({"mu": np.zeros(6), "sigma": -np.eye(6)}, "sigma of .* is no covariance: it is not symmetric, or a variance is below nought"),
        ({"mu": np.zeros(6), "sigma": np.eye(6) + np.eye(6, k=1)}, "sigma of .* is no covariance"),
        ({"mu": np.zeros(6), "sigma": np.eye(6), "count": np.array("foo")}, r"count of .* is <U3 \[\], one whole number is needed"),
        ({"mu": np.zeros(6), "sigma": np.eye(6), "count": np.array(math.nan)}, r"count of .* is float64 \[\], one whole number"),
        ({"mu": np.zeros(6), "sigma": np.eye(6), "count": np.zeros(2, int)}, r"count of .* is int64 \[2\], one whole number"),
        ({"mu": np.array([object()]), "sigma": np.eye(6)}, "mu of .* holds Python objects"),
    ],
)
def test_a_reference_that_does_not_fit_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    np.savez(tmp_path / "ref.npz", **arrays)
    with pytest.raises(DataError, match=says):
        read_reference(str(tmp_path / "ref.npz"), features=Named())


def test_what_is_no_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ref.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(DataError, match="no npz file"):
        read_reference(str(tmp_path / "ref.npz"), features=Named())
    with pytest.raises(DataError, match="cannot read"):
        read_reference(str(tmp_path / "none.npz"), features=Named())
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("mu", "text")
        archive.writestr("sigma", "text")
    with pytest.raises(DataError, match=r"text\.npz is damaged: mu is no array"):
        read_reference(str(tmp_path / "text.npz"), features=Named())


def test_a_covariance_that_rounding_has_bent_is_taken(tmp_path: Path) -> None:
    bent = (np.diag([1.0, 1.0, 1.0, 1.0, 1.0, -1e-6]) + 1e-5 * np.eye(6, k=1)).astype(np.float32)
    np.savez(tmp_path / "ref.npz", mu=np.zeros(6), sigma=bent, count=np.array(-1))
    assert read_reference(str(tmp_path / "ref.npz"), features=Named()).count is None
