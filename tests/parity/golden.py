"""Reads a directory of recorded numbers and keeps the books: which array was compared, how far off, which was never touched."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch


@dataclass
class GoldenFile:
    """One `.npz`: inputs are read with `input`, results compared with `check`."""

    name: str
    arrays: dict[str, np.ndarray]
    read: set[str] = field(default_factory=set)
    errors: dict[str, float] = field(default_factory=dict)

    def names(self) -> list[str]:
        """All array names, in file order."""
        return list(self.arrays)

    def input(self, name: str) -> np.ndarray:
        """The array called `name`, booked as an input of a comparison."""
        self.read.add(name)
        return self.arrays[name]

    def check(self, name: str, actual: object, *, rtol: float = 0.0, atol: float = 0.0) -> None:
        """Compares `actual` with the array called `name`; shapes must agree exactly, NaN equals NaN.

        Raises:
            AssertionError: if |actual - expected| > atol + rtol * |expected| anywhere, or the shapes differ.
        """
        expected = self.arrays[name]
        got = actual.detach().cpu().numpy() if isinstance(actual, torch.Tensor) else np.asarray(actual)
        assert got.shape == expected.shape, f"{self.name}:{name} has shape {expected.shape}, ours is {got.shape}"
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol, err_msg=f"{self.name}:{name}")
        with np.errstate(invalid="ignore"):
            distance = np.abs(got.astype(np.float64) - expected.astype(np.float64))
        worst = float(np.nanmax(distance, initial=0.0)) if distance.size else 0.0
        self.errors[name] = max(worst, self.errors.get(name, 0.0))

    def untouched(self) -> list[str]:
        """Arrays that no test read or compared."""
        return [name for name in self.arrays if name not in self.read and name not in self.errors]


class Golden:
    """A directory laid out as the recorded one; every `.npz` in it is loaded once and booked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = {path.name: GoldenFile(path.name, _load(path)) for path in sorted(directory.glob("*.npz"))}

    def open(self, name: str) -> GoldenFile:
        """The `.npz` called `name`."""
        return self.files[name]

    def json(self, name: str) -> object:
        """The parsed JSON file called `name`."""
        return json.loads((self.directory / name).read_text())

    def file(self, relative: str) -> Path:
        """The path of any other file, such as an input picture."""
        return self.directory / relative


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
