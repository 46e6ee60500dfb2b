"""Likelihood of a real run's pictures: the recorded numbers, whole and estimated, each picture once, resumable, and refused when wrong."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from train.small_run import NUM_PICTURES, run_url, small_spec, start, write_pictures

from iddpm_ray import build
from iddpm_ray.data import manifest as manifests
from iddpm_ray.errors import DataError
from iddpm_ray.evaluate import nll_job
from iddpm_ray.evaluate.measured import other_data, pinned_data
from iddpm_ray.evaluate.nll import Pictures, seeded_noise, whole_bound
from iddpm_ray.evaluate.nll_job import Looking, NllWorker, make_chunk, measured_drawn
from iddpm_ray.evaluate.rows import choose_rows
from iddpm_ray.evaluate.strata import make_strata
from iddpm_ray.evaluate.subject import choose_subject

main = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "nll.py"))["main"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("nll")
    write_pictures(root / "pictures")
    spec = small_spec(root, data={"validation_fraction": 0.3, "flip": True}, diffusion={"timesteps": 60}, train={"duration": "6 steps"})
    start(spec)
    return run_url(spec)


def nll(run: str, *arguments: str, folder: Path) -> dict[str, Any]:
    assert main([run, "--workers", "0", "--out", str(folder), *arguments]) == 0
    return json.loads((folder / "summary.json").read_text())


def test_every_picture_of_a_side_counts_once_and_no_tail_is_dropped(run: str, tmp_path: Path) -> None:
    manifest = manifests.read(f"{run}/manifest.arrow")
    for side, rows in (("validation", manifest.validation_rows), ("train", manifest.training_rows), ("all", np.arange(NUM_PICTURES))):
        found = nll(run, "--rows", side, "--batch", "7", "--estimate", "--strata", "4", folder=tmp_path / side)
        table = pq.read_table(tmp_path / side / "pictures.parquet")
        assert table.column("row").to_pylist() == rows.tolist()
        assert found["pictures"] == found["pictures_of_the_side"] == len(rows)
        assert np.isclose(np.mean(table.column("bpd").to_pylist()), found["bpd"])
        assert table.column("label").to_pylist() == manifest.labels[rows].tolist()


def test_a_subset_is_random_and_decided_by_the_seed(run: str) -> None:
    manifest = manifests.read(f"{run}/manifest.arrow")
    one, again, other = (choose_rows(manifest, "train", count=12, seed=seed).rows.tolist() for seed in (0, 0, 1))
    assert one == again
    assert set(one) != set(other)
    assert len(set(one)) == 12
    assert set(one) != set(manifest.training_rows[:12].tolist())
    assert set(choose_rows(manifest, "train", count=20, seed=0).rows.tolist()) > set(one), "a larger subset holds the smaller one"
    assert not set(one) & set(manifest.validation_rows.tolist())


def test_estimate_and_whole_bound_agree_within_their_error_bars(run: str, tmp_path: Path) -> None:
    whole = nll(run, "--rows", "all", folder=tmp_path / "whole")
    part = nll(run, "--rows", "all", "--estimate", "--strata", "8", folder=tmp_path / "part")
    assert part["forwards"] < 0.3 * whole["forwards"] == 0.3 * part["forwards_of_the_whole_bound"]
    assert abs(part["bpd"] - whole["bpd"]) < 3.5 * float(np.hypot(part["standard_error"], whole["standard_error"]))
    assert part["prior_bpd"] == pytest.approx(whole["prior_bpd"], rel=1e-6)
    assert part["standard_error"] < 0.1 * part["bpd"]


def test_terms_by_timestep_are_the_original_s_files(run: str, tmp_path: Path) -> None:
    found = nll(run, folder=tmp_path / "whole")
    terms = {name: np.load(tmp_path / "whole" / f"{name}_terms.npz")["arr_0"] for name in ("vb", "mse", "xstart_mse")}
    assert all(values.shape == (60,) and values.dtype == np.float32 for values in terms.values())
    assert terms["vb"].sum(dtype=np.float64) + found["prior_bpd"] == pytest.approx(found["bpd"], rel=1e-5)
    assert terms["xstart_mse"][0] > terms["xstart_mse"][-1], "the noisiest timestep comes first"


def test_pictures_are_measured_as_they_are_and_under_the_weights_asked_for(run: str, tmp_path: Path) -> None:
    """The spec mirrors every other picture in training; here the bound is that of the file's own pixels."""
    raw, average = (nll(run, "--count", "4", "--ema", ema, folder=tmp_path / ema) for ema in ("raw", "0.9"))
    assert raw["bpd"] != average["bpd"]
    subject = choose_subject(run, ema="raw")
    trained, manifest = subject.open("cpu"), pinned_data(run, subject.spec)
    rows = choose_rows(manifest, "validation", count=4, seed=0).rows
    files = [np.asarray(Image.open(f"{manifest.root}/{path}")) for path in manifest.column("path", rows)]
    assert any(not np.array_equal(pixels, pixels[:, ::-1]) for pixels in files)
    x_start = torch.from_numpy(np.stack(files)[:, None]).float() / 127.5 - 1
    own = Pictures(x_start, torch.from_numpy(rows), {"y": torch.from_numpy(manifest.labels[rows].astype(np.int64))})
    diffusion = build.diffusion(trained.spec.diffusion)
    bound = whole_bound(diffusion, trained.network, own, noise=seeded_noise(own, num_timesteps=60, seed=0))
    assert raw["bpd"] == pytest.approx(float(bound.total_bpd.double().mean()), rel=1e-6)


