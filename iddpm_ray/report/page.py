"""A run's report as one HTML page that needs nothing else: no network, no script."""

import time
from collections.abc import Mapping, Sequence
from html import escape

from iddpm_ray.report import charts
from iddpm_ray.report.accounts import RunAccount
from iddpm_ray.report.attempt import Account, mapping
from iddpm_ray.report.categories import RESTART, category, in_order
from iddpm_ray.report.charts import Line
from iddpm_ray.report.read import Picture, Run
from iddpm_ray.report.style import STYLE
from iddpm_ray.report.text import counted, encodable, interruptions, lasted, metrics_of, moment, money, phase_words
from iddpm_ray.sinks.progress import duration_text
from iddpm_ray.sinks.rows import Row

QUARTILES = ("#1f4e79", "#2a9d6f", "#e9a23b", "#c8413b")


def report_page(run: Run, *, now: float | None = None) -> str:
    """The page.

    Args:
        now: when it is made, in wall seconds; None for this moment.
    """
    account = run.account
    sections = [
        _head(run, time.time() if now is None else now),
        _tiles(account),
        _figure(charts.whole_bar(account), "all worker-seconds, by what they were; the table below is its legend"),
        _section("When", _figure(charts.timeline(account), _TIMELINE)),
        _section("Attempts", _attempts(account)),
        _section("Where the time went", _categories(account)),
        _section("To the first step", _figure(charts.restarts(account), _RESTARTS) + _restarts(account)),
        _section("Curves", _curves(run.rows, account)),
        _section("Quality", _quality(run.evaluations)),
        _section("Samples", _pictures(run.pictures)),
        _section("Machines and versions", _conditions(run)),
        _section("Notes", _notes(run)),
    ]
    body = "\n".join(section for section in sections if section)
    return encodable(
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(run.name)}: report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


_TIMELINE = (
    "Left to right the clock, with long pauses drawn short; the height is the number of workers. Inside an attempt its start by phase, "
    "then what its steps were spent on, each kind together, then its end. The dot says how it ended."
)
_RESTARTS = (
    "Seconds from the end of use of the attempt before, where the driver went on by itself, to the first step done; means of the workers."
)


def _head(run: Run, now: float) -> str:
    return f'<header><h1>{escape(run.name)}</h1><p class="place">{escape(run.place)}</p><p class="dim">made {moment(now)} UTC</p></header>'


def _tiles(account: RunAccount) -> str:
    goodput = "not known" if account.goodput is None else f"{100 * account.goodput:.1f} %"
    tiles = [
        ("goodput", goodput, "of all worker time went into steps of the result"),
        ("step", f"{account.step:,}", f"{counted(account.redone, 'step')} redone"),
        ("attempts", f"{len(account.attempts):,}", f"interrupted: {interruptions(account)}"),
        ("time of all workers", duration_text(account.total), f"unaccounted {100 * account.unaccounted:.2f} %"),
    ]
    if account.cost is not None:
        useful = "" if account.goodput is None else f"{money(account.goodput * account.cost)} of it productive"
        tiles.append(("cost", money(account.cost), useful))
    return '<div class="tiles">' + "".join(_tile(*tile, hero=tile is tiles[0]) for tile in tiles) + "</div>"


def _tile(name: str, value: str, about: str, *, hero: bool) -> str:
    said = f'<span class="dim">{escape(name)}</span><strong>{escape(value)}</strong><span class="dim">{escape(about)}</span>'
    return f'<div class="tile{" hero" if hero else ""}">{said}</div>'


def _attempts(account: RunAccount) -> str:
    rows = [
        [
            str(one.number),
            str(one.workers),
            escape(moment(one.began)),
            escape(lasted(one)),
            f"{one.from_step:,} to {one.reached:,}",
            f"{one.redone:,}",
            _badge(one),
            f'<span class="cause">{escape(one.cause)}</span>',
        ]
        for one in account.attempts
    ]
    return _table(["", "workers", "began (UTC)", "lasted", "steps", "redone", "ended", "cause"], rows, words=(6, 7))


def _badge(one: Account) -> str:
    colour = charts.ENDING_COLOURS.get(one.why, "#c8413b")
    return f'<span class="badge" style="background:{colour}">{escape(one.why)}</span>'


def _categories(account: RunAccount) -> str:
    rows: list[list[str]] = []
    for name in in_order(set(account.seconds)):
        seconds = account.seconds.get(name, 0.0)
        share = 100 * seconds / account.total if account.total > 0 else 0.0
        kind = category(name)
        bar = f'<span class="bar" style="width:{max(0.0, min(100.0, share)) * 1.6:.1f}px;background:{kind.colour}"></span>'
        swatch = f'<span class="swatch" style="background:{kind.colour}"></span>'
        rows.append(
            [f"{swatch}{escape(kind.words)}", bar, f"{seconds:,.1f}", f"{share:.2f} %", f'<span class="dim">{escape(kind.about)}</span>']
        )
    rows.append(["<strong>all</strong>", "", f"<strong>{account.total:,.1f}</strong>", "", ""])
    return _table(["", "", "worker-seconds", "share", ""], rows, words=(0, 1, 4))


