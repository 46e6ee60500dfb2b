"""Rows as one CSV table of the whole history, for spreadsheets; written on request."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.sinks.jsonl import earlier_rows
from iddpm_ray.sinks.rows import Begun, Row, row_step


def to_csv(rows: Iterable[Mapping[str, float | int | str]]) -> str:
    """A table with a column for each key in the order of first appearance; cells a row knows nothing of stay empty.

    Floats are written in the shortest form that reads back bit for bit; `nan`, `inf` and `-inf` by these names.
    """
    kept = list(rows)
    columns = list(dict.fromkeys(["step", "samples", *(key for row in kept for key in row)]))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    return text.getvalue()


class CsvSink:
    """Keeps the history's rows in memory and rewrites `metrics/train.csv` at each commit."""

    def __init__(self, run_url: str, *, lineage: Sequence[Begun]) -> None:
        self._run_url, self._lineage = run_url, tuple(lineage)
        self._earlier: list[Row] | None = None
        self._rows: list[Row] = []

    def row(self, row: Mapping[str, float | int | str]) -> None:
        """Keeps a copy."""
        self._rows.append(dict(row))

    def picture(self, name: str, step: int, picture: Tensor) -> None:
        """Pictures are no rows."""

    def commit(self, step: int) -> None:
        """Rewrites the table with the history up to `step`; earlier attempts are read once, at the first commit."""
        if self._earlier is None:
            self._earlier = earlier_rows(self._run_url, self._lineage)
        table = to_csv([*self._earlier, *(row for row in self._rows if row_step(row) <= step)])
        storage.write_whole(storage.join(self._run_url, "metrics", "train.csv"), table.encode())

    def close(self) -> None:
        """Nothing is held open."""
