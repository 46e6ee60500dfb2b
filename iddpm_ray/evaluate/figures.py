"""Pictures of a run for people: a sheet of samples, and the curves of its rows."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # not pyplot, which looks for a screen
from torch import Tensor

from iddpm_ray.sinks.pictures import sheet, to_png

QUARTILES = [f"loss_q{quartile}" for quartile in range(4)]


def save_sheet(pictures: Tensor, path: Path, *, columns: int, scale: int = 4, margin: int = 2) -> None:
    """Lays pictures out row by row, enlarged without smoothing, with white margins between them and around.

    Args:
        pictures: [N, C, H, W] uint8, C 1 or 3; a last row that is not full stays white.
        scale: each pixel becomes a square of that many.
        margin: width of the margins, before enlarging.
    """
    laid_out = sheet(pictures, columns=columns, margin=margin)
    enlarged = laid_out.repeat_interleave(scale, dim=1).repeat_interleave(scale, dim=2)
    path.write_bytes(to_png(enlarged))


def save_curves(rows: Sequence[Mapping[str, float | int | str]], path: Path, *, title: str) -> None:
    """Four panels over the samples seen: loss, loss by quartile of the timestep, gradient norm with learning rate, speed.

    Args:
        rows: a run's rows; a column that no row has leaves its panel empty.
    """
    figure = Figure(figsize=(11, 7), layout="constrained")
    (loss, quartiles), (gradient, speed) = figure.subplots(2, 2)
    figure.suptitle(title)
    for name, label in (("loss", "loss"), ("mse", "mean square error"), ("vb", "variational term")):
        _curve(loss, rows, name, label=label)
    for name, label in zip(QUARTILES, ("least noise", "second quarter", "third quarter", "most noise"), strict=True):
        _curve(quartiles, rows, name, label=label)
    _curve(gradient, rows, "grad_norm", label="gradient norm")
    _curve(speed, rows, "images_per_second", label="images/s")
    rate = gradient.twinx()
    _curve(rate, rows, "lr", label="learning rate", color="tab:orange")
    rate.set_ylim(bottom=0)
    speed.set_ylim(bottom=0)
    titles = {loss: "loss", quartiles: "loss by timestep", gradient: "gradient norm (log) and learning rate", speed: "images/s"}
    for axes, name in titles.items():
        axes.set_title(name)
        axes.set_xlabel("samples seen")
        axes.grid(alpha=0.3)
        if axes is not speed:
            axes.set_yscale("log")
    for axes in (loss, quartiles):
        if axes.get_lines():
            axes.legend()
    figure.savefig(path, dpi=110)


def save_quality(rows: Sequence[Mapping[str, float | int | str]], path: Path, *, title: str) -> None:
    """One panel a metric over the samples seen, out of a run's rows of evaluations (metrics/evaluations.jsonl)."""
    names = [name for name in (rows[-1] if rows else {}) if name not in ("step", "samples", "attempt")]
    columns = min(3, max(1, len(names)))
    figure = Figure(figsize=(11, 3.2 * max(1, math.ceil(len(names) / columns))), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(max(1, math.ceil(len(names) / columns)), columns, squeeze=False)
    for axes, name in zip(panels.flat, names, strict=False):
        _curve(axes, rows, name, label=name)
        for line in axes.get_lines():
            line.set_marker("o")
        axes.set_title(name)
        axes.set_xlabel("samples seen")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def _curve(axes: Axes, rows: Sequence[Mapping[str, float | int | str]], key: str, *, label: str, color: str | None = None) -> None:
    """One line of a column, where it is a finite number."""
    points = [(float(row["samples"]), float(row[key])) for row in rows if key in row and math.isfinite(float(row[key]))]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, color=color, linewidth=1.2)