def test_a_killed_job_goes_on_and_ends_with_the_same_bytes(run: str, tmp_path: Path) -> None:
    arguments = ("--rows", "all", "--batch", "10", "--estimate")
    whole = nll(run, *arguments, folder=tmp_path / "whole")
    broken = tmp_path / "broken"
    nll(run, *arguments, folder=broken)
    for chunk in (1, 4):
        (broken / "chunks" / f"chunk-{chunk:08d}.npz").unlink()
    mended = {path.name: path.stat().st_mtime_ns for path in (broken / "chunks").iterdir()}
    assert nll(run, *arguments, folder=broken) == whole
    after = {path.name: path.stat().st_mtime_ns for path in (broken / "chunks").iterdir()}
    assert len(after) == 5
    assert all(after[name] == when for name, when in mended.items()), "what was done stays"
    for path in (broken / "chunks").iterdir():
        assert path.read_bytes() == (tmp_path / "whole" / "chunks" / path.name).read_bytes()


def test_an_estimate_stops_at_the_error_asked_for_and_goes_on_to_a_smaller_one(run: str, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    arguments = ("--rows", "all", "--batch", "4", "--estimate", "--strata", "4")
    once = nll(run, *arguments, folder=tmp_path / "once")
    loose = nll(run, *arguments, "--target-se", str(3 * once["standard_error"]), folder=folder)
    assert loose["standard_error"] <= 3 * once["standard_error"]
    assert loose["pictures"] < NUM_PICTURES
    tight = nll(run, *arguments, "--target-se", str(0.6 * once["standard_error"]), folder=folder)
    assert tight["standard_error"] <= 0.6 * once["standard_error"]
    assert tight["forwards"] > once["forwards"]
    assert tight["pictures"] == NUM_PICTURES
    fresh = nll(run, *arguments, "--target-se", str(0.6 * once["standard_error"]), folder=tmp_path / "fresh")
    assert fresh["bpd"] == tight["bpd"]


def test_a_few_alike_pictures_do_not_end_an_estimate(run: str, tmp_path: Path) -> None:
    found = nll(run, "--rows", "all", "--batch", "1", "--estimate", "--strata", "4", "--target-se", "100", folder=tmp_path / "out")
    assert found["pictures"] == 32
    few = nll(run, "--rows", "all", "--count", "3", "--estimate", "--strata", "4", "--target-se", "100", folder=tmp_path / "few")
    assert few["pictures"] == 3


def test_an_error_that_the_pictures_left_out_make_alone_ends_it_after_one_pass(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--rows", "all", "--count", "12", "--batch", "4", "--estimate", "--strata", "4", "--target-se", "1e-4")
    found = nll(run, *arguments, folder=tmp_path / "out")
    assert found["pictures"] == 12
    assert found["forwards"] == 12 * 4 * 2, "not the cost of the whole bound"
    told = capsys.readouterr().out
    assert re.search(r"the standard error 0.0001 cannot be had: the pictures left out alone make 0\.\d+; raise --count", told), told
    assert "whole bound; that needs" not in told


def test_more_passes_are_new_draws_of_the_same_pictures(run: str) -> None:
    subject = choose_subject(run)
    manifest = pinned_data(run, subject.spec)
    looking = Looking("all", None, 0, 4, 20)
    rows = choose_rows(manifest, "all", count=None, seed=0).rows
    trained = subject.open("cpu")
    parts = [make_chunk(trained, manifest, rows, looking, chunk, device=torch.device("cpu")) for chunk in range(5)]
    kinds = {"population": NUM_PICTURES, "num_timesteps": 60, "strata": make_strata(60, count=4), "num_rows": NUM_PICTURES, "batch": 20}
    one, two = measured_drawn(parts[:3], **kinds), measured_drawn(parts, **kinds)
    assert one.rows.tolist() == two.rows.tolist() == rows.tolist()
    assert (one.bpd[40:] == two.bpd[40:]).all(), "the second pass has not reached the last block"
    assert (one.bpd[:40] != two.bpd[:40]).all()
    assert two.variance[:40].mean() < one.variance[:40].mean()


def test_other_pictures_can_be_measured(run: str, tmp_path: Path) -> None:
    write_pictures(tmp_path / "more")
    found = nll(run, "--data", str(tmp_path / "more"), "--estimate", folder=tmp_path / "out")
    assert found["pictures"] == NUM_PICTURES
    assert found["side"] == "all"


def test_no_product_is_rounded_to_tf32(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def noting(*_: object, **__: object) -> bytes:
        seen.append(torch.backends.cudnn.allow_tf32)
        return b""

    monkeypatch.setattr(nll_job, "make_chunk", noting)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # as it is when torch is imported
    NllWorker(choose_subject(run), Looking("all", None, 0, 0, 8), f"{run}/manifest.arrow", "cpu").open()(0)
    assert seen == [False]
    assert torch.backends.cudnn.allow_tf32


def test_weights_without_names_of_classes_know_pictures_of_all_of_them(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    spec = small_spec(tmp_path, model={"num_classes": 10})
    found = other_data(spec.data.path, spec, classes=())
    assert found.classes == tuple("0123456789")
    (tmp_path / "pictures" / "3").rename(tmp_path / "3")
    with pytest.raises(DataError, match="has 9 of the 10 classes of weights that do not say their names"):
        other_data(spec.data.path, spec, classes=())  # 4 would be taken for 3
    assert other_data(spec.data.path, spec, classes=tuple("0123456789")).labels.max() == 9


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target-se", "0.1"], "--target-se"),
        (["--ema", "0.5"], r"keeps no such average.*0\.5.*choose one of"),
        (["--step", "best"], "is known to be the best"),
        (["--step", "77"], "no checkpoint of that step"),
        (["--count", "4000"], "has .* validation rows"),
        (["--data", "/nowhere/at/all"], "nowhere/at/all"),
        (["--out", "/dev/null/x"], r"--out is not writable.*/dev/null/x"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(
    run: str, tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([run, "--workers", "0", "--out", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert re.search(says, error), error


def test_a_run_without_checkpoint_or_held_out_rows_or_pinned_data_is_refused(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no complete checkpoint" in capsys.readouterr().err
    write_pictures(tmp_path / "pictures")
    spec = small_spec(tmp_path, train={"duration": "2 steps"})
    start(spec)
    assert main([run_url(spec)]) == 2
    assert "no validation rows" in capsys.readouterr().err
    (tmp_path / "pictures" / "0" / "000.png").unlink()
    assert main([run_url(spec), "--rows", "all"]) == 2
    assert "1 removed: 0/000.png" in capsys.readouterr().err
    Path(run_url(spec), "manifest.arrow").unlink()
    with pytest.raises(DataError, match="--data"):
        pinned_data(run_url(spec), choose_subject(run_url(spec)).spec)


def test_a_folder_of_another_job_is_not_overwritten(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nll(run, "--estimate", folder=tmp_path / "out")
    assert main([run, "--workers", "0", "--out", str(tmp_path / "out"), "--estimate", "--seed", "1"]) == 2
    assert "seed: 0 -> 1" in capsys.readouterr().err
