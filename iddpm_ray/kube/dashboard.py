"""The dashboard of a run for Grafana, as data: numbers to glance at, how it learns, how fast, what is saved, where time goes."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from iddpm_ray.kube.names import PART_OF, PROJECT

Data = dict[str, Any]

UID, TITLE = "iddpm-run", "iddpm: a run"
SOURCE = {"type": "prometheus", "uid": "${source}"}
ONE = 'run="$run"'


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        queries: PromQL and the legend of its lines; a legend may name a label in double braces.
        kind: a number, or lines over time; `stacked` fills what lies between them.
        unit: Grafana's name of it.
        about: shown where the pointer rests on the panel's title.
        width: of the page's 24 columns.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    kind: Literal["number", "lines", "log", "stacked"] = "lines"
    unit: str = "short"
    about: str = ""
    width: int = 8


def _of(metric: str, *, by: str = "run") -> str:
    return f"max by ({by}) (ray_iddpm_{metric}{{{ONE}}})"


_QUARTERS = f"max by (quarter) (ray_iddpm_loss_by_timestep{{{ONE}}})"
_SECONDS = f"max by (category) (ray_iddpm_worker_seconds{{{ONE}}})"
_STALL = f'clamp_min(max(delta(ray_iddpm_worker_seconds{{{ONE}, category="checkpoint_stall"}}[10m])), 0)'

PANELS: tuple[Panel, ...] = (
    Panel("Running", ((_of("running"), ""),), "number", about="1 while a driver works on it", width=3),
    Panel("Step", ((_of("step"), ""),), "number", about="updates completed", width=3),
    Panel("Done", ((f"{_of('step')} / {_of('total_steps')}", ""),), "number", "percentunit", width=3),
    Panel("Workers", ((_of("workers"), ""),), "number", about="ranks of the attempt under way", width=3),
    Panel("Images a second", ((_of("images_per_second"), ""),), "number", width=3),
    Panel("Checkpoint age", ((f"time() - {_of('saved_time_seconds')}", ""),), "number", "s", "since the newest complete one", width=3),
    Panel(
        "Goodput",
        ((f'sum(max by (category) (ray_iddpm_worker_seconds{{{ONE}, category="productive"}})) / sum({_SECONDS})', ""),),
        "number",
        "percentunit",
        "steps that are part of the result, out of all worker-seconds of all attempts",
        width=3,
    ),
    Panel("Preempted", ((f'max(ray_iddpm_attempts_ended{{{ONE}, why="preempted"}})', ""),), "number", about="attempts so far", width=3),
    Panel("Loss", ((_of("loss"), "training"), (_of("validation_loss"), "held out")), "log"),
    Panel("Loss by timestep", ((_QUARTERS, "quarter {{quarter}}"),), "log", about="0: the least noise, 3: the most"),
    Panel("Gradient norm", ((_of("grad_norm"), "norm"),), "log"),
    Panel("Images a second", ((_of("images_per_second"), "images/s"),), about="0 between attempts"),
    Panel("Wait for pictures", ((_of("data_wait_seconds"), "a step"),), unit="s", about="a large part of a step: more data.tasks"),
    Panel("Productive share", ((_of("productive_share"), "of the last interval"),), unit="percentunit"),
    Panel("Unsaved steps", ((f"{_of('step')} - {_of('saved_step')}", "steps"),), about="what would be done again if a machine went now"),
    Panel(
        "Saving",
        ((_of("save_seconds"), "a save"), (_STALL, "workers waiting for saves, in 10 min")),
        unit="s",
    ),
    Panel("Skipped steps", ((_of("skipped_steps"), "non-finite gradients"),)),
    Panel("Where the time goes", ((_SECONDS, "{{category}}"),), "stacked", "s", "worker-seconds of all attempts so far", width=16),
    Panel("Attempts by ending", ((f"max by (why) (ray_iddpm_attempts_ended{{{ONE}}}) > 0", "{{why}}"),), width=8),
    Panel(
        "GPU memory",
        ((_of("gpu_memory_peak_bytes"), "peak of the fullest"), (_of("gpu_memory_bytes"), "there is")),
        unit="bytes",
        width=8,
    ),
    Panel("Workers and attempts", ((_of("workers"), "workers"), (_of("attempt"), "attempt")), width=8),
    Panel(
        "GPUs of the cluster",
        (('sum by (State) (ray_resources{Name="GPU"})', "{{State}}"),),
        width=8,
        about="as Ray counts them",
    ),
)


def dashboard() -> Data:
    """What Grafana imports."""
    return {
        "uid": UID,
        "title": TITLE,
        "tags": [PROJECT],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source(), _run()]},
        "panels": [_panel(panel, place, number=number) for number, (panel, place) in enumerate(_placed(PANELS), start=1)],
    }


def config_map() -> Data:
    """For the Grafana of the Prometheus operator's usual installation, whose sidecar looks for the label."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "iddpm-dashboard", "namespace": "iddpm", "labels": {PART_OF: PROJECT, "grafana_dashboard": "1"}},
        "data": {"iddpm.json": json.dumps(dashboard(), indent=1) + "\n"},
    }


def _source() -> Data:
    return {"name": "source", "type": "datasource", "query": "prometheus", "label": "data source", "hide": 0}


def _run() -> Data:
    query = "label_values(ray_iddpm_step, run)"
    return {"name": "run", "type": "query", "datasource": SOURCE, "query": query, "definition": query, "refresh": 2, "sort": 1, "hide": 0}


def _placed(panels: Sequence[Panel]) -> Iterator[tuple[Panel, Data]]:
    """Left to right, a new row where the next one does not fit."""
    x = y = last = 0
    for panel in panels:
        height = 4 if panel.kind == "number" else 8
        if x and (x + panel.width > 24 or height != last):
            x, y = 0, y + last
        yield panel, {"x": x, "y": y, "w": panel.width, "h": height}
        x, last = x + panel.width, height


def _panel(panel: Panel, place: Data, *, number: int) -> Data:
    return {
        "id": number,
        "type": "stat" if panel.kind == "number" else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": _custom(panel)} if panel.kind != "number" else {"unit": panel.unit}},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if panel.kind == "number" else {"legend": {"displayMode": "list"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _custom(panel: Panel) -> Data:
    """How the lines are drawn."""
    drawn: Data = {"lineWidth": 1, "showPoints": "auto", "spanNulls": False}
    match panel.kind:
        case "log":
            return drawn | {"scaleDistribution": {"type": "log", "log": 10}}
        case "stacked":
            return drawn | {"fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
        case _:
            return drawn
