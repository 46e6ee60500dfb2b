"""What a replayed step saw, for people and programs: a table of its samples, a picture of them, and its numbers beside the run's."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from iddpm_ray import build, storage
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.diffusion.gaussian import q_sample
from iddpm_ray.diffusion.sample import to_bytes
from iddpm_ray.errors import SpecError
from iddpm_ray.evaluate.replay import Plan, Replayed
from iddpm_ray.sinks.pictures import sheet, to_png
from iddpm_ray.sinks.rows import volatile
from iddpm_ray.train.conditions import changed

MOST_SHOWN = 16  # samples of a picture


@dataclass(frozen=True, eq=False)
class Seen:
    """The samples of a step in position order, over all ranks; arrays as in `Replayed`, [G]."""

    plan: Plan
    ranks: NDArray[np.int64]
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    given: NDArray[np.int64] | None
    pixels: NDArray[np.uint8]
    x_start: NDArray[np.float32]
    noise: NDArray[np.float32]
    first: Replayed

    @property
    def positions(self) -> NDArray[np.int64]:
        """Places in the endless sample sequence."""
        return (self.plan.step - 1) * len(self.rows) + np.arange(len(self.rows))


def together(plan: Plan, found: Sequence[Replayed]) -> Seen:
    """What all ranks saw."""
    ranks = np.repeat(np.arange(len(found)), [len(one.rows) for one in found])
    given = np.concatenate([one.cond["y"] for one in found]) if "y" in found[0].cond else None
    rows, labels, pixels, x_start, noise = (
        np.concatenate([getattr(one, name) for one in found]) for name in ("rows", "labels", "pixels", "x_start", "noise")
    )
    return Seen(plan, ranks, rows, labels, given, pixels, x_start, noise, found[0])


def check_sample(seen: Seen, sample: int | None) -> None:
    """Refuses a sample that the step did not have.

    Raises:
        SpecError: names how many it had.
    """
    if sample is not None and not 0 <= sample < len(seen.rows):
        raise SpecError("sample", value=sample, fix=f"step {seen.plan.step} has samples 0 to {len(seen.rows) - 1}")


def table(seen: Seen, manifest: Manifest) -> pa.Table:
    """A row a sample: where it stands, what it is, every draw of it, and its losses."""
    first = seen.first
    columns: dict[str, Any] = {
        "position": seen.positions,
        "rank": seen.ranks,
        "row": seen.rows,
        "path": manifest.column("path", seen.rows),
        "row_in_file": manifest.column("row", seen.rows),
        "label": seen.labels,
        "given_label": seen.labels if seen.given is None else seen.given,
        "mirrored": _mirrored(seen),
        "timestep": first.t,
        "weight": first.weights,
        "loss": first.loss,
        "mse": first.mse,
        "vb": first.vb,
        "pixels": [to_png(torch.from_numpy(pixels)) for pixels in seen.pixels],
        "noise": pa.array(list(seen.noise.reshape(len(seen.rows), -1)), pa.list_(pa.float32())),
    }
    return pa.table({name: values for name, values in columns.items() if values is not None})


def picture(seen: Seen, *, sample: int | None) -> bytes:
    """PNG of the pictures as the network was shown them: upper row x_start, then x_t at its timestep, then the noise."""
    chosen = np.arange(min(MOST_SHOWN, len(seen.rows))) if sample is None else np.array([sample])
    diffusion = build.diffusion(seen.plan.spec.diffusion)
    x_start, noise = torch.from_numpy(seen.x_start[chosen]), torch.from_numpy(seen.noise[chosen])
    x_t = q_sample(diffusion, x_start=x_start, t=torch.from_numpy(seen.first.t[chosen]), noise=noise)
    laid_out = sheet(torch.cat([to_bytes(part) for part in (x_start, x_t, noise / 3)]), columns=len(chosen))
    scale = max(1, 64 // x_start.shape[-1])
    return to_png(laid_out.repeat_interleave(scale, dim=1).repeat_interleave(scale, dim=2))


def differing(seen: Seen) -> list[str]:
    """Columns of the run's own row of the step that the replay did not meet bit for bit; times and rates aside."""
    recorded = seen.plan.recorded or {}
    ours = seen.first.row
    return [name for name, value in recorded.items() if not volatile(name) and repr(ours.get(name)) != repr(value)]


