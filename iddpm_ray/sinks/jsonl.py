"""Rows as JSON lines: one file an attempt, and `train.jsonl`, the whole history for people, both rewritten whole at each commit."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Integral, Real

from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.sinks.rows import Begun, Row, lineage_spans, row_step

# JSON has no NaN and no infinity: such a number is written as null, and the last key of the line says which one it was.
NONFINITE = "nonfinite"

_LARGEST = 2**63  # more is damage, and no float may hold it


def encode_row(row: Mapping[str, float | int | str]) -> bytes:
    """One line of JSON with its line break; floats in the shortest form that reads back bit for bit.

    Not-a-number and infinities become null, and the key `nonfinite` maps their names to `nan`, `inf` or `-inf`.

    Raises:
        TypeError: if a value is neither a number nor a string.
    """
    line: dict[str, object] = {"step": None, "samples": None}
    odd: dict[str, str] = {}
    for key, value in row.items():
        plain = _plain(key, value)
        if isinstance(plain, float) and not math.isfinite(plain):
            odd[key] = repr(plain)
            plain = None
        line[key] = plain
    if odd:
        line[NONFINITE] = odd
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def decode_row(line: bytes | str) -> Row:
    """The row that `encode_row` wrote, not-a-numbers and infinities included."""
    row = json.loads(line)
    for key, value in row.pop(NONFINITE, {}).items():
        row[key] = float(value)
    return row


def read_rows(url: str) -> list[Row]:
    """All rows of a file of JSON lines."""
    return [decode_row(line) for line in storage.read_bytes(url).splitlines() if line]


def read_sound_rows(url: str, problems: list[str]) -> list[Row]:
    """The rows of a file that may be damaged; what is no row, or the whole file if it cannot be read, is left out and named.

    Args:
        problems: what was left out is added here, in words.

    Raises:
        Exception: what the store raises when it does not answer now.
    """
    rows: list[Row] = []
    odd: list[int] = []
    try:
        data = storage.read_bytes(url)
    except Exception as error:  # a store may raise anything
        if storage.is_transient(error):
            raise
        problems.append(f"{storage.name(url)} cannot be read: {storage.reason(error)}")
        return []
    for number, line in enumerate(data.splitlines(), start=1):
        row = _sound_row(line) if line else None
        if row is not None:
            rows.append(row)
        elif line:
            odd.append(number)
    if odd:
        which = ", ".join(map(str, odd[:3])) + (f" and {len(odd) - 3} more" if len(odd) > 3 else "")
        problems.append(f"{storage.name(url)}: no row of numbers in line {which}")
    return rows


def attempt_url(run_url: str, attempt: int) -> str:
    """Where an attempt keeps its rows."""
    return storage.join(run_url, "metrics", f"a{attempt:04d}.jsonl")


def earlier_rows(run_url: str, lineage: Sequence[Begun], *, problems: list[str] | None = None) -> list[Row]:
    """Rows of the history that attempts before the newest one wrote; an attempt that left no file has no rows.

    Args:
        problems: damage that was passed over is added here, in words.

    Raises:
        Exception: what the store raises when it does not answer now.
    """
    problems = [] if problems is None else problems
    rows: list[Row] = []
    for span in lineage_spans(lineage)[:-1]:
        url = attempt_url(run_url, span.attempt)
        if storage.exists(url):
            rows += [row for row in read_sound_rows(url, problems) if span.holds(row_step(row))]
    return rows


class JsonlSink:
    """Keeps the attempt's rows encoded in memory and writes them at a commit; and, apart from that, the history up to a commit.

    Earlier attempts are read once, for the first view, and never again.
    """

    def __init__(self, run_url: str, *, attempt: int, lineage: Sequence[Begun]) -> None:
        """Args:
        run_url: the run's directory.
        lineage: how this and earlier attempts began, this one last.
        """
        self._run_url, self._attempt, self._lineage = run_url, attempt, tuple(lineage)
        self._earlier: bytes | None = None
        self._lines = bytearray()
        self._ends: list[tuple[int, int]] = []  # of each row: its step, and the length of all lines with it

    def row(self, row: Mapping[str, float | int | str]) -> None:
        """Encodes the row at once, so that a later change of the mapping does not reach it."""
        self._lines += encode_row(row)
        self._ends.append((row_step(row), len(self._lines)))
        assert all(one < two for (one, _), (two, _) in pairwise(self._ends[-2:])), "steps of rows must rise"

    def picture(self, name: str, step: int, picture: Tensor) -> None:
        """Pictures are no rows."""

    def commit(self, step: int) -> None:
        """Rewrites the attempt's file with all rows so far."""
        storage.write_whole(attempt_url(self._run_url, self._attempt), bytes(self._lines))

    def write_view(self, step: int) -> list[str]:
        """Rewrites the view, which nothing reads but people, with the history up to `step`.

        Returns:
            What of earlier attempts was damaged and left out, in words, when they are read.
        """
        problems: list[str] = []
        if self._earlier is None:
            self._earlier = b"".join(map(encode_row, earlier_rows(self._run_url, self._lineage, problems=problems)))
        committed = max((end for row, end in self._ends if row <= step), default=0)
        storage.write_whole(storage.join(self._run_url, "metrics", "train.jsonl"), self._earlier + bytes(self._lines[:committed]))
        return problems

    def close(self) -> None:
        """Nothing is held open."""


def _sound_row(line: bytes) -> Row | None:
    """The row of a line; None if it is not one that `encode_row` could have written."""
    try:
        row = decode_row(line)
        sound = isinstance(row["step"], int) and all(
            isinstance(value, str | float) or (isinstance(value, int) and abs(value) < _LARGEST) for value in row.values()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return row if sound and row_step(row) >= 0 else None


def _plain(key: str, value: object) -> float | int | str:
    """A number or string as JSON knows it; numpy's scalars become Python's."""
    if isinstance(value, str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"a row holds numbers and strings, {key!r} is a {type(value).__name__}")
