"""Which rows of a data set an evaluation looks at: a side of the split, or a random part of it that the seed decides."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from iddpm_ray import storage
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.errors import DataError

Side = Literal["train", "validation", "all"]


@dataclass(frozen=True, eq=False)
class Chosen:
    """Rows to look at.

    Attributes:
        rows: [N] int64 rows of the manifest in the order of their draws, so that any beginning is a simple random sample; no row twice.
        population: rows of the side that they were chosen from.
    """

    rows: NDArray[np.int64]
    population: int


def side_rows(manifest: Manifest, side: Side) -> NDArray[np.int64]:
    """The rows of a side, ascending.

    Raises:
        DataError: there are none.
    """
    rows = {
        "train": manifest.training_rows,
        "validation": manifest.validation_rows,
        "all": np.arange(manifest.num_rows, dtype=np.int64),
    }[side]
    if not len(rows):
        raise DataError(
            f"{storage.shown(manifest.root)} has no {side} rows: the run holds none out (data.validation_fraction)",
            fix="look at --rows train or --rows all, or give other pictures with --data",
        )
    return rows


def choose_rows(manifest: Manifest, side: Side, *, count: int | None, seed: int) -> Chosen:
    """`count` rows of a side (all without a count), each equally likely: those whose draws, keyed by seed and row's path, are smallest.

    Raises:
        DataError: no rows, or fewer than asked for.
    """
    rows = side_rows(manifest, side)
    if count is not None and count > len(rows):
        raise DataError(f"{storage.shown(manifest.root)} has {len(rows)} {side} rows", value=count, fix=f"ask for at most {len(rows)}")
    keys = torch.from_numpy(manifest.table.column("key").to_numpy()[rows].copy())
    order = torch.argsort(draws.uniforms(seed, Purpose.SUBSET, keys).squeeze(1), stable=True).numpy()
    return Chosen(rows[order[:count]], len(rows))
