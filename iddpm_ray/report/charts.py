"""Drawings of a report as SVG text: when which attempt had its workers and what they did, restarts, and curves over steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from iddpm_ray.report.accounts import RunAccount
from iddpm_ray.report.attempt import Account
from iddpm_ray.report.axes import Scale, drawable, scale_of, short, thinned
from iddpm_ray.report.categories import RESTART, START, category, in_order
from iddpm_ray.report.text import moment, phase_words
from iddpm_ray.sinks.progress import duration_text

WIDTH = 1040
LAST = ("unaccounted", "detect", "stopping")
ENDING_COLOURS = {"finished": "#2a9d6f", "stopped": "#6b6f7b", "preempted": "#e9a23b", "grown": "#4a8fc7", "running": "#2a9d6f"}


@dataclass(frozen=True)
class Line:
    """One curve: points (step, value) in step order."""

    label: str
    colour: str
    points: Sequence[tuple[float, float]]


def timeline(account: RunAccount) -> str:
    """Attempts along the clock, as high as their workers are many; inside, the parts of each category in the order of a life."""
    known = [one for one in account.attempts if one.began is not None and one.ended is not None and one.ended > one.began]
    if not known:
        return ""
    places = _places(known)
    most = max(one.workers for one in known)
    top, height = 26, 130
    parts: list[str] = []
    for one, (left, right) in zip(known, places, strict=True):
        tall = height * one.workers / most
        y = top + height - tall
        parts += _segments(one, left=left, right=right, y=y, tall=tall)
        if right - left > 14:
            parts.append(f'<text x="{(left + right) / 2:.1f}" y="{y - 6:.1f}" class="tick mid">{one.number}</text>')
        colour = ENDING_COLOURS.get(one.why, "#c8413b")
        said = escape(f"attempt {one.number} {one.why}" + (f": {one.cause}" if one.cause else ""))
        parts.append(f'<circle cx="{right:.1f}" cy="{top + height + 11}" r="4.5" fill="{colour}"><title>{said}</title></circle>')
    for (_, end), (begin, _), one, later in zip(places, places[1:], known, known[1:], strict=False):
        pause = (later.began or 0.0) - (one.ended or 0.0)
        if pause > 0 and begin - end > 30:
            parts.append(f'<text x="{(begin + end) / 2:.1f}" y="{top + height / 2}" class="tick mid">{duration_text(pause)}</text>')
    base = top + height
    parts.append(f'<line x1="0" x2="{WIDTH}" y1="{base + 0.5}" y2="{base + 0.5}" class="axis"/>')
    parts.append(f'<text x="0" y="{base + 34}" class="tick">{moment(known[0].began)} UTC</text>')
    parts.append(f'<text x="{WIDTH}" y="{base + 34}" class="tick end">{moment(known[-1].ended)} UTC</text>')
    return _svg(parts, WIDTH, base + 42, "attempts along the clock")


def _places(known: Sequence[Account]) -> list[tuple[float, float]]:
    """Left and right of every attempt in pixels; long pauses between attempts are drawn short."""
    busy = sum((one.ended or 0.0) - (one.began or 0.0) for one in known)
    longest = 0.06 * busy
    clock = 0.0
    spans: list[tuple[float, float]] = []
    for index, one in enumerate(known):
        began, ended = one.began or 0.0, one.ended or 0.0
        if index:
            clock += min(max(0.0, began - (known[index - 1].ended or 0.0)), longest)
        spans.append((clock, clock + ended - began))
        clock += ended - began
    factor = (WIDTH - 12) / clock
    return [(6 + begin * factor, 6 + end * factor) for begin, end in spans]


def _segments(one: Account, *, left: float, right: float, y: float, tall: float) -> list[str]:
    """The parts of an attempt: its start by phase, its middle, its end; parts of the middle stand for all of it together."""
    names = in_order(set(one.seconds))
    middle = [name for name in names if name not in START and name not in LAST]
    order = [*START, *middle, *LAST]
    total = sum(max(0.0, value) for value in one.seconds.values()) or 1.0
    parts: list[str] = []
    x = left
    for name in order:
        seconds = max(0.0, one.seconds.get(name, 0.0))
        width = (right - left) * seconds / total
        if width > 0:
            kind = category(name)
            said = escape(f"attempt {one.number}, {kind.words}: {seconds / one.workers:,.1f} s a worker ({100 * seconds / total:.1f} %)")
            parts.append(
                f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{tall:.1f}" fill="{kind.colour}"><title>{said}</title></rect>'
            )
        x += width
    return parts


def whole_bar(account: RunAccount, *, height: int = 34) -> str:
    """All worker-seconds of the run as one bar."""
    parts: list[str] = []
    x = 0.0
    total = sum(max(0.0, value) for value in account.seconds.values())
    for name in in_order(set(account.seconds)):
        seconds = max(0.0, account.seconds.get(name, 0.0))
        if total > 0 and seconds > 0:
            width = WIDTH * seconds / total
            kind = category(name)
            said = escape(f"{kind.words}: {100 * seconds / total:.2f} %")
            parts.append(f'<rect x="{x:.2f}" y="0" width="{width:.2f}" height="{height}" fill="{kind.colour}"><title>{said}</title></rect>')
            x += width
    return _svg(parts, WIDTH, height, "all worker-seconds by category")


def restarts(account: RunAccount) -> str:
    """For every attempt a bar of the seconds to its first step, by phase."""
    shown = [one for one in account.restarts if one.seconds > 0]
    if not shown:
        return ""
    most = max(one.seconds for one in shown)
    scale = scale_of([0.0, most], begin=70, end=WIDTH - 110, zero=True)
    row = 22
    parts: list[str] = []
    for index, one in enumerate(shown):
        y = index * row
        parts.append(f'<text x="0" y="{y + 14}" class="tick">attempt {one.attempt}</text>')
        x = 0.0
        for name in RESTART:
            seconds = one.phases.get(name, 0.0)
            if seconds > 0:
                begin, end = scale.at(x), scale.at(x + seconds)
                said = escape(f"attempt {one.attempt}, {phase_words(name)}: {seconds:.1f} s")
                colour = category("stopping" if name == "stop" else name).colour
                parts.append(
                    f'<rect x="{begin:.2f}" y="{y + 3}" width="{end - begin:.2f}" height="15" fill="{colour}"><title>{said}</title></rect>'
                )
                x += seconds
        words = f"{one.seconds:.1f} s" if one.stepped else f"{one.seconds:.1f} s, no step"
        parts.append(f'<text x="{scale.at(x) + 6:.1f}" y="{y + 15}" class="tick">{words}</text>')
    return _svg(parts, WIDTH, row * len(shown) + 4, "seconds to the first step of every attempt")


def curves(lines: Sequence[Line], *, restarts_at: Sequence[float] = (), log: bool = False, zero: bool = False, label: str) -> str:
    """Curves over steps, with a mark where an attempt went on.

    Args:
        restarts_at: steps from which attempts went on.
        label: what the picture is, for those who cannot see it.
    """
    drawn = [Line(line.label, line.colour, thinned(line.points)) for line in lines]
    finite = [point for line in drawn for point in line.points if drawable(point[1])]
    if not finite:
        return ""
    width, height, left, right, top, bottom = 510, 250, 52, 500, 12, 216
    across = scale_of([x for x, _ in finite], begin=left, end=right)
    up = scale_of([y for _, y in finite], begin=bottom, end=top, log=log, zero=zero)
    parts: list[str] = []
    for value in up.ticks():
        y = up.at(value)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" class="tick end">{short(value)}</text>')
    for value in across.ticks():
        parts.append(f'<text x="{across.at(value):.1f}" y="{bottom + 18}" class="tick mid">{short(value)}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 32}" class="tick end">steps</text>')
    for step in restarts_at:
        if across.low <= step <= across.high:
            x = across.at(step)
            said = f"<title>went on from step {step:,.0f}</title>"
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" class="restart">{said}</line>')
    for line in drawn:
        parts += polyline(line, across, up)
    return _svg(parts, width, height, label)


def polyline(line: Line, across: Scale, up: Scale) -> list[str]:
    """A line, broken where a value cannot be drawn; a point that stands alone is a dot."""
    runs: list[list[str]] = [[]]
    for x, y in line.points:
        if drawable(y) and not (up.log and y <= 0):
            runs[-1].append(f"{across.at(x):.1f},{up.at(y):.1f}")
        elif runs[-1]:
            runs.append([])
    parts: list[str] = []
    for run in runs:
        if len(run) == 1:
            x, _, y = run[0].partition(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{line.colour}"/>')
        elif run:
            parts.append(f'<polyline points="{" ".join(run)}" class="curve" stroke="{line.colour}"/>')
    return parts


def _svg(parts: Sequence[str], width: float, height: float, label: str) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )
