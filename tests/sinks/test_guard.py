"""Numbers for people never end a run: a sink that fails is named, the others get everything, and it may recover."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from iddpm_ray.sinks.guard import ROWS, GuardedSinks, keep_rows, open_sinks
from iddpm_ray.sinks.jsonl import read_rows
from iddpm_ray.sinks.rows import Begun
from iddpm_ray.spec.log import LogSpec


class Recording:
    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.seen: list[str] = []

    def _take(self, what: str) -> None:
        if self.broken:
            raise OSError(28, "No space left on device")
        self.seen.append(what)

    def row(self, row: Mapping[str, float | int | str]) -> None:
        self._take(f"row {row['step']}")

    def picture(self, name: str, step: int, picture: Tensor) -> None:
        self._take(f"{name} {step}")

    def commit(self, step: int) -> None:
        self._take(f"commit {step}")

    def close(self) -> None:
        self._take("close")


def test_a_failing_sink_is_said_once_and_the_others_go_on() -> None:
    bad, good, said = Recording(broken=True), Recording(), []
    sinks = GuardedSinks({"bad": lambda: bad, "good": lambda: good}, say=said.append)
    for step in (1, 2):
        sinks.row({"step": step, "samples": step})
        sinks.picture("samples", step, torch.zeros(1, 2, 2, dtype=torch.uint8))
        sinks.commit(step)
    sinks.close()
    assert good.seen == ["row 1", "samples 1", "commit 1", "row 2", "samples 2", "commit 2", "close"]
    assert [line for line in said if "cannot write" in line] == ["warning: bad cannot write: no space left on device; training goes on"]
    assert len(said) == 4


def test_no_secret_is_said() -> None:
    def broken() -> Recording:
        raise RuntimeError("403 for https://host/file?X-Amz-Signature=abc123")

    said: list[str] = []
    GuardedSinks({"bucket": broken}, say=said.append)
    assert "403" in said[0]
    assert "abc123" not in said[0]


def test_recovery_is_said() -> None:
    sink, said = Recording(broken=True), []
    sinks = GuardedSinks({"disk": lambda: sink}, say=said.append)
    sinks.commit(1)
    sink.broken = False
    sinks.commit(2)
    sinks.commit(3)
    assert said[1:] == ["disk can write again"]
    assert sink.seen == ["commit 2", "commit 3"]


def test_the_rows_file_is_written_by_who_leads_whole_and_its_failure_is_the_saves() -> None:
    rows, other, said = Recording(), Recording(), []
    sinks = GuardedSinks({ROWS: lambda: rows, "other": lambda: other}, say=said.append)
    sinks.hand_over(leads=False)
    sinks.row({"step": 1, "samples": 1})
    sinks.commit(1)
    sinks.hand_over(leads=True)
    sinks.commit(2)
    assert rows.seen == ["row 1", "commit 2"]
    assert other.seen == ["row 1", "commit 1", "commit 2"]
    rows.broken = True
    with pytest.raises(OSError):
        sinks.commit(3)
    assert said == []


def test_the_view_for_people_holds_no_save_up(tmp_path: Path) -> None:
    """Neither damage in what earlier attempts wrote nor a view that cannot be written."""
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "a0001.jsonl").write_bytes(b'{"step": 1, "samp\n')
    view = tmp_path / "metrics" / "train.jsonl"
    view.mkdir()
    said: list[str] = []
    sinks = open_sinks(
        str(tmp_path),
        attempt=2,
        lineage=[Begun(1), Begun(2, 1, 1)],
        log=LogSpec(csv=True, tensorboard=False),
        name="x",
        config={},
        say=said.append,
    )
    sinks.row({"step": 2, "samples": 2})
    sinks.commit(2)
    view.rmdir()
    sinks.commit(2)
    assert [row["step"] for row in read_rows(str(tmp_path / "metrics" / "a0002.jsonl"))] == [2]
    assert [row["step"] for row in read_rows(str(view))] == [2]
    assert said[0].startswith("warning: metrics/train.jsonl cannot write: ")
    assert "metrics/train.jsonl can write again" in said


def test_damage_that_the_view_passes_over_is_said(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "a0001.jsonl").write_bytes(b'{"step": 1, "samp\n')
    said: list[str] = []
    sinks = keep_rows(str(tmp_path), attempt=2, lineage=[Begun(1), Begun(2, 1, 1)], say=said.append)
    sinks.commit(2)
    sinks.commit(3)
    assert said == ["warning: a0001.jsonl: no row of numbers in line 1; left out of metrics/train.jsonl"]


def test_a_sink_that_cannot_be_opened_is_left_out() -> None:
    def broken() -> Recording:
        raise RuntimeError("no such place")

    good, said = Recording(), []
    sinks = GuardedSinks({"bad": broken, "good": lambda: good}, say=said.append)
    sinks.row({"step": 1, "samples": 1})
    assert good.seen == ["row 1"]
    assert said == ["warning: bad cannot open: RuntimeError: no such place; training goes on"]


def test_open_sinks_writes_what_was_asked_for_and_only_that(tmp_path: Path) -> None:
    for tensorboard, csv in [(False, False), (True, True)]:
        run = tmp_path / f"{tensorboard}"
        said: list[str] = []
        log = LogSpec(tensorboard=tensorboard, csv=csv)
        sinks = open_sinks(str(run), attempt=3, lineage=[Begun(3)], log=log, name="run", config={}, say=said.append)
        sinks.row({"step": 1, "samples": 2, "loss": 0.5})
        pixels = torch.arange(12, dtype=torch.uint8).reshape(3, 2, 2)
        sinks.picture("samples", 1, pixels)
        assert not run.exists()
        sinks.commit(1)
        sinks.close()
        assert said == []
        files = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
        asked = {"metrics/train.csv", "tensorboard/events.out.tfevents.a0003"} if csv else set()
        assert files == {"metrics/a0003.jsonl", "metrics/train.jsonl", "samples/step-00000001.a0003.png"} | asked
        assert read_rows(str(run / "metrics" / "train.jsonl")) == [{"step": 1, "samples": 2, "loss": 0.5}]
        picture = Image.open(io.BytesIO((run / "samples" / "step-00000001.a0003.png").read_bytes()))
        np.testing.assert_array_equal(np.asarray(picture), pixels.permute(1, 2, 0).numpy())
