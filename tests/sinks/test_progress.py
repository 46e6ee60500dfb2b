"""The live line says how far, how fast, how well and how much longer, and survives odd numbers."""

import math

import pytest

from iddpm_ray.sinks.progress import duration_text, progress_line


def test_a_full_line() -> None:
    row = {"step": 1200, "samples": 1200 * 128, "images_per_second": 800.0, "loss": 0.031234}
    assert progress_line(row, total_samples=5000 * 128) == "step 1,200 of 5,000 (24 %)  800 images/s  loss 0.03123  ETA 10 min 8 s"


def test_a_run_that_ends_by_the_clock_has_no_eta() -> None:
    assert (
        progress_line({"step": 3, "samples": 24, "images_per_second": 2.0, "loss": 1.0}, total_samples=None) == "step 3  2 images/s  loss 1"
    )


@pytest.mark.parametrize("rate", [0.0, math.nan, math.inf])
def test_impossible_rates_give_no_eta(rate: float) -> None:
    assert "ETA" not in progress_line({"step": 1, "samples": 8, "images_per_second": rate, "loss": math.nan}, total_samples=80)


def test_the_last_step_is_the_whole_even_if_it_overshoots() -> None:
    assert progress_line({"step": 4, "samples": 32, "images_per_second": 8.0}, total_samples=30).startswith("step 4 of 4 (100 %)")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 0 min"),
        (7500, "2 h 5 min"),
        (86400 * 3 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_durations_in_a_persons_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
