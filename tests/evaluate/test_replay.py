"""A replayed step is the run's own: its numbers bit for bit, its pictures, draws and losses, and the sample that broke it."""

import io
import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from ranks import run_ranks
from train.small_run import run_url, small_spec, start, write_pictures

from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.order import rows
from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.errors import CheckpointError, TrainError
from iddpm_ray.evaluate.replay import plan
from iddpm_ray.spec.spec import JobSpec

main = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "replay.py"))["main"]
HARD: dict[str, dict[str, Any]] = {
    "resampler": {"kind": "loss_second_moment", "history": 2},
    "model": {"dropout": 0.2, "class_dropout": 0.3},
    "optim": {"clip_norm": 1.0, "microbatch": 2, "warmup": "3 steps"},
    "data": {"flip": True, "validation_fraction": 0.2},
    "log": {"validate_every": "4 steps", "tensorboard": False, "every": "3 steps"},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay")
    write_pictures(path / "pictures")
    return path


@pytest.fixture(scope="module")
def spec(root: Path) -> JobSpec:
    """Twelve steps of one worker, ended and gone on with after six."""
    half = small_spec(root, **{**HARD, "run": {"name": "one"}, "train": {"duration": "6 steps"}})
    run_ranks(start, 1, half)
    whole = small_spec(root, **{**HARD, "run": {"name": "one"}, "optim": {**HARD["optim"], "lr": 5e-4}})
    run_ranks(start, 1, whole)
    return whole


def replay(run: str, *numbers: str, out: Path) -> dict[str, Any]:
    assert main([run, *numbers, "--out", str(out)]) == 0
    return json.loads((out / "row.json").read_text())


@pytest.mark.parametrize("step", [3, 6, 8, 12])
def test_the_row_is_the_run_s_bit_for_bit(spec: JobSpec, tmp_path: Path, step: int, capsys: pytest.CaptureFixture[str]) -> None:
    """From the beginning, at a stop, with a validation, and at the end; before and after the learning rate was changed."""
    found = replay(run_url(spec), f"step={step}", out=tmp_path)
    assert found["recorded"]
    assert found["differs_in"] == []
    told = capsys.readouterr().out
    assert f"bit for bit the run's row of step {step}\n" in told
    assert f"from {'the run' if step <= 4 else 'step-0000000' + ('4' if step <= 6 else '6' if step == 8 else '8')}" in told


def test_what_the_step_saw_is_there(spec: JobSpec, tmp_path: Path) -> None:
    replay(run_url(spec), "step=5", out=tmp_path)
    table = pq.read_table(tmp_path / "samples.parquet").to_pydict()
    positions = np.arange(28, 35)
    assert table["position"] == positions.tolist()
    manifest = manifests.read(f"{run_url(spec)}/manifest.arrow")
    assert table["row"] == manifest.training_rows[rows(0, positions, len(manifest.training_rows))].tolist()
    noise = draws.normals(0, Purpose.NOISE, torch.from_numpy(positions), (1, 8, 8))
    assert np.array_equal(np.array(table["noise"], dtype=np.float32), noise.reshape(7, -1).numpy())
    mirrored = draws.uniforms(0, Purpose.FLIP, torch.from_numpy(positions)).squeeze(1) < 0.5
    with Image.open(f"{manifest.root}/{table['path'][0]}") as image:
        first = np.asarray(image)
    symmetric = np.array_equal(first, first[:, ::-1])
    assert table["mirrored"][0] == (bool(mirrored[0]) and not symmetric)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(table["pixels"][0]))), first)
    dropped = draws.uniforms(0, Purpose.LABEL_DROP, torch.from_numpy(positions)).squeeze(1) < 0.3
    assert [given == 10 for given in table["given_label"]] == dropped.tolist()
    assert all(0 <= t < 20 for t in table["timestep"])
    assert all(np.isfinite(loss) and loss > 0 for loss in table["loss"])
    with Image.open(tmp_path / "samples.png") as image:
        assert image.width > image.height > 3 * 8


def test_one_sample_can_be_looked_at(spec: JobSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replay(run_url(spec), "step=5", "sample=2", out=tmp_path)
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("sample ")]
    assert len(told) == 1
    assert re.match(r"sample 2 \(position 30, rank 0\): .*\.png \(row \d+\), class \d.*; timestep \d+, weight .*, loss .* vb ", told[0])


def test_a_run_of_two_workers_is_replayed_by_two(root: Path, tmp_path: Path) -> None:
    spec = small_spec(root, **{**HARD, "run": {"name": "two"}, "train": {"duration": "6 steps"}})
    run_ranks(start, 2, spec)
    found = replay(run_url(spec), "step=6", out=tmp_path)
    assert found["recorded"]
    assert found["differs_in"] == []
    table = pq.read_table(tmp_path / "samples.parquet").to_pydict()
    assert table["rank"] == [0, 0, 0, 1, 1, 1, 1]
    assert table["position"] == list(range(35, 42))


def test_a_loss_that_is_not_finite_is_one_command_away(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run's own message holds the command; it names the step and the samples that broke."""
    spec = small_spec(root, run={"name": "broken"}, optim={"lr": 1e25, "max_nonfinite_steps": 2}, train={"duration": "12 steps"})
    with pytest.raises(TrainError) as caught:
        start(spec)
    command = re.search(r"python jobs/replay\.py (\S+) (step=\d+) shows", str(caught.value))
    assert command is not None, caught.value
    assert main([command[1], command[2], "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    bad = int(re.search(r"the first loss that was not finite came at step (\d+)", told)[1])  # type: ignore[index]
    assert bad <= int(command[2].removeprefix("step="))
    assert re.search(r"samples of step \d+ whose loss is not finite: 0", told)
    assert "nan" in told or "inf" in told


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ([], "which step is to be replayed: say step=N"),
        (["step=five"], r"what to replay \(got step=five\)"),
        (["steps=5"], "what to replay"),
        (["step=0"], "steps are counted from 1"),
        (["step=13"], r"the run has no such step \(got 13\): it ends at step 12"),
        (["step=5", "sample=7"], r"sample \(got 7\): step 5 has samples 0 to 6"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_one_line(
    spec: JobSpec, tmp_path: Path, numbers: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([run_url(spec), *numbers, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert re.search(says, error), error


def test_a_run_that_ended_has_no_steps_beyond(spec: JobSpec, tmp_path: Path) -> None:
    run = shutil.copytree(run_url(spec), tmp_path / "run")
    (run / "attempts" / "0002.end.json").write_text(json.dumps({"reached": 12}))
    assert plan(str(run), 12).step == 12
    with pytest.raises(CheckpointError, match="it has come to step 12"):
        plan(str(run), 13)


def test_where_there_is_no_run_nothing_is_replayed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run here"):
        plan(str(tmp_path), 3)
