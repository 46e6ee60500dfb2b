"""Draws the dashboard's panels out of a Prometheus as one HTML page, and takes a browser's picture of it.

It stands in for Grafana, where there is none: the same queries, the same places, no script.

    python tests/observed_page.py URL RUN page.html picture.png       of a Prometheus and a run that are there
    python tests/observed_page.py picture.png                         of a run on the digits, one of whose workers dies on the way
"""

import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import psutil
from monitored import Prometheus, started_head, started_prometheus, until
from processes import command_line

from iddpm_ray.evaluate.digits import export_digits
from iddpm_ray.kube.dashboard import TITLE, dashboard
from iddpm_ray.report.axes import Scale, scale_of, short
from iddpm_ray.report.categories import NAMES, category
from iddpm_ray.report.charts import Line, polyline
from iddpm_ray.report.style import STYLE
from iddpm_ray.report.text import moment
from iddpm_ray.sinks.progress import duration_text

COLOURS = ("#1f4e79", "#c8413b", "#2a9d6f", "#e9a23b", "#8f2d56", "#4a8fc7", "#6b6f7b", "#a8b545")
BEFORE, AFTER = 150, 100  # steps around the death of a worker
PAGE = (
    ".grid { display:grid; grid-template-columns:repeat(24,1fr); gap:12px; margin-top:20px; } main { max-width:1480px; }"
    " .card { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:12px 14px 8px; min-width:0; }"
    " .card strong { font-size:25px; font-variant-numeric:tabular-nums; } .none { color:var(--dim); font-size:13px; padding:24px 0; }"
)


def page(prometheus: Prometheus, run: str, *, begin: float, end: float) -> str:
    """The page of a run between two moments, in wall seconds."""
    shown = dashboard()
    cards = [_card(panel, prometheus, run, begin=begin, end=end) for panel in shown["panels"]]
    when = f"{moment(begin)} to {moment(end)} UTC, out of Prometheus"
    head = f'<header><h1>{escape(TITLE)}: {escape(run)}</h1><p class="dim">{when}</p></header>'
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(run)}</title><style>{STYLE}{PAGE}</style></head>'
        f'<body><main>{head}<div class="grid">{"".join(cards)}</div></main></body></html>\n'
    )


def _card(panel: Mapping[str, Any], prometheus: Prometheus, run: str, *, begin: float, end: float) -> str:
    queries = [(target["expr"].replace("$run", run), target["legendFormat"]) for target in panel["targets"]]
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if panel["type"] == "stat":
        found = prometheus.ask("query", query=queries[0][0], time=end)["result"]
        inner = f"<strong>{_value(float(found[0]['value'][1]), unit) if found else '-'}</strong>"
    else:
        lines = _lines(queries, prometheus, begin=begin, end=end)
        custom = panel["fieldConfig"]["defaults"]["custom"]
        inner = _keys(lines) + _chart(lines, custom, begin=begin, end=end) if lines else '<p class="none">no data</p>'
    place = panel["gridPos"]
    return f'<div class="card" style="grid-column:{place["x"] + 1} / span {place["w"]}"><h3>{escape(panel["title"])}</h3>{inner}</div>'


def _lines(queries: Sequence[tuple[str, str]], prometheus: Prometheus, *, begin: float, end: float) -> list[Line]:
    found: list[tuple[str, list[tuple[float, float]]]] = []
    for expr, legend in queries:
        step = max(1.0, (end - begin) / 240)
        for one in prometheus.ask("query_range", query=expr, start=begin, end=end, step=step)["result"]:
            label = legend
            for name, value in one["metric"].items():
                label = label.replace("{{" + name + "}}", value)
            found.append((label, [(float(when), float(value)) for when, value in one["values"]]))
    order = {name: index for index, name in enumerate(NAMES)}
    found.sort(key=lambda one: order.get(one[0], -1))
    colours = [category(label).colour if label in order else COLOURS[index % len(COLOURS)] for index, (label, _) in enumerate(found)]
    return [Line(label, colour, points) for (label, points), colour in zip(found, colours, strict=True)]


def _keys(lines: Sequence[Line]) -> str:
    keys = [line for line in lines if any(value for _, value in line.points)] or lines[:1]
    words = [category(line.label).words if line.label in NAMES else line.label for line in keys]
    spans = "".join(
        f'<span><span class="swatch" style="background:{line.colour}"></span>{escape(word)}</span>'
        for line, word in zip(keys, words, strict=True)
    )
    return f'<div class="keys">{spans}</div>'