def _restarts(account: RunAccount) -> str:
    rows = [
        [
            str(one.attempt),
            *(f"{one.phases[name]:.1f}" if name in one.phases else "" for name in RESTART),
            f"<strong>{one.seconds:.1f}</strong>" + ("" if one.stepped else " no step"),
        ]
        for one in account.restarts
    ]
    return _table(["attempt", *(phase_words(name) for name in RESTART), "all"], rows)


def _curves(rows: Sequence[Row], account: RunAccount) -> str:
    marks = sorted({float(one.from_step) for one in account.attempts if one.from_step > 0 and one.stepped})
    loss = [Line("loss", "#1f4e79", _points(rows, "loss"))]
    held_out = [key for key in ("val_loss", "validation_loss") if any(key in row for row in rows)]
    loss += [Line("held out", "#c8413b", _points(rows, key)) for key in held_out]
    speed = [Line("images a second", "#2a9d6f", _points(rows, "images_per_second"))]
    parts = ("first", "second", "third", "last")
    quartiles = [
        Line(f"{parts[index]} quarter of the timesteps", QUARTILES[index], _points(rows, f"loss_q{index}")) for index in range(len(parts))
    ]
    share = [Line("productive share of each interval", "#8f2d56", _points(rows, "productive_share"))]
    drawn = [
        _curve("Loss", loss, charts.curves(loss, restarts_at=marks, log=True, label="loss over steps")),
        _curve("Throughput", speed, charts.curves(speed, restarts_at=marks, zero=True, label="images a second over steps")),
        _curve("Loss by timestep", quartiles, charts.curves(quartiles, restarts_at=marks, log=True, label="loss by timestep over steps")),
        _curve("Productive share", share, charts.curves(share, restarts_at=marks, zero=True, label="productive share over steps")),
    ]
    shown = "".join(drawn)
    note = '<p class="dim">Dashed lines: steps from which an attempt went on.</p>' if marks and shown else ""
    return f'<div class="charts">{shown}</div>{note}' if shown else ""


def _quality(rows: Sequence[Row]) -> str:
    """A chart a metric of the evaluated checkpoints."""
    drawn = ""
    for name in metrics_of(rows):
        line = [Line("evaluated checkpoints", "#1f4e79", _points(rows, name))]
        drawn += _curve(name, line, charts.curves(line, label=f"{name} over steps"))
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def _points(rows: Sequence[Row], key: str) -> list[tuple[float, float]]:
    return [(float(row["step"]), float(value)) for row in rows if isinstance(value := row.get(key), int | float)]


def _curve(title: str, lines: Sequence[Line], svg: str) -> str:
    if not svg:
        return ""
    keys = "".join(
        f'<span><span class="swatch" style="background:{line.colour}"></span>{escape(line.label)}</span>' for line in lines if line.points
    )
    return f'<figure class="chart"><h3>{escape(title)}</h3><div class="keys">{keys}</div>{svg}</figure>'


def _pictures(pictures: Sequence[Picture]) -> str:
    shown = "".join(
        f'<figure><img src="data:image/png;base64,{one.png}" width="{one.width}" height="{one.height}" '
        f'alt="samples after {one.step:,} steps"><figcaption>step {one.step:,}</figcaption></figure>'
        for one in pictures
    )
    return f'<div class="pictures">{shown}</div>' if shown else ""


def _conditions(run: Run) -> str:
    newest = next((one for one in reversed(run.attempts) if one.began), None)
    if newest is None:
        return ""
    facts: Mapping[str, object] = {**mapping(newest.info.get("code")), **mapping(newest.info.get("conditions"))}
    rows = [[escape(str(name)), escape(str(value))] for name, value in facts.items()]
    return f"<details><summary>of attempt {newest.number}</summary>{_table(['', ''], rows, words=(0, 1))}</details>" if rows else ""


def _notes(run: Run) -> str:
    lines = [f"attempt {one.number}: {note}" for one in run.account.attempts for note in one.notes] + list(run.problems)
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>" if inner else ""


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" if svg else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = ()) -> str:
    """A table of HTML cells; columns of words are aligned left, those of numbers right."""
    kinds = ["w" if index in words else "n" for index in range(len(head))]
    top = "".join(f'<th class="{kind}">{escape(cell)}</th>' for cell, kind in zip(head, kinds, strict=True))
    lines = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, kinds, strict=True)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'
