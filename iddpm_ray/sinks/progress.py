"""A row as one line for a person who watches."""

import math
from collections.abc import Mapping


def progress_line(row: Mapping[str, float | int | str], *, total_samples: int | None) -> str:
    """How far, how fast, how well, how much longer: `step 1,200 of 5,000 (24 %)  811 images/s  loss 0.0312  ETA 4 min`.

    Args:
        row: a row with `step` and `samples`; `images_per_second` and `loss` if it has them.
        total_samples: samples of the whole run, or None if it ends by the wall clock; then there is no ETA.
    """
    step, samples = int(row["step"]), int(row["samples"])
    parts = [f"step {step:,}"]
    if total_samples is not None:
        steps = math.ceil(total_samples * step / samples) if samples else 0
        parts = [f"step {step:,} of {steps:,} ({min(100, 100 * samples // total_samples)} %)"]
    rate = float(row.get("images_per_second", math.nan))
    if math.isfinite(rate):
        parts.append(f"{rate:,.0f} images/s" if rate >= 10 else f"{rate:.2g} images/s")
    if "loss" in row:
        parts.append(f"loss {float(row['loss']):.4g}")
    if total_samples is not None and math.isfinite(rate) and rate > 0:
        parts.append(f"ETA {duration_text(max(0, total_samples - samples) / rate)}")
    return "  ".join(parts)


def duration_text(seconds: float) -> str:
    """Seconds in the one or two units a person would use: `45 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"
