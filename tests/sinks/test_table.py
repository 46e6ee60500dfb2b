"""The CSV holds the whole history, whatever columns appear when."""

import csv
import math
from pathlib import Path

from iddpm_ray.sinks.jsonl import JsonlSink
from iddpm_ray.sinks.rows import Begun
from iddpm_ray.sinks.table import CsvSink, to_csv


def test_columns_grow_and_earlier_rows_are_padded() -> None:
    text = to_csv([{"step": 1, "samples": 4, "loss": 0.1}, {"step": 2, "samples": 8, "lr": 1 / 3, "loss": math.nan}])
    assert text.splitlines() == ["step,samples,loss,lr", "1,4,0.1,", "2,8,nan,0.3333333333333333"]


def test_an_empty_history_is_a_header() -> None:
    assert to_csv([]) == "step,samples\n"


def test_the_table_goes_on_after_a_restart(tmp_path: Path) -> None:
    run = str(tmp_path)
    first = JsonlSink(run, attempt=1, lineage=[Begun(1)])
    for step in (1, 2, 3):
        first.row({"step": step, "samples": step, "loss": step / 3})
    first.commit(3)
    lineage = [Begun(1), Begun(2, from_step=2, from_attempt=1)]
    second = CsvSink(run, lineage=lineage)
    for step in (3, 4, 5):
        second.row({"step": step, "samples": step, "loss": step / 7, "vb": 0.5})
    second.commit(4)
    with open(tmp_path / "metrics" / "train.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["step"], r["loss"], r["vb"]) for r in rows] == [
        ("1", repr(1 / 3), ""), ("2", repr(2 / 3), ""), ("3", repr(3 / 7), "0.5"), ("4", repr(4 / 7), "0.5"),
    ]  # fmt: skip
