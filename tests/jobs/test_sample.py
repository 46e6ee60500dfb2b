"""The sampling program: every form of its output is what other programs read, and every wrong request is one line."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from evaluate.drawn_runs import LARGE, SUPERRES, trained
from PIL import Image

from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.data import manifest as manifests

ROOT = Path(__file__).parents[2]
sample = runpy.run_path(str(ROOT / "jobs" / "sample.py"))["main"]
HERE = ["--workers", "0", "--respacing", "4", "--batch", "4"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    trained(folder, "digits")
    trained(folder, "other", data={"image_size": 4})
    trained(folder, "plain", data={"labels": "none"}, model={"class_cond": False})
    trained(folder, "rounded", optim={"precision": "bf16"})
    trained(folder, "averaged", sample={"ema": 0.9})
    guided = {"method": "ddim", "eta": 0.5, "guidance": 2.0, "guidance_interval": [2, 9]}
    trained(folder, "guided", model={"class_dropout": 0.2}, sample=guided)
    trained(folder, "enlarging", model=SUPERRES, data=LARGE)
    return folder


def run(root: Path, name: str = "digits") -> str:
    return str(root / "runs" / name)


def arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(folder / name, allow_pickle=False) as found:
        return dict(found)


def test_npz_png_and_parquet_hold_the_same_pictures(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [run(root), "--count", "10", *HERE]
    assert sample([*common, "--out", str(tmp_path / "npz"), "--grid", "6", "--keep-chunks"]) == 0
    told = capsys.readouterr().out
    assert f"10 pictures of step-00000004.a0001: {tmp_path}/npz/samples_10x8x8x1.npz" in told
    assert f"the first 6: {tmp_path}/npz/grid.png" in told
    found = arrays(tmp_path / "npz", "samples_10x8x8x1.npz")
    assert found["arr_0"].dtype == np.uint8
    assert found["arr_1"].tolist() == list(range(10))
    with Image.open(tmp_path / "npz" / "grid.png") as grid:
        assert grid.size == (6 * 34 + 2, 36)
    assert len(list((tmp_path / "npz" / "chunks").iterdir())) == 3
    for form in ("png", "parquet"):
        assert sample([*common, "--out", str(tmp_path / form), "--format", form]) == 0
        assert not (tmp_path / form / "chunks").exists()
    for number, picture in enumerate(found["arr_0"]):
        with Image.open(tmp_path / "png" / "samples" / str(number) / f"{number:08d}.png") as image:
            assert np.array_equal(np.asarray(image), picture[..., 0])
    table = pq.read_table(tmp_path / "parquet" / "samples.parquet")
    assert table.column("label").to_pylist() == list(range(10))
    for form, labels in (("png", "folder"), ("parquet", "column")):
        folder = tmp_path / form / ("samples" if form == "png" else "samples.parquet")
        assert manifests.build(str(folder), labels=labels, image_column="image", label_column="label").num_rows == 10


def test_a_run_without_classes_leaves_no_labels(root: Path, tmp_path: Path) -> None:
    assert sample([run(root, "plain"), "--count", "3", *HERE, "--out", str(tmp_path)]) == 0
    assert list(arrays(tmp_path, "samples_3x8x8x1.npz")) == ["arr_0"]
    assert sample([run(root, "plain"), "--count", "3", *HERE, "--out", str(tmp_path / "png"), "--format", "png"]) == 0
    assert sorted(path.name for path in (tmp_path / "png" / "samples").iterdir()) == [f"{number:08d}.png" for number in range(3)]


def test_the_result_goes_into_the_run_under_a_name_of_its_own(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for extra in ([], ["--seed", "1"], []):
        assert sample([run(root), "--count", "2", *HERE, *extra]) == 0
    folders = list(Path(run(root), "generated").iterdir())
    assert len(folders) == 2
    assert all(folder.name.startswith("step-00000004.a0001-") for folder in folders)
    assert capsys.readouterr().err.count("2 of 2 pictures written") == 2  # the third time there was nothing to do


@pytest.mark.parametrize(("form", "name"), [("npz", "samples_2x8x8x1.npz"), ("npz", "grid.png"), ("png", "samples")])
def test_what_was_deleted_is_made_again(root: Path, tmp_path: Path, form: str, name: str) -> None:
    command = [run(root), "--count", "2", *HERE, "--out", str(tmp_path), "--format", form, "--grid", "2"]
    assert sample(command) == 0
    before = {path: path.read_bytes() for path in (tmp_path / name).rglob("*.png")} or (tmp_path / name).read_bytes()
    shutil.rmtree(tmp_path / name) if form == "png" else (tmp_path / name).unlink()
    assert sample(command) == 0
    assert before == ({path: path.read_bytes() for path in (tmp_path / name).rglob("*.png")} or (tmp_path / name).read_bytes())


def test_a_dry_run_says_what_would_be_drawn_and_starts_nothing(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        run(root),
        "--dry-run",
        "--count",
        "7",
        "--classes",
        "1,2",
        "--ema",
        "0.9",
        "--method",
        "dpmpp",
        "--out",
        str(tmp_path / "x"),
    ]
    assert sample(command) == 0
    said = json.loads(capsys.readouterr().out)
    wanted = {"count": 7, "classes": [1, 2], "ema": 0.9, "method": "dpmpp", "checkpoint": "step-00000004.a0001", "precision": "float32"}
    assert said == {**said, **wanted}
    assert not (tmp_path / "x").exists()


def test_a_run_can_be_drawn_otherwise_than_its_spec_says(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge = runpy.run_path(str(ROOT / "jobs" / "evaluate.py"))["main"]
    for method in ("ddpm", "dpmpp"):
        assert sample([run(root, "guided"), "--dry-run", "--method", method]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said == {**said, "method": method, "eta": 0.0, "guidance": 2.0, "guidance_interval": [2, 9]}
    assert sample([run(root, "guided"), "--dry-run", "--guidance", "1"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {**said, "method": "ddim", "eta": 0.5, "guidance": 1.0, "guidance_interval": None}
    cascade = [run(root, "enlarging"), "--base", run(root, "guided"), "--base-method", "ddpm", "--base-guidance", "1"]
    assert sample([*cascade, "--dry-run"]) == 0
    said = json.loads(capsys.readouterr().out)["base"]
    assert said == {**said, "method": "ddpm", "eta": 0.0, "guidance": 1.0, "guidance_interval": None}
    few = ["--count", "8", "--features", "digits-classifier", "--respacing", "2", "--workers", "0"]
    assert judge([run(root, "guided"), *few, "--method", "ddpm", "--guidance", "1"]) == 0


def test_an_exported_average_is_drawn_from_as_it_is(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert = runpy.run_path(str(ROOT / "jobs" / "convert.py"))["main"]
    file = str(tmp_path / "average.safetensors")
    assert convert(["export", run(root, "averaged"), file, "--weights", "0.9"]) == 0
    common = ["--count", "4", *HERE, "--out"]
    assert sample([run(root, "averaged"), *common, str(tmp_path / "run")]) == 0
    assert sample([file, *common, str(tmp_path / "file")]) == 0
    of_run, of_file = (arrays(tmp_path / name, "samples_4x8x8x1.npz")["arr_0"] for name in ("run", "file"))
    assert np.array_equal(of_run, of_file)
    capsys.readouterr()
    assert sample([run(root, "enlarging"), "--base", file, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["base"]["ema"] is None
    assert sample([file, "--ema", "0.9", "--dry-run"]) == 2
    assert "a file holds one set of weights" in capsys.readouterr().err


def test_a_cascade_is_one_command(root: Path, tmp_path: Path) -> None:
    command = [run(root, "enlarging"), "--base", run(root, "digits"), "--base-respacing", "3", "--base-ema", "0.9", "--count", "5", *HERE]
    assert sample([*command, "--out", str(tmp_path), "--grid", "5"]) == 0
    found = arrays(tmp_path, "samples_5x16x16x1.npz")
    assert found["arr_1"].tolist() == list(range(5))
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.size == (5 * (64 + 2) + 2, 32 + 4)  # small and large side by side
    assert json.loads((tmp_path / "job.json").read_text())["base"]["respacing"] == "3"


def test_each_network_of_a_cascade_computes_as_it_would_alone(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cascade = [run(root, "enlarging"), "--count", "4", *HERE, "--base"]
    assert sample([run(root, "rounded"), "--count", "4", *HERE, "--out", str(tmp_path / "base")]) == 0
    assert sample([*cascade, str(tmp_path / "base" / "samples_4x8x8x1.npz"), "--out", str(tmp_path / "two")]) == 0
    assert sample([*cascade, run(root, "rounded"), "--base-respacing", "4", "--out", str(tmp_path / "one")]) == 0
    one, two = (arrays(tmp_path / name, "samples_4x16x16x1.npz")["arr_0"] for name in ("one", "two"))
    assert np.array_equal(one, two)
    said = json.loads((tmp_path / "one" / "job.json").read_text())
    assert (said["precision"], said["base"]["precision"]) == ("float32", "bf16")
    capsys.readouterr()
    assert sample([*cascade, run(root, "rounded"), "--precision", "float32", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["base"]["precision"] == "float32"


def test_a_network_that_enlarges_is_not_evaluated_without_pictures(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge = runpy.run_path(str(ROOT / "jobs" / "evaluate.py"))["main"]
    assert judge([run(root, "enlarging"), "--features", "digits-classifier", "--workers", "0"]) == 2
    error = capsys.readouterr().err
    assert "enlarges pictures, and there are none here: draw some with jobs/sample.py --base, and evaluate their npz" in error


@pytest.mark.slow
def test_a_killed_command_goes_on(root: Path, tmp_path: Path) -> None:
    """SIGKILL as soon as some chunk is there, then SIGTERM, then to the end: the bytes of a command that nobody disturbed."""
    common = [run(root), "--count", "160", "--workers", "0", "--batch", "4", "--seed", "5"]
    command = [sys.executable, "jobs/sample.py", *common, "--out", str(tmp_path / "killed")]
    for how in (signal.SIGKILL, signal.SIGTERM):
        there = len(list((tmp_path / "killed").glob("chunks/chunk-*")))
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ))
        until = time.monotonic() + 120
        while len(list((tmp_path / "killed").glob("chunks/chunk-*"))) <= there and time.monotonic() < until:
            time.sleep(0.005)
        process.send_signal(how)
        told, _ = process.communicate(timeout=60)
        assert process.returncode == (-9 if how == signal.SIGKILL else 130), told
    assert "SIGTERM: leaving; what is done stays in" in told
    assert told.rstrip().endswith(f"stopped; the same command goes on: {tmp_path}/killed")
    done = len(list((tmp_path / "killed").glob("chunks/chunk-*")))
    assert 2 <= done < 40
    assert sample([*common, "--out", str(tmp_path / "killed")]) == 0
    assert sample([*common, "--out", str(tmp_path / "whole")]) == 0
    name = "samples_160x8x8x1.npz"
    assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("absent", [], "the run has no complete checkpoint"),
        ("digits", ["--step", "3"], "the run has no checkpoint of that step (got 3): there are 4, 2, newest first"),
        ("digits", ["--step", "best"], "is known to be the best"),
        ("digits", ["--guidance", "2"], "sample.guidance (got 2.0): needs a network trained with model.class_dropout above 0"),
        ("digits", ["--classes", "10"], "no such class (got 10): the network has classes 0 to 9"),
        ("digits", ["--classes", "three"], 'no class is called so (got "three")'),
        ("plain", ["--classes", "1"], "--classes (got 1): the network was trained without classes"),
        ("digits", ["--respacing", "21"], "asks for 21 timesteps where there are 20"),
        ("digits", ["--eta", "0.5", "--method", "dpmpp"], "--eta (got 0.5): has an effect with --method ddim alone"),
        ("digits", ["--eta", "1.5", "--method", "ddim"], "sample.eta"),
        ("digits", ["--eta", "0.5"], "sample.eta (got 0.5): has no effect without sample.method=ddim"),
        ("guided", ["--guidance", "1", "--guidance-interval", "2,9"], "sample.guidance_interval"),
        ("digits", ["--guidance-interval", "5,2"], "sample.guidance_interval"),
        ("digits", ["--base-method", "ddim"], "--base-method: says how the run given as --base draws, and there is none"),
        ("digits", ["--base-noise", "3"], "sample.low_res_noise (got 3): should be at most model.low_res_noise, 0"),
        ("enlarging", [], "the network enlarges pictures, and there are none: give --base"),
        ("enlarging", ["--base", "absent.npz"], "cannot read"),
        ("enlarging", ["--base", "other"], "the base pictures are 4 x 4 of 1 channels: the network enlarges pictures of 8 x 8"),
        ("digits", ["--out", "s3://key:secret@bucket/x"], "out holds credentials"),
        ("digits", ["--spec", "x.yaml"], "is for files of weights alone"),
        ("digits/spec.yaml", [], "a file that is neither weights nor part of a checkpoint"),
        ("digits/spec.yaml", ["--step", "best"], "a file that is neither weights nor part of a checkpoint"),
        ("digits/spec.yaml/more", [], "digits/spec.yaml/more"),
    ],
)
def test_a_wrong_request_is_one_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, arguments: list[str], says: str
) -> None:
    arguments = [run(root, word) if word == "other" else word for word in arguments]
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "out")]
    assert sample([run(root, name), "--count", "2", "--workers", "0", *out, *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "secret" not in error
    assert error.count("error: ") == 1
    assert not (tmp_path / "out").exists()


def test_the_folder_of_another_job_is_left_alone(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [run(root), "--count", "2", *HERE, "--out", str(tmp_path)]
    assert sample(common) == 0
    capsys.readouterr()  # its progress
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for extra, said in ((["--seed", "1"], "seed: 0 -> 1"), (["--threads", "2"], "threads: 1 -> 2"), (["--step", "2"], "checkpoint: ")):
        assert sample([*common, *extra]) == 2
        error = capsys.readouterr().err
        assert f"error: {tmp_path} holds the output of another job (there -> asked for: {said}" in error
        assert error.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert complete(run(root))[0].step == 4
