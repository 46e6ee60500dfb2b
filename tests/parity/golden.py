"""Reads a directory of recorded numbers and keeps the books: which array was compared, how far off, which was never touched."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

DEFAULT_DIRECTORY = Path(__file__).parent.parent / "golden"


@dataclass
class GoldenFile:
    """One `.npz`: inputs are read with `input`, results compared with `check`."""

    name: str
    arrays: dict[str, np.ndarray]
    read: set[str] = field(default_factory=set)
    errors: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    widened: list[str] = field(default_factory=list)
    failures: list[str] | None = None

    def names(self) -> list[str]:
        """All array names, in file order."""
        return list(self.arrays)

    def input(self, name: str) -> np.ndarray:
        """The array called `name`, booked as an input of a comparison."""
        self.read.add(name)
        return self.arrays[name]

    def check(self, name: str, actual: object, *, rtol: float = 0.0, atol: float | np.ndarray = 0.0) -> None:
        """Compares `actual` with the array called `name`; shapes must agree exactly, NaN equals NaN, infinities their like.

        Args:
            atol: one number, or one for each element.

        Raises:
            AssertionError: if |actual - expected| > atol + rtol * |expected| anywhere, or the shapes differ; inside `collecting`,
                only at its end.
        """
        self._settle(self._compare(name, actual, rtol=rtol, atol=atol))

    def _settle(self, message: str) -> None:
        if message and self.failures is not None:
            self.failures.append(message)
        else:
            assert not message, message

    def check_rounded(
        self,
        name: str,
        actual: torch.Tensor,
        *,
        exact: torch.Tensor,
        others: Sequence[torch.Tensor] = (),
        rtol: float,
        atol: float | np.ndarray = 0.0,
    ) -> None:
        """Compares a float32 result, allowing besides `rtol` and `atol` its own distance from `exact`.

        Args:
            exact: the result in float64.
            others: further float32 results of ours, from inputs a rounding apart.

        That distance is how ill-conditioned the element is, so how far two float32 programs may differ in it. Where that does not
        do and there are `others`, thrice the largest of theirs is allowed, and what the recorded program's own rounding does to such
        an array; then the array's name is kept in `widened`. An element is excused half a thousandth of itself at most.
        """
        precise = exact.detach().double().cpu().numpy()
        own, *nudged = (np.abs(ours.detach().double().cpu().numpy() - precise) for ours in (actual, *others))
        message = self._compare(name, actual, rtol=rtol, atol=atol + _excused(own, precise))
        if message and nudged:
            spread = 3 * np.maximum.reduce([own, *nudged]) + self._rounding(name) * np.abs(precise)
            message = self._compare(name, actual, rtol=rtol, atol=atol + _excused(spread, precise))
            if not message:
                self.widened.append(name)
        self._settle(message)

    def _rounding(self, name: str) -> float:
        """Four times the relative distance of a recorded array from its float64 twin, 5e-5 at most: that of the element in the middle,
        so that no few wrong elements excuse themselves."""
        rounded, exact = (self.arrays.get(name + suffix) for suffix in ("", ".f64"))
        if rounded is None or exact is None or not exact.size:
            return 0.0
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.abs(rounded - exact) / np.abs(exact)
        relative = relative[np.isfinite(relative)]
        return min(4 * float(np.median(relative)), 5e-5) if relative.size else 0.0

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Goes on after a failed comparison and raises them all together at the end.

        Raises:
            AssertionError: if any comparison failed.
        """
        assert self.failures is None, "already collecting"
        self.failures = []
        try:
            yield
            found = self.failures
        finally:
            self.failures = None
        assert not found, "\n".join([f"{len(found)} of the comparisons failed:", *found])

    def untouched(self) -> list[str]:
        """Arrays that no test read or compared."""
        return [name for name in self.arrays if name not in self.read and name not in self.errors]

    def _compare(self, name: str, actual: object, *, rtol: float, atol: float | np.ndarray) -> str:
        """What is wrong, or nothing."""
        recorded = self.arrays[name]
        got = actual.detach().cpu().numpy() if isinstance(actual, torch.Tensor) else np.asarray(actual)
        if got.shape != recorded.shape:
            self.errors[name] = self.shares[name] = float("inf")
            return f"{self.name}:{name} has shape {recorded.shape}, ours is {got.shape}"
        # Whole numbers are compared as such: float64 would not tell large ones apart.
        if got.dtype.kind in "iub" and recorded.dtype.kind in "iub":
            allowed = np.asarray(atol, dtype=np.int64)
            expected, got = recorded.astype(np.int64), got.astype(np.int64)
        else:
            expected, got = recorded.astype(np.float64), got.astype(np.float64)
            allowed = atol + rtol * np.where(np.isfinite(expected), np.abs(expected), 0.0)
        with np.errstate(invalid="ignore"):
            same = (got == expected) | (np.isnan(got) & np.isnan(expected))
            distance = np.where(same, 0, np.abs(got - expected))
        distance = np.where(np.isnan(distance), np.inf, distance)
        worst = float(distance.max(initial=0))
        self.errors[name] = max(worst, self.errors.get(name, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = float(np.where(distance == 0, 0.0, distance / allowed).max(initial=0))
        self.shares[name] = max(share, self.shares.get(name, 0.0))
        wrong = np.argwhere(distance > allowed)
        if len(wrong) == 0:
            return ""
        relative = distance / np.maximum(np.abs(expected), 1e-300)
        at = max((tuple(map(int, index)) for index in wrong), key=lambda index: relative[index])
        limit = np.broadcast_to(allowed, distance.shape)[at]
        return (
            f"{self.name}:{name} {len(wrong)} of {distance.size} elements are off; "
            f"at {list(at)} recorded {expected[at]:.9g}, ours {got[at]:.9g}, allowed {limit:.3g}"
        )


def _excused(distance: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distance, half a thousandth of the element at most; nothing where it is not a number."""
    with np.errstate(invalid="ignore"):
        excused = np.minimum(distance, 5e-4 * np.abs(exact))
    return np.where(np.isfinite(excused), excused, 0.0)


class Golden:
    """A directory laid out as the recorded one; every `.npz` in it is loaded once and booked, unless only its records are wanted."""

    def __init__(self, directory: Path, *, load: bool = True) -> None:
        self.directory = directory
        self.files = {path.name: GoldenFile(path.name, _load(path)) for path in sorted(directory.glob("*.npz")) if load}

    def open(self, name: str) -> GoldenFile:
        """The `.npz` called `name`; one without arrays if the directory has none."""
        return self.files.get(name) or GoldenFile(name, {})

    def json(self, name: str) -> Any:
        """The parsed JSON file called `name`."""
        return json.loads((self.directory / name).read_text())

    def records(self, name: str, key: str) -> list[dict[str, Any]]:
        """The list under `key` in the JSON file called `name`; empty if there is no such file or key."""
        return self.json(name).get(key, []) if self.file(name).exists() else []

    def file(self, relative: str) -> Path:
        """The path of any other file, such as an input picture."""
        return self.directory / relative


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
