"""W&B and MLflow for real, without a network: a run that stops and goes on, read back from what the libraries wrote."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from PIL import Image

from iddpm_ray.sinks.jsonl import read_rows
from iddpm_ray.train.session import LocalSession


def trained(root: Path, *, steps: int, **changes: object) -> LocalSession:
    """An attempt of a tiny run."""
    session = LocalSession()
    spec = tiny.tiny_spec(root, train__duration=f"{steps} steps", checkpoint__every="2 steps", sample__every="2 steps", **changes)
    tiny.attempt(spec, session)
    return session


def warnings(session: LocalSession) -> list[str]:
    return [line for line in session.messages if line.startswith("warning")]


def test_mlflow_shows_one_run_over_two_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    from mlflow.tracking import MlflowClient

    store = tmp_path / "mlflow"
    tiny.write_pictures(tmp_path / "pictures")
    changes = {"log__sinks": ["mlflow"], "log__mlflow_url": str(store), "log__project": "cats"}
    assert warnings(trained(tmp_path, steps=4, **changes)) == []
    assert warnings(trained(tmp_path, steps=6, **changes)) == []

    client = MlflowClient(tracking_uri=store.as_uri())
    experiment = client.get_experiment_by_name("cats")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == json.loads((tiny.run_folder(tiny.tiny_spec(tmp_path)) / "trackers/mlflow.json").read_text())["id"]
    assert (run.info.run_name, run.info.status) == ("tiny", "FINISHED")
    assert run.data.params["model.num_channels"] == "32"
    assert run.data.params["train.duration"] == "4 steps"
    told = client.get_metric_history(run.info.run_id, "loss/loss")
    rows = read_rows(str(tiny.run_folder(tiny.tiny_spec(tmp_path)) / "metrics/train.jsonl"))
    assert [(one.step, one.value) for one in told] == [(row["step"], pytest.approx(row["loss"], nan_ok=True)) for row in rows]
    assert [one.step for one in told] == [1, 2, 3, 4, 5, 6]
    pictures = sorted(store.rglob("images/samples*.png"))
    assert [int(path.name.split("+")[2]) for path in pictures] == [2, 4, 6]
    drawn = sorted(tiny.run_folder(tiny.tiny_spec(tmp_path)).glob("samples/*.png"))
    assert [Image.open(path).convert("L").tobytes() for path in pictures] == [Image.open(path).tobytes() for path in drawn]


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of one of W&B's files: LevelDB's log format, blocks of 32 KiB after a header of 7 bytes."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def wandb_rows(folder: Path) -> list[dict[str, object]]:
    """The history in one of W&B's own files."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("run-*.wandb")
    records = [Record.FromString(data) for data in wandb_records(file.read_bytes())]
    return [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]


def test_wandb_offline_leaves_files_of_one_run_over_two_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tiny.write_pictures(tmp_path / "pictures")
    assert warnings(trained(tmp_path, steps=4, log__sinks=["wandb"])) == []
    assert warnings(trained(tmp_path, steps=6, log__sinks=["wandb"])) == []

    run = tiny.run_folder(tiny.tiny_spec(tmp_path))
    folders = sorted(run.glob("wandb/offline-run-*"))
    own = json.loads((run / "trackers/wandb.json").read_text())["id"]
    assert len(folders) == 2
    assert all(folder.name.endswith(own) for folder in folders)
    history = [row for folder in folders for row in wandb_rows(folder)]
    rows = read_rows(str(run / "metrics/train.jsonl"))
    assert [(row["_step"], row["loss/loss"]) for row in history] == [(row["step"], pytest.approx(row["loss"])) for row in rows]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["_step"] for row in history if "samples" in row] == [2, 4, 6]
    kept = sorted(run.glob("wandb/offline-run-*/files/media/images/samples_*.png"))
    drawn = sorted(run.glob("samples/*.png"))
    assert [Image.open(path).convert("L").tobytes() for path in kept] == [Image.open(path).tobytes() for path in drawn]
    assert sorted(path.name for path in run.glob("wandb/a*.json")) == ["a0001.json", "a0002.json"]


def test_a_server_that_is_not_there_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tiny.write_pictures(tmp_path / "pictures")
    session = trained(tmp_path, steps=4, log__sinks=["mlflow"], log__mlflow_url="http://127.0.0.1:9")
    said = warnings(session)
    assert said
    assert all(line.startswith("warning: mlflow cannot ") and line.endswith("; training goes on") for line in said)
    assert not (tiny.run_folder(tiny.tiny_spec(tmp_path)) / "trackers").exists()
    assert [row["step"] for row in read_rows(str(tiny.run_folder(tiny.tiny_spec(tmp_path)) / "metrics/train.jsonl"))] == [1, 2, 3, 4]
