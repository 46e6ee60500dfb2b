"""Evaluations of a real run and of files: named features, the same numbers however the work was cut or broken off, and plain refusals."""

import json
import math
import re
import runpy
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from train.small_run import NUM_PICTURES, run_url, small_spec, start, write_pictures

from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.checkpoint.scores import best_first, read_scores, write_score
from iddpm_ray.evaluate import gallery
from iddpm_ray.evaluate.assessed_files import assessment_of_files
from iddpm_ray.evaluate.assessed_run import evaluate_checkpoint
from iddpm_ray.evaluate.assessment import assess, write_result
from iddpm_ray.evaluate.bootstrap import Interval
from iddpm_ray.evaluate.chunks import Chunks, claim
from iddpm_ray.evaluate.features import FeatureBatch
from iddpm_ray.evaluate.quality import Quality
from iddpm_ray.evaluate.trained import find_source
from iddpm_ray.sinks.jsonl import read_rows
from iddpm_ray.spec.spec import JobSpec

main = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "evaluate.py"))["main"]
FID = "fid[digits-classifier]"
EVALUATE = {"every": "4 steps", "features": "digits-classifier", "count": 40, "batch": 16}


FILES = ["TMP/pictures.npz", "--reference", "TMP/pictures.npz", "--features", "RUN/evaluations/digits-classifier.npz"]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    root = tmp_path_factory.mktemp("assessment")
    write_pictures(root / "pictures")
    spec = small_spec(root, train={"duration": "8 steps"}, sample={"respacing": "4"}, evaluate=EVALUATE)
    start(spec)
    return spec


def evaluate(*arguments: str, out: Path) -> dict[str, Any]:
    assert main([*arguments, "--workers", "0", "--out", str(out)]) == 0
    return json.loads((out / "quality.json").read_text())


def test_a_run_is_judged_by_its_own_labels_and_every_name_says_so(
    spec: JobSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluate(run_url(spec), out=tmp_path / "out")
    assert list(found["metrics"]) == [f"{name}[digits-classifier]" for name in ("fid", "sfid", "is", "kid", "precision", "recall")]
    assert found["samples"] == 40
    assert found["reference_pictures"] == NUM_PICTURES
    assert found["metrics"][FID] > 0
    told = capsys.readouterr().out
    assert re.search(r"^fid\[digits-classifier\] +\d", told, re.MULTILINE)
    assert not re.search(r"\bfid\b(?!\[)", told)
    assert "biased upwards" in told


def test_the_result_does_not_depend_on_where_the_work_was_broken_off(spec: JobSpec, tmp_path: Path) -> None:
    whole = evaluate(run_url(spec), "--keep-chunks", "--count", "300", "--seed", "5", out=tmp_path / "whole")
    broken = tmp_path / "broken"
    evaluate(run_url(spec), "--keep-chunks", "--count", "300", "--seed", "5", out=broken)
    chunks = sorted((broken / "chunks").iterdir())
    assert len(chunks) == 2
    chunks[0].unlink()
    (broken / "quality.json").unlink()
    again = evaluate(run_url(spec), "--keep-chunks", "--count", "300", "--seed", "5", out=broken)
    assert again["metrics"] == whole["metrics"]
    assert chunks[0].read_bytes() == (tmp_path / "whole" / "chunks" / chunks[0].name).read_bytes()


def test_samples_in_a_file_get_the_numbers_of_the_run_that_drew_them(spec: JobSpec, tmp_path: Path) -> None:
    run = run_url(spec)
    drawn = evaluate(run, "--write-reference", str(tmp_path / "ref.npz"), out=tmp_path / "drawn")
    sample = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "sample.py"))["main"]
    assert sample([run, "--count", "40", "--batch", "16", "--seed", "0", "--out", str(tmp_path / "s"), "--workers", "0"]) == 0
    (file,) = (tmp_path / "s").glob("*.npz")
    classifier = f"{run}/evaluations/digits-classifier.npz"
    arguments = ("--features", classifier, "--reference", str(tmp_path / "ref.npz"))
    found = evaluate(str(file), *arguments, out=tmp_path / "file")
    assert found["metrics"][FID] == pytest.approx(drawn["metrics"][FID], rel=1e-6)
    assert "kid[digits-classifier]" not in found["metrics"]
    assert any("give the reference's pictures" in note for note in found["notes"])
    with np.load(file) as arrays:
        pictures = arrays["arr_0"]
    (tmp_path / "folder").mkdir()
    for number, picture in enumerate(pictures):
        Image.fromarray(picture[:, :, 0]).save(tmp_path / "folder" / f"{number:03d}.png")
    folder = evaluate(str(tmp_path / "folder"), *arguments, out=tmp_path / "of-folder")
    assert folder["metrics"][FID] == pytest.approx(drawn["metrics"][FID], rel=1e-4)


