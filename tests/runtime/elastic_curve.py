"""The losses of an elastic run laid over those of a fixed one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

SMOOTHED_OVER = 25


def save_elastic_curve(elastic: Sequence[float], fixed: Sequence[float], begun: Sequence[tuple[int, int]], path: Path) -> None:
    """Two panels over the steps: both losses, each the mean of some steps, and how far apart they are at every step.

    Args:
        elastic, fixed: the loss of each step, from step 1 on.
        begun: workers of each group, and the step that it began after.
    """
    figure = Figure(figsize=(11, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    one, other = np.asarray(elastic), np.asarray(fixed)
    window = np.ones(SMOOTHED_OVER) / SMOOTHED_OVER
    steps = np.arange(1, len(one) + 1)
    middle = steps[SMOOTHED_OVER - 1 :] - SMOOTHED_OVER // 2
    above.plot(middle, np.convolve(other, window, "valid"), label="one worker from beginning to end", color="tab:orange", linewidth=3.5)
    above.plot(middle, np.convolve(one, window, "valid"), label="workers that come and go", color="tab:blue", linewidth=1.2)
    above.set_yscale("log")
    above.set_ylabel(f"loss, mean of {SMOOTHED_OVER} steps")
    below.plot(steps, np.abs(one - other) / np.abs(other), color="tab:grey", linewidth=0.8)
    below.axhline(1e-5, color="tab:red", linewidth=0.8, linestyle="--")
    below.set_yscale("log")
    below.set_ylabel("difference of each step's loss,\nas a share of it")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        for _, start in begun:
            axes.axvline(start, color="black", linewidth=0.6, alpha=0.5)
    above.set_title("workers: " + ", then ".join(f"{workers} from step {start}" for workers, start in begun))
    above.legend()
    figure.savefig(path, dpi=110)
