"""The Fréchet distance of Inception's 2048 numbers: statistics and distance, against torchmetrics on the same features."""

import warnings

import numpy as np
import torch
from timing import Comparison, Effort, NotRun, compare
from torch import Tensor, nn

from iddpm_ray.evaluate.frechet import frechet_distance, sums_in_order

SIZE, CHUNK = 2048, 256


def results(effort: Effort) -> list[Comparison | NotRun]:
    """Seconds for statistics, and for the distance."""
    try:
        from torchmetrics.image.fid import FrechetInceptionDistance
    except ImportError:
        return [NotRun("Fréchet distance", "torchmetrics is not installed")]
    size, count = (32, 64) if effort.quick else (SIZE, 4 * SIZE)
    generator = np.random.default_rng(0)
    sides = [generator.standard_normal((count, size), dtype=np.float32) + shift for shift in (0.0, 0.1)]
    chunk = min(CHUNK, count // 2)
    parts = [[side[begin : begin + chunk] for begin in range(0, count, chunk)] for side in sides]

    def gather() -> FrechetInceptionDistance:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            metric = FrechetInceptionDistance(feature=_Given(size), input_img_size=(1, 1, size))
            metric.set_dtype(torch.float64)
            for side, real in zip(parts, (True, False), strict=True):
                for part in side:
                    metric.update(torch.from_numpy(part).view(-1, 1, 1, size), real=real)
        return metric

    theirs = gather()
    ours = [sums_in_order(side).gaussian() for side in parts]
    apart = abs(frechet_distance(*ours) - float(theirs.compute())) / float(theirs.compute())
    note = f"{count} pictures a side in chunks of {chunk}, float64 both; the distances agree to {apart:.1g}"
    return [
        compare(
            f"statistics of {size} features",
            lambda: [sums_in_order(side) for side in parts],
            gather,
            ours_label="sums_in_order",
            peer_label="torchmetrics update",
            at_most=1.0,
            note=note,
            repeats=effort.of(5),
        ),
        compare(
            f"Fréchet distance of {size} features",
            lambda: frechet_distance(*ours),
            lambda: _again(theirs),
            ours_label="frechet_distance",
            peer_label="torchmetrics compute",
            at_most=1.0,
            note=note,
            repeats=effort.of(3),
        ),
    ]


def _again(metric: "nn.Module") -> Tensor:
    """The distance, which torchmetrics would otherwise remember."""
    metric._computed = None  # type: ignore[assignment]
    return metric.compute()  # type: ignore[operator]


class _Given(nn.Module):
    """Hands the features through."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.num_features = size

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 1, D] as [N, D]."""
        return x.flatten(1).float()
