"""Where things stand in a chart: round ticks, scales, thinned lines. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

FARTHEST = 1e300
"""What is further from zero is not drawn: differences of such numbers are no numbers."""


@dataclass(frozen=True)
class Scale:
    """From values to pixels, straight or logarithmic."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, value = (math.log10(each) if self.log else each for each in (self.low, self.high, value))
        return self.begin + (self.end - self.begin) * ((value - low) / (high - low) if high > low else 0.5)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values inside, about `count` of them."""
        if self.log:
            decades = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            steps = (1,) if len(decades) > 2 else (1, 2, 5)
            first = math.floor(math.log10(self.low))
            found = [m * 10.0**power for power in range(first, first + 2 + len(decades)) for m in steps]
            return [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]
        step = round_step((self.high - self.low) / max(1, count))
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def scale_of(values: Sequence[float], *, begin: float, end: float, log: bool = False, zero: bool = False) -> Scale:
    """A scale that holds all values, with a little room.

    Args:
        log: logarithmic if all values are above zero and span more than a factor of eight.
        zero: begin at zero.
    """
    low, high = min(values), max(values)
    if log and low > 0 and high > 8 * low:
        return Scale(low / 1.15, high * 1.15, begin, end, log=True)
    low = min(0.0, low) if zero else low
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(low if zero else low - room, high + room, begin, end)


def round_step(width: float) -> float:
    """The nearest of 1, 2, 5 x 10^n, as a ratio."""
    if width <= 0 or not math.isfinite(width):
        return 1.0
    power = 10.0 ** math.floor(math.log10(width))
    return min((factor * power for factor in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / width)))


def thinned(points: Sequence[tuple[float, float]], *, most: int = 400) -> list[tuple[float, float]]:
    """At most that many points: means of neighbours; points that cannot be drawn stand alone, so that a line breaks there."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / most)
    out: list[tuple[float, float]] = []
    for first in range(0, len(points), size):
        group = points[first : first + size]
        finite = [point for point in group if drawable(point[1])]
        out += [point for point in group if not drawable(point[1])][:1]
        if finite:
            out.append((sum(x for x, _ in finite) / len(finite), sum(y for _, y in finite) / len(finite)))
    return out


def drawable(value: float) -> bool:
    """Whether a chart has a place for the value."""
    return abs(value) <= FARTHEST  # nor is anything true of NaN


def short(value: float) -> str:
    """A tick as a person writes it."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000 or abs(value) < 0.001:
        for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if abs(value) >= factor:
                return f"{value / factor:g}{unit}"
        return f"{value:.0e}"
    return f"{value:,.6g}"