def _chart(lines: Sequence[Line], custom: Mapping[str, Any], *, begin: float, end: float) -> str:
    """Curves, or areas upon each other, over the clock."""
    log, stacked = "scaleDistribution" in custom, "stacking" in custom
    width, height, left, top, bottom = (980 if stacked else 480), 230, 54, 10, 200
    tops = _stacked(lines) if stacked else lines
    finite = [value for line in tops for _, value in line.points if math.isfinite(value) and not (log and value <= 0)]
    if not finite:
        return '<p class="none">no data</p>'
    across = Scale(0.0, end - begin, left, width - 14)
    up = scale_of(finite, begin=bottom, end=top, log=log, zero=not log)
    parts = [
        f'<line x1="{left}" x2="{width - 10}" y1="{up.at(value):.1f}" y2="{up.at(value):.1f}" class="grid"/>'
        f'<text x="{left - 6}" y="{up.at(value) + 4:.1f}" class="tick end">{short(value)}</text>'
        for value in up.ticks()
    ]
    parts += [f'<text x="{across.at(x):.1f}" y="{bottom + 20}" class="tick mid">{words}</text>' for x, words in _minutes(end - begin)]
    below = [(x, 0.0) for x, _ in tops[0].points] if stacked else []
    for line in tops:
        if stacked:
            corners = [*line.points, *reversed(below)]
            places = " ".join(f"{across.at(x - begin):.1f},{up.at(y):.1f}" for x, y in corners)
            parts.append(f'<polygon points="{places}" fill="{line.colour}"/>')
            below = list(line.points)
        else:
            parts += polyline(Line(line.label, line.colour, [(x - begin, y) for x, y in line.points]), across, up)
    return f'<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'


def _minutes(seconds: float) -> list[tuple[float, str]]:
    """At most seven moments of the clock, as minutes and seconds since the beginning."""
    step = next(step for step in (10, 20, 30, 60, 120, 300, 600, 1200, 3600, 10**6) if seconds / step <= 7)
    return [(float(at), f"{at // 60}:{at % 60:02d}") for at in range(0, int(seconds * 0.99) + 1, step)]


def _stacked(lines: Sequence[Line]) -> list[Line]:
    """Each line on top of those before it, all at the same moments."""
    moments = sorted({x for line in lines for x, _ in line.points})
    height = dict.fromkeys(moments, 0.0)
    out: list[Line] = []
    for line in lines:
        values = dict(line.points)
        height = {x: height[x] + values.get(x, 0.0) for x in moments}
        out.append(Line(line.label, line.colour, sorted(height.items())))
    return out


def _value(value: float, unit: str) -> str:
    match unit:
        case "percentunit":
            return f"{100 * value:.1f} %"
        case "s":
            return duration_text(value)
        case _:
            return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"


def photograph(html: Path, png: Path, *, width: int = 1480, height: int = 1720) -> None:
    """What a real browser shows of the page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser is not None, "needs chromium"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"]
    subprocess.run([*command, f"--screenshot={png}", html.resolve().as_uri()], check=True, capture_output=True, timeout=120)


def draw(prometheus: Prometheus, run: str, *, html: Path, png: Path) -> None:
    """The page of a run from its first number to now, and its picture."""
    end = time.time()
    known = prometheus.ask("query_range", query=f'ray_iddpm_running{{run="{run}"}}', start=end - 6 * 3600, end=end, step=15)["result"]
    begin = min((float(one["values"][0][0]) for one in known), default=end - 600) - 15
    html.write_text(page(prometheus, run, begin=begin, end=end), encoding="utf-8")
    photograph(html, png)


def record(png: Path) -> None:
    """A run of its own: two workers on the digits, of which one is killed in the middle; the picture is taken before the end."""
    with tempfile.TemporaryDirectory() as name, started_head(cpus=4, gpus=0) as head:
        folder = Path(name)
        export_digits(folder / "digits")
        settings = [f"run.output_dir={folder}/runs", f"data.path={folder}/digits/train", "run.name=digits", "sample.every=null"]
        settings += ["train.global_batch=16", "train.duration=4000 steps", "optim.anneal=4000 steps", "model.channel_mult=[1, 1]"]
        settings += ["model.attention_resolutions=[8]"]
        settings += ["checkpoint.every=40 steps", "log.every=4 steps", "log.validate_every=20 steps", "data.validation_fraction=0.05"]
        with started_prometheus(folder / "prometheus", head.scraped, interval="2s") as prometheus:
            log = folder / "run.log"
            process = head.train("--preset", "digits", *settings, log=log)

            def reached(step: float) -> bool:
                assert process.poll() is None, log.read_text()
                return (prometheus.value('max(ray_iddpm_step{run="digits"})') or 0) >= step

            until(lambda: reached(BEFORE), what="the middle")
            scratch = head.environment["RAY_TMPDIR"]
            ranks = [one for one in psutil.process_iter() if "RayTrainWorker" in command_line(one)]
            [one for one in ranks if one.environ().get("RAY_TMPDIR") == scratch][-1].kill()
            until(lambda: prometheus.value('max(ray_iddpm_attempt{run="digits"})') == 2, what="the second attempt")
            until(lambda: reached(BEFORE + AFTER), what="the end of the picture")
            draw(prometheus, "digits", html=folder / "page.html", png=png)
            print(log.read_text())
            process.terminate()
            process.wait(120)


def main(argv: list[str]) -> int:
    """Of what is there, or of a run of its own."""
    if len(argv) == 1:
        record(Path(argv[0]))
    else:
        url, run, html, png = argv
        draw(Prometheus(url), run, html=Path(html), png=Path(png))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