def describe(seen: Seen, manifest: Manifest, *, sample: int | None) -> str:
    """What was seen, in words: conditions, the row, what was not finite, and the samples one by one."""
    plan, first = seen.plan, seen.first
    lines = [*first.messages]
    if plan.others:
        lines.append(f"steps on the way were first done by attempts {', '.join(map(str, plan.others))}")
    if plan.conditions and (difference := changed(plan.conditions, first.conditions)) is not None:
        lines.append(difference)
    if plan.recorded is None:
        lines.append(f"the run wrote no row at step {plan.step}; this is what it would have held since the row before")
    elif wrong := differing(seen):
        lines.append(f"not bit for bit the run's row of step {plan.step}: {', '.join(wrong)}")
    else:
        lines.append(f"bit for bit the run's row of step {plan.step}")
    lines += [f"  {name} {value:.6g}" for name, value in first.row.items() if not volatile(name) and isinstance(value, int | float)][:12]
    if first.first_nonfinite is not None:
        lines.append(f"the first loss that was not finite came at step {first.first_nonfinite}")
    if first.error is not None:
        lines.append(f"here the run ends: {first.error}")
    bad = np.flatnonzero(~np.isfinite(first.loss))
    if len(bad):
        lines.append(f"samples of step {plan.step} whose loss is not finite: {', '.join(map(str, bad[:16]))}")
    shown = [sample] if sample is not None else [*bad[:MOST_SHOWN], *[i for i in range(len(seen.rows)) if i not in set(bad)]][:MOST_SHOWN]
    return "\n".join([*lines, *(_sample(seen, manifest, int(index)) for index in shown)])


def write_results(folder: str, seen: Seen, manifest: Manifest, *, sample: int | None) -> list[str]:
    """Writes `samples.parquet`, `samples.png` and `row.json`; returns their names."""
    file = io.BytesIO()
    pq.write_table(table(seen, manifest), file)
    row = {name: value if not isinstance(value, float) or np.isfinite(value) else repr(value) for name, value in seen.first.row.items()}
    files = {
        "samples.parquet": file.getvalue(),
        "samples.png": picture(seen, sample=sample),
        "row.json": json.dumps(
            {"replayed": row, "differs_in": differing(seen), "recorded": seen.plan.recorded is not None}, indent=1
        ).encode(),
    }
    for name, data in files.items():
        storage.write_whole(storage.join(folder, name), data)
    return list(files)


def _sample(seen: Seen, manifest: Manifest, index: int) -> str:
    first = seen.first
    terms = "".join(f" {name} {values[index]:.6g}" for name, values in (("mse", first.mse), ("vb", first.vb)) if values is not None)
    shown = "" if seen.labels[index] < 0 else f", class {manifest.classes[seen.labels[index]]}"
    dropped = ", label dropped" if seen.given is not None and seen.given[index] != seen.labels[index] else ""
    mirrored = ", mirrored" if _mirrored(seen)[index] else ""
    name, position, rank = manifest.name(int(seen.rows[index])), seen.positions[index], seen.ranks[index]
    drawn = f"timestep {first.t[index]}, weight {first.weights[index]:.6g}, loss {first.loss[index]:.6g}{terms}"
    return f"sample {index} (position {position}, rank {rank}): {name}{shown}{dropped}{mirrored}; {drawn}"


def _mirrored(seen: Seen) -> NDArray[np.bool_]:
    shown = np.round((seen.x_start + 1) * 127.5).astype(np.int64)
    same = (shown == seen.pixels).reshape(len(shown), -1).all(axis=1)
    return ~same