def test_a_set_is_at_no_distance_from_itself(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    arguments = (str(tmp_path / "pictures"), "--reference", str(tmp_path / "pictures"), "--features", "digits-classifier")
    found = evaluate(*arguments, out=tmp_path / "out")["metrics"]
    assert found[FID] == pytest.approx(0, abs=1e-6)
    assert found["precision[digits-classifier]"] == found["recall[digits-classifier]"] == 1
    again = evaluate(*arguments, out=tmp_path / "again")["metrics"]
    assert again == found


def test_a_run_is_held_against_a_folder_of_any_size_of_pictures(spec: JobSpec, tmp_path: Path) -> None:
    pictures = Path(spec.data.path)
    own = evaluate(run_url(spec), out=tmp_path / "own")
    same = evaluate(run_url(spec), "--reference", str(pictures), out=tmp_path / "same")
    assert same["metrics"] == own["metrics"], "the folder holds the very pictures that the run was trained on"
    for path in pictures.rglob("*.png"):
        with Image.open(path) as image:
            (tmp_path / "large").mkdir(exist_ok=True)
            image.resize((16, 16), Image.Resampling.NEAREST).save(tmp_path / "large" / path.name)
    large = evaluate(run_url(spec), "--reference", str(tmp_path / "large"), out=tmp_path / "of-large")
    assert large["reference_pictures"] == NUM_PICTURES


def test_checkpoints_are_scored_once_and_the_best_one_is_found(spec: JobSpec) -> None:
    run = run_url(spec)
    scores = {}
    for checkpoint in complete(run):
        scores[checkpoint.step] = evaluate_checkpoint(spec, run_url=run, checkpoint_url=checkpoint.url)
        write_score(run, checkpoint.name, scores[checkpoint.step])
        before = (Path(run) / "evaluations").rglob("chunk-*")
        assert not [path for path in before if "reference" not in str(path)], "features of samples are deleted once they have been used"
        assert evaluate_checkpoint(spec, run_url=run, checkpoint_url=checkpoint.url) == scores[checkpoint.step]
    assert list(scores) == [8, 4]
    best = min(scores, key=lambda step: scores[step][FID])
    assert best_first(read_scores(run))[0].checkpoint.step == best
    assert find_source(run, which="best").step == best


def test_a_command_can_score_a_checkpoint_too(spec: JobSpec, tmp_path: Path) -> None:
    found = evaluate(run_url(spec), "--step", "4", "--score", "--count", "20", out=tmp_path / "out")
    (row,) = [row for row in read_rows(f"{run_url(spec)}/metrics/evaluations.jsonl") if row["step"] == 4]
    assert row[FID] == found["metrics"][FID]
    assert row["samples"] == 4 * spec.train.global_batch


def test_every_batch_is_drawn_once(spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    draw = gallery.Painter.__call__

    def noting(self: gallery.Painter, indices: torch.Tensor) -> Any:
        begun.append(int(indices[0]))
        return draw(self, indices)

    monkeypatch.setattr(gallery.Painter, "__call__", noting)
    evaluate(run_url(spec), "--count", "400", "--batch", "100", "--respacing", "2", "--keep-chunks", out=tmp_path / "out")
    assert begun == [0, 100, 200, 300], "chunks of 256 would have drawn the third batch twice"
    assert len(list((tmp_path / "out" / "chunks").iterdir())) == 2


def test_features_are_not_rounded_to_tf32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    class Weights:
        def open(self, device: str) -> Any:
            def features(pictures: torch.Tensor) -> FeatureBatch:
                seen.append(torch.backends.cudnn.allow_tf32)
                return FeatureBatch(*(np.zeros((len(pictures), 1), np.float32) for _ in range(3)))

            return features

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # as it is when torch is imported
    np.savez(tmp_path / "pictures.npz", arr_0=np.zeros((8, 8, 8, 1), np.uint8))
    pictures = gallery.file_gallery(str(tmp_path / "pictures.npz"))
    gallery.FeatureWorker(pictures, Weights(), Chunks(str(tmp_path), 8, 8, "npz"), "cpu").open()(0)
    assert seen == [False]
    assert torch.backends.cudnn.allow_tf32


def test_who_hands_out_the_work_needs_no_gpu(tmp_path: Path) -> None:
    opened: list[str] = []

    class Weights:
        def open(self, device: str) -> Any:
            opened.append(device)
            return SimpleNamespace(name="x", digest="y", sizes=(1, 1))

    np.savez(tmp_path / "pictures.npz", arr_0=np.zeros((8, 8, 8, 1), np.uint8))
    file, out = str(tmp_path / "pictures.npz"), str(tmp_path / "out")
    one = assessment_of_files(file, file, features=Weights(), folder=out, gpu=True)
    handed: list[Any] = []
    assert assess(one, lambda chunks, worker, unit: handed.append(worker) is not None) is None
    assert opened == ["cpu"]
    assert handed[0].device == "cuda"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["RUN", "--features", "inception"], "Inception weights .* not part of this package.*--inception"),
        (["RUN", "--reference", "TMP/none.npz"], "cannot read .*none.npz"),
        (["RUN", "--reference", "TMP/inception.npz"], r"mu of .* is float64 \[2048\], the features of digits-classifier need \[64\]"),
        (["RUN", "--reference", "TMP/object.npz"], "mu of .* holds Python objects.* refused"),
        (["RUN", "--count", "2"], r"--count \(got 2\): should be at least 4$"),
        (["RUN", "--inception-sha256", "00"], r"--inception-sha256 \(got 00\): should match .*\{64\}\$$"),
        (["RUN", "--reference", "TMP/single"], r"too few reference pictures to measure against \(got 1\): give at least 2"),
        (["RUN", "--reference", "TMP/cut.npz"], "cut.npz is damaged: arr_0 is no array"),
        (["TMP/cut.npz", *FILES[1:]], "cut.npz is damaged: arr_0 is no array"),
        (["TMP/flipped.npz", *FILES[1:]], "flipped.npz is damaged or cut short"),
        ([*FILES[:2], "TMP/flipped.npz", *FILES[3:]], "flipped.npz is damaged or cut short"),
        (["RUN", "--reference", "TMP/cut-statistics.npz"], "cut-statistics.npz is damaged: mu cannot be read"),
        (["RUN", "--features", "clip"], "--features .*clip"),
        (["RUN", "--step", "5"], "no checkpoint of that step"),
        (["RUN", "--ema", "0.5"], "no such average"),
        (["RUN", "--guidance", "3"], "guidance"),
        (["TMP/empty"], "no complete checkpoint"),
        (["TMP/nowhere"], "no complete checkpoint"),
        (["TMP/object.npz", "--reference", "TMP/inception.npz", "--features", "RUN/evaluations/digits-classifier.npz"], "holds mu, sigma"),
        (["TMP/pictures.npz"], "--reference"),
        (["TMP/pictures.npz", "--reference", "TMP/inception.npz"], "Inception weights"),
        (
            ["TMP/pictures.npz", "--reference", "TMP/inception.npz", "--features", "digits-classifier"],
            "reference folder with a folder a class",
        ),
        (["TMP/pictures.npz", "--reference", "TMP/inception.npz", "--guidance", "2"], "--guidance"),
        (["RUN", "--out", "TMP/bad.npz/x"], "--out is not writable"),
        (["TMP/pictures.npz", "--reference", "TMP/pictures.npz", "--out", "TMP/bad.npz/x"], "--out is not writable"),
        (["RUN", "--write-reference", "TMP/bad.npz/x.npz"], "--write-reference is not writable"),
        (
            ["RUN", "--inception", "TMP/none.pth"],
            "--inception .*none.pth.*: has no effect where pictures are compared by digits-classifier",
        ),
        ([*FILES, "--inception-sha256", "00"], "--inception-sha256 .*00.*: has no effect where pictures are compared by .*classifier.npz"),
        ([*FILES, "--batch", "7"], "--batch: is for runs that draw samples"),
        (["TMP/bad.npz", "--reference", "TMP/inception.npz", "--features", "RUN/evaluations/digits-classifier.npz"], "no npz"),
    ],
)
def test_what_cannot_be_judged_is_said_in_one_line(
    spec: JobSpec, tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (Path(run_url(spec)) / "evaluations" / "digits-classifier.npz").exists():
        evaluate(run_url(spec), out=tmp_path / "first")
    np.savez(tmp_path / "inception.npz", mu=np.zeros(2048), sigma=np.eye(2048))
    np.savez(tmp_path / "object.npz", mu=np.array([object()]), sigma=np.eye(1))
    np.savez(tmp_path / "pictures.npz", arr_0=np.zeros((8, 8, 8, 1), np.uint8))
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    (tmp_path / "empty").mkdir()
    (tmp_path / "single").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "single" / "a.png")
    header = np.lib.format.magic(1, 0) + b"\x10\0{'descr': '|u1',("
    for name, members in (("cut", {"arr_0": header}), ("cut-statistics", {"mu": header, "sigma": header})):
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w") as archive:
            for member, content in members.items():
                archive.writestr(f"{member}.npy", content)
    flipped = bytearray((tmp_path / "pictures.npz").read_bytes())
    flipped[400] ^= 1
    (tmp_path / "flipped.npz").write_bytes(flipped)
    capsys.readouterr()
    given = [word.replace("RUN", run_url(spec)).replace("TMP", str(tmp_path)) for word in arguments]
    assert main(["--out", str(tmp_path / "out"), *given, "--workers", "0"]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1, error
    assert re.search(says, error), error


def test_a_reference_that_cannot_be_written_is_said_before_anything_is_drawn(
    spec: JobSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(run_url(spec), "--write-reference", str(tmp_path / "ref.npz"), out=tmp_path / "first")
    with np.load(tmp_path / "ref.npz") as whole:
        np.savez(tmp_path / "pooled.npz", mu=whole["mu"], sigma=whole["sigma"])
    monkeypatch.setattr(gallery.Painter, "__init__", lambda self, job: pytest.fail("the networks are loaded"))
    capsys.readouterr()
    words = ["--reference", str(tmp_path / "pooled.npz"), "--write-reference", str(tmp_path / "again.npz"), "--seed", "7", "--workers", "0"]
    assert main([run_url(spec), *words, "--out", str(tmp_path / "out")]) == 2
    assert "pooled.npz has no mu_s and sigma_s to write: give its pictures with --reference" in capsys.readouterr().err
    assert not (tmp_path / "again.npz").exists()


def test_numbers_of_four_pictures_are_json_and_come_without_warnings(spec: JobSpec, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        evaluate(run_url(spec), "--count", "4", out=tmp_path / "out")
    found = json.loads((tmp_path / "out" / "quality.json").read_text(), parse_constant=pytest.fail)
    low, high = found["intervals"]["kid[digits-classifier]"]
    assert low <= found["metrics"]["kid[digits-classifier]"] <= high


def test_what_is_no_number_or_has_no_interval_is_null(spec: JobSpec, tmp_path: Path) -> None:
    metrics = {"fid": 1.0, "kid": math.nan, "precision": 0.5}
    intervals = {"kid": Interval(math.nan, None, None), "precision": Interval(0.5, 0.25, 0.75)}
    quality = Quality(metrics, intervals, (), 4)
    one: Any = SimpleNamespace(folder=str(tmp_path))
    found: Any = SimpleNamespace(
        quality=quality, reference=SimpleNamespace(count=4), features=SimpleNamespace(name="x", digest="y", sizes=(1, 1))
    )
    claim(str(tmp_path), {"job": "evaluate"}, count=4, size=4, extension="npz")
    said = json.loads(Path(write_result(found, one)).read_text(), parse_constant=pytest.fail)
    assert said["metrics"] == {"fid": 1.0, "kid": None, "precision": 0.5}
    assert said["intervals"] == {"kid": None, "precision": [0.25, 0.75]}
    assert "kid        nan  (no interval: too few pictures)" in quality.describe()


def test_a_run_without_labels_has_no_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pictures(tmp_path / "pictures")
    spec = small_spec(tmp_path, data={"labels": "none"}, model={"class_cond": False}, train={"duration": "2 steps"})
    start(spec)
    assert main([run_url(spec), "--features", "digits-classifier", "--workers", "0"]) == 2
    assert "needs labelled pictures" in capsys.readouterr().err


def test_pictures_of_another_size_than_the_classifier_knows_are_refused(
    spec: JobSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(run_url(spec), "--write-reference", str(tmp_path / "ref.npz"), out=tmp_path / "out")
    np.savez(tmp_path / "large.npz", arr_0=np.zeros((8, 16, 16, 1), np.uint8))
    capsys.readouterr()
    classifier = f"{run_url(spec)}/evaluations/digits-classifier.npz"
    arguments = [str(tmp_path / "large.npz"), "--reference", str(tmp_path / "ref.npz"), "--features", classifier, "--workers", "0"]
    assert main(arguments) == 2
    assert "knows pictures of [1, 8, 8]" in capsys.readouterr().err
    assert torch.is_grad_enabled()
