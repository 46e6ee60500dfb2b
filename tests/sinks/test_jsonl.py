"""A run's numbers survive restarts as files that JSON readers accept and that give every float back bit for bit."""

import json
import math
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from iddpm_ray import storage
from iddpm_ray.sinks.jsonl import JsonlSink, attempt_url, decode_row, encode_row, read_rows
from iddpm_ray.sinks.rows import Begun


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def test_floats_come_back_bit_for_bit() -> None:
    values = [0.1, 1 / 3, -0.0, 5e-324, 1.7976931348623157e308, math.pi * 1e-17, float(np.float32(0.3))]
    row = {"step": 1, "samples": 2} | {f"v{i}": value for i, value in enumerate(values)}
    back = decode_row(encode_row(row))
    assert [bits(float(back[f"v{i}"])) for i in range(len(values))] == [bits(value) for value in values]


def test_nonfinite_numbers_are_null_with_their_names_beside() -> None:
    line = encode_row({"step": 1, "samples": 8, "loss": math.nan, "mse": math.inf, "vb": -math.inf, "lr": 0.5})

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    assert json.loads(line, parse_constant=refuse) == {
        "step": 1, "samples": 8, "loss": None, "mse": None, "vb": None, "lr": 0.5, "nonfinite": {"loss": "nan", "mse": "inf", "vb": "-inf"},
    }  # fmt: skip
    back = decode_row(line)
    assert math.isnan(float(back["loss"]))
    assert (back["mse"], back["vb"]) == (math.inf, -math.inf)
    assert list(back) == ["step", "samples", "loss", "mse", "vb", "lr"]


def test_step_and_samples_come_first_and_numpy_scalars_are_numbers() -> None:
    line = encode_row({"loss": np.float64(0.25), "note": "x", "n": np.int64(3), "samples": 16, "step": 2})
    assert line == b'{"step": 2, "samples": 16, "loss": 0.25, "note": "x", "n": 3}\n'


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match="'loss' is a list"):
        encode_row({"step": 1, "samples": 1, "loss": [1.0]})  # type: ignore[dict-item]  # the point of the test


def row(step: int, loss: float) -> dict[str, float | int | str]:
    return {"step": step, "samples": 4 * step, "loss": loss}


def commit(sink: JsonlSink, step: int) -> list[str]:
    sink.commit(step)
    return sink.write_view(step)


def view(run: str) -> list[tuple[int, float]]:
    return [(int(r["step"]), float(r["loss"])) for r in read_rows(storage.join(run, "metrics", "train.jsonl"))]


def test_restarts_leave_one_history(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    first = JsonlSink(run, attempt=1, lineage=[Begun(1)])
    for step in range(1, 8):
        first.row(row(step, step / 10))
        if step == 4:
            commit(first, 4)
    commit(first, 6)  # asynchronous: step 7 has its row before step 6 is committed
    first.close()
    assert view(run) == [(step, step / 10) for step in range(1, 7)]

    dead_end = JsonlSink(run, attempt=2, lineage=[Begun(1), Begun(2, from_step=6, from_attempt=1)])
    dead_end.row(row(7, -1.0))  # died before its first commit
    lineage = [Begun(1), Begun(2, from_step=6, from_attempt=1), Begun(3, from_step=4, from_attempt=1)]
    third = JsonlSink(run, attempt=3, lineage=lineage)
    for step in range(5, 10):
        third.row(row(step, step / 10))
    commit(third, 8)
    commit(third, 9)
    assert view(run) == [(step, step / 10) for step in range(1, 10)]
    assert [r["step"] for r in read_rows(attempt_url(run, 1))] == list(range(1, 8))
    assert [r["step"] for r in read_rows(attempt_url(run, 3))] == list(range(5, 10))
    assert not storage.exists(attempt_url(run, 2))


def test_the_view_is_the_undisturbed_runs_file_byte_for_byte(tmp_path: Path) -> None:
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    numbers = [0.1, math.nan, 1 / 3, math.inf, 1e-300, 2.5]
    sink = JsonlSink(whole, attempt=1, lineage=[Begun(1)])
    for step, number in enumerate(numbers, start=1):
        sink.row(row(step, number))
    commit(sink, 6)
    lineage: list[Begun] = []
    for attempt, (begin, end) in enumerate([(0, 2), (1, 4), (4, 6)], start=1):
        lineage.append(Begun(attempt, begin, attempt - 1 or None))
        part = JsonlSink(cut, attempt=attempt, lineage=lineage)
        for step in range(begin + 1, end + 1):
            part.row(row(step, numbers[step - 1]))
        commit(part, end)
    name = ("metrics", "train.jsonl")
    assert storage.read_bytes(storage.join(cut, *name)) == storage.read_bytes(storage.join(whole, *name))


def test_rows_may_come_while_another_thread_commits(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    sink = JsonlSink(run, attempt=1, lineage=[Begun(1)])
    views: list[list[int]] = []

    def commit_often() -> None:
        for step in range(100, 1000, 100):
            commit(sink, step)
            views.append([at for at, _ in view(run)])

    thread = threading.Thread(target=commit_often)
    thread.start()
    for step in range(1, 1001):
        sink.row(row(step, 0.5))
    thread.join()
    commit(sink, 1000)
    assert all(steps == list(range(1, len(steps) + 1)) for steps in views)
    assert [step for step, _ in view(run)] == list(range(1, 1001))


def test_earlier_attempts_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(tmp_path / "run")
    first = JsonlSink(run, attempt=1, lineage=[Begun(1)])
    first.row(row(1, 0.5))
    commit(first, 1)
    read: list[str] = []
    honest = storage.read_bytes
    monkeypatch.setattr(storage, "read_bytes", lambda url: read.append(url) or honest(url))
    second = JsonlSink(run, attempt=2, lineage=[Begun(1), Begun(2, 1, 1)])
    for step in range(2, 6):
        second.row(row(step, 0.1))
        commit(second, step)
    assert read == [attempt_url(run, 1)]
    monkeypatch.undo()
    assert len(view(run)) == 5


def test_damaged_rows_of_an_earlier_attempt_are_left_out_and_named_once(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    first = JsonlSink(run, attempt=1, lineage=[Begun(1)])
    for step in range(1, 6):
        first.row(row(step, 0.5))
    commit(first, 5)
    file = tmp_path / "run" / "metrics" / "a0001.jsonl"
    one, _, _, _, five = file.read_bytes().splitlines()
    odd = [
        b'{"loss": 1}',
        b'{"step": null, "loss": 1}',
        b'{"step": "x"}',
        b"\xff",
        b"[1]",
        b'{"step": 2, "loss": [1]}',
        b'{"step": 3, "nonfinite": 1}',
    ]
    file.write_bytes(b"\n".join([one, *odd, five[:-4], five]))
    lineage = [Begun(1), Begun(2, 5, 1), Begun(3, 7, 2)]
    (tmp_path / "run" / "metrics" / "a0002.jsonl").mkdir()
    third = JsonlSink(run, attempt=3, lineage=lineage)
    third.row(row(8, 0.5))
    torn, whole = commit(third, 8)
    assert torn == "a0001.jsonl: no row of numbers in line 2, 3, 4 and 5 more"
    assert whole.startswith("a0002.jsonl cannot be read: ")
    assert commit(third, 8) == []
    assert [step for step, _ in view(run)] == [1, 5, 8]
