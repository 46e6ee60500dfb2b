"""The checkpoints of a run for people: what is there, whether it is sound, and how one is taken away."""

import time
from dataclasses import dataclass

from iddpm_ray import storage
from iddpm_ray.checkpoint.attempts import Link, attempts, in_lineage, lineage
from iddpm_ray.checkpoint.commit import Checkpoint, Stored, check_sizes, delete_checkpoint, read_marker, survey, verify
from iddpm_ray.checkpoint.marker import MARKER
from iddpm_ray.errors import CheckpointError, UserError


@dataclass(frozen=True)
class Item:
    """One checkpoint's line.

    Attributes:
        stored: what lies there.
        state: `complete`, `partial` (never marked), or what is wrong with it.
        age_s: seconds since it was marked, by this machine's clock; None if it never was.
        in_lineage: whether the run consists of it; a complete one outside was made by an attempt that no later one began from.
    """

    stored: Stored
    state: str
    age_s: float | None
    in_lineage: bool

    @property
    def checkpoint(self) -> Checkpoint:
        """Its place."""
        return self.stored.checkpoint

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(self.stored.sizes.values())


def inventory(run_url: str) -> list[Item]:
    """Every checkpoint directory of a run, newest step first; markers are read, data is not.

    Raises:
        CheckpointError: there is none.
    """
    chain = lineage(attempts(run_url))
    items = [_item(stored, chain) for stored in reversed(survey(run_url))]
    if not items:
        raise CheckpointError(
            "no checkpoints here", value=storage.shown(run_url), fix="name the directory of a run: {run.output_dir}/{run.name}"
        )
    return items


def pick(items: list[Item], which: str) -> list[Item]:
    """Those that a person means by a name (step-00001000.a0003) or a step (1000).

    Raises:
        CheckpointError: none; names those that are there.
    """
    found = [item for item in items if which in (item.checkpoint.name, str(item.checkpoint.step))]
    if not found:
        some = ", ".join(item.checkpoint.name for item in items[:4])
        raise CheckpointError("no such checkpoint", value=which, fix=f"there are {some}{' and others' if len(items) > 4 else ''}")
    return found


def damage(item: Item) -> str | None:
    """Reads and hashes everything; what is wrong, or None. A partial one is none that could be damaged."""
    if not item.stored.marked:
        return None
    try:
        check_sizes(item.stored, verify(item.checkpoint))
    except CheckpointError as error:
        return str(error)
    return None


def remove(run_url: str, item: Item, *, items: list[Item], force: bool) -> None:
    """Unmarks a checkpoint and deletes it; others are read and hashed as far as it takes to know what the run goes on from.

    Raises:
        CheckpointError: the run would lose what it goes on from, or what an attempt is recorded to have begun from, and nobody insists.
    """
    if not force:
        _check_needless(run_url, item, items=items)
    delete_checkpoint(item.checkpoint)


def _check_needless(run_url: str, item: Item, *, items: list[Item]) -> None:
    """That the run can do without it. A damaged one is not gone on from, so nobody needs it."""
    if item.state != "complete" or damage(item) is not None:
        return
    name, fix = item.checkpoint.name, "--force removes it all the same"
    newer = [other for other in items[: items.index(item)] if other.state == "complete" and other.in_lineage]
    if item.in_lineage and all(damage(other) is not None for other in newer):
        raise CheckpointError(f"{name} is the newest sound checkpoint: the run goes on from it", fix=fix)
    began = (item.checkpoint.step, item.checkpoint.attempt)
    begun = [one.number for one in attempts(run_url) if one.began and (one.from_step, one.from_attempt) == began]
    if begun:
        raise CheckpointError(f"{name} is what attempt {begun[-1]} began from", fix=fix)


def describe(items: list[Item]) -> str:
    """A table."""
    rows = [("step", "attempt", "bytes", "age", "state", "in the run", "name")]
    for item in items:
        age = "-" if item.age_s is None else _age(item.age_s)
        one = item.checkpoint
        rows.append((str(one.step), str(one.attempt), f"{item.bytes:,}", age, item.state, "yes" if item.in_lineage else "no", one.name))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _item(stored: Stored, chain: list[Link]) -> Item:
    one = stored.checkpoint
    inside = in_lineage(chain, step=one.step, attempt=one.attempt)
    if not stored.marked:
        return Item(stored, "partial", None, inside)
    state = "complete"
    try:
        check_sizes(stored, read_marker(one))
    except UserError as error:
        state = error.what.removeprefix(f"{one.name} is ").removeprefix(f"{one.name}: ")
    return Item(stored, state, max(0.0, time.time() - storage.modified(storage.join(one.url, MARKER))), inside)


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
