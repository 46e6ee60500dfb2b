"""Statistics in a checkpoint: a row of moments a rank and label, gathered to all ranks before a save.

Nothing is merged to be saved: open segment, intervals and last readings go in as they stand, so a run that saves once more than another
still has the same bits in its rows, and so has a run restored on the same world size.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray.errors import CheckpointError
from iddpm_ray.stats import moments
from iddpm_ray.stats.agree import Exchange, agree, gathered
from iddpm_ray.stats.report import Books, Statistics


@dataclass(frozen=True)
class SavedStatistics:
    """What a checkpoint keeps, equal on all ranks.

    Attributes:
        labels: JSON texts [kind, scope, names], each standing for as many rows as it has names.
        rows: float64 [world_size, R, 6] on the CPU.
    """

    labels: list[str]
    rows: Tensor


def gather_state(statistics: Statistics, exchange: Exchange | None = None) -> SavedStatistics:
    """Everything that was reported and not yet read, on every rank. A collective; reading on goes unnoticed."""
    own = dict(_entries(statistics))
    labels = agree(own, exchange, subject="saved statistics", device=statistics.device)
    rows = [own[label].cpu() if label in own else moments.empty(len(_names(label))) for label in labels]
    together = torch.cat([moments.empty(0), *rows])
    return SavedStatistics(labels, gathered(together, exchange if labels else None, device=statistics.device))


def load_state(statistics: Statistics, saved: SavedStatistics, *, world_size: int) -> None:
    """Puts back what `gather_state` gave, in place of what is there; collectors may be made before or after.

    On the world size that saved it every rank goes on with its own rows, bit for bit. On another one rank 0 takes all of them, merged
    in rank order, and the others begin empty.

    Raises:
        CheckpointError: rows and labels do not fit each other.
    """
    sizes = [len(_names(label)) for label in saved.labels]
    if saved.rows.dim() != 3 or saved.rows.shape[1:] != (sum(sizes), moments.WIDTH):
        raise CheckpointError(
            "saved statistics have rows that do not fit their labels", value=list(saved.rows.shape), fix="load another checkpoint"
        )
    everyone = saved.rows.to(device="cpu", dtype=torch.float64)
    if everyone.shape[0] == world_size:
        own = everyone[statistics.rank]
    else:
        own = moments.fold(everyone) if statistics.rank == 0 else moments.empty(everyone.shape[1])
    statistics.blocks.clear()
    statistics.numbers.clear()
    for books in statistics.books.values():
        fresh = Books()
        books.interval, books.latest = fresh.interval, fresh.latest
    for label, mine, first in zip(saved.labels, own.split(sizes), everyone[0].split(sizes), strict=True):
        # The last reading was the same on all ranks, whatever their number.
        _put_back(statistics, label, rows=mine.clone(), shared=first.clone())


def _entries(statistics: Statistics) -> Iterator[tuple[str, Tensor]]:
    for name in statistics.names:
        yield _label("name", "", [name]), moments.empty(1)
    for (device, names), rows in statistics.blocks.items():
        yield _label("block", device, names), rows
    for name, row in statistics.numbers.items():
        yield _label("number", "", [name, "what rounding took from its mean"]), moments.rows_of_number(row)
    for key, books in statistics.books.items():
        for kind, table in (("interval", books.interval), ("latest", books.latest)):
            names = table.names()
            for name, row in zip(names, table.take(names), strict=True):
                yield _label(kind, key, [name]), row[None]


def _put_back(statistics: Statistics, label: str, *, rows: Tensor, shared: Tensor) -> None:
    kind, scope, names = json.loads(label)
    match kind:
        case "name":
            statistics.register(names)
        case "block":
            statistics.blocks[scope, tuple(names)] = rows
        case "number":
            statistics.numbers[names[0]] = moments.number_of_rows(rows)
        case "interval":
            statistics.books.setdefault(scope, Books()).interval.put(names, rows)
        case "latest":
            statistics.books.setdefault(scope, Books()).latest.put(names, shared)
        case _:
            raise CheckpointError(
                "saved statistics hold an entry that this version does not know", value=kind, fix="load it with the version that saved it"
            )


def _label(kind: str, scope: str, names: list[str] | tuple[str, ...]) -> str:
    return json.dumps([kind, scope, list(names)])


def _names(label: str) -> list[str]:
    return json.loads(label)[2]
