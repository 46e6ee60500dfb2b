"""Figures show every picture where it belongs, and draw whatever rows there are."""

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from iddpm_ray.evaluate.figures import save_curves, save_quality, save_sheet


def test_a_sheet_has_margins_and_each_picture_at_its_place(tmp_path: Path) -> None:
    pictures = torch.stack([torch.full((1, 2, 3), 10 * n, dtype=torch.uint8) for n in range(5)])
    save_sheet(pictures, tmp_path / "sheet.png", columns=3, scale=2, margin=1)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (2 * (1 + 2 * (2 + 1)), 2 * (1 + 3 * (3 + 1)))
    small = sheet[::2, ::2]
    for number in range(5):
        row, column = divmod(number, 3)
        place = small[1 + 3 * row : 3 + 3 * row, 1 + 4 * column : 4 + 4 * column]
        np.testing.assert_array_equal(place, np.full((2, 3), 10 * number))
    assert (small[0] == 255).all()
    assert (small[:, 0] == 255).all()
    assert (small[4:, 9:] == 255).all(), "an empty place stays white"


def test_colour_stays_colour(tmp_path: Path) -> None:
    save_sheet(torch.tensor([200, 20, 90], dtype=torch.uint8).reshape(1, 3, 1, 1), tmp_path / "sheet.png", columns=1, scale=1, margin=1)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "sheet.png"))[1, 1], [200, 20, 90])


def test_curves_bear_missing_and_nonfinite_numbers(tmp_path: Path) -> None:
    rows = [{"step": step, "samples": 8 * step, "loss": 1 / step if step != 3 else math.nan, "loss_q2": 0.1} for step in range(1, 9)]
    save_curves(rows, tmp_path / "curves.png", title="run")
    drawn = np.asarray(Image.open(tmp_path / "curves.png").convert("L"))
    save_curves([], tmp_path / "empty.png", title="run")
    empty = np.asarray(Image.open(tmp_path / "empty.png").convert("L"))
    assert drawn.shape == empty.shape
    assert not np.array_equal(drawn, empty)


def test_quality_has_a_panel_a_metric(tmp_path: Path) -> None:
    rows = [{"step": step, "samples": 8 * step, "fid[x]": 1 / step, "kid[x]": 0.1, "attempt": 1} for step in range(1, 5)]
    save_quality(rows, tmp_path / "two.png", title="run")
    save_quality([{**row, "is[x]": 2.0, "precision[x]": 0.5} for row in rows], tmp_path / "four.png", title="run")
    save_quality([], tmp_path / "none.png", title="run")
    heights = [np.asarray(Image.open(tmp_path / f"{name}.png")).shape[0] for name in ("none", "two", "four")]
    assert heights[0] == heights[1] < heights[2]
