"""Alerts and dashboard: what is committed is what is made, rules fire and keep silent on recorded cases, every metric named is known."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from iddpm_ray.kube import alerts
from iddpm_ray.kube.alerts import ALERTS
from iddpm_ray.kube.dashboard import dashboard
from iddpm_ray.kube.kustomize import build
from iddpm_ray.kube.monitoring import files
from iddpm_ray.sinks.metrics import METRICS

ROOT = Path(__file__).parents[2]
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool (Debian: prometheus)")

LABELS = '{run="cats", ray_cluster="iddpm", WorkerId="w1"}'
AGAIN = '{run="cats", WorkerId="w2"}'


@dataclass(frozen=True)
class Case:
    """Series as they were recorded, a value a minute, and what is to be seen after 40 minutes.

    Attributes:
        series: `metric: values` in promtool's notation; of a run where the metric has no labels.
        fires: the value of the alert's series; None: it is silent.
    """

    alert: str
    what: str
    series: tuple[str, ...]
    fires: bool


CASES = (
    Case("IddpmNoStep", "hangs", ("running: 1x60", "step_time_seconds: 600x60"), True),
    Case("IddpmNoStep", "never got a machine", ("running: 1x60", "step_time_seconds: 0x60", "workers: 0x60"), True),
    Case("IddpmNoStep", "steps", ("running: 1x60", "step_time_seconds: 0+60x60"), False),
    Case("IddpmNoStep", "slow, 9 minutes a step", ("running: 1x60", "step_time_seconds: 0x30 1860x60"), False),
    Case("IddpmNoStep", "ended", ("running: 1x20 0x40", "step_time_seconds: 600x60"), False),
    Case("IddpmNoStep", "ended, and its driver with it", ("running: 1x20", "step_time_seconds: 600x20"), False),
    Case("IddpmNoStep", "another run steps", ("running: 1x60", "step_time_seconds: 0+60x60", 'running{run="b"}: 0x60'), False),
    Case("IddpmDriverGone", "killed", ("running: 1x20",), True),
    Case("IddpmDriverGone", "ended", ("running: 1x20 0 stale",), False),
    Case("IddpmDriverGone", "killed, and taken up again", ("running: 1x20 stale", f"running{AGAIN}: _x22 1x40"), False),
    Case("IddpmDriverGone", "killed, taken up, ended", ("running: 1x10 stale", f"running{AGAIN}: _x12 1x10 0 stale"), False),
    Case("IddpmDriverGone", "ended, begun again, killed", ("running: 1x5 0 stale", f"running{AGAIN}: _x12 1x10 stale"), True),
    Case("IddpmDriverGone", "runs", ("running: 1x60",), False),
    Case("IddpmCheckpointOld", "saves fail", ("running: 1x60", "step: 0+100x60", "saved_step: 0x60", "save_interval_steps: 1000x60"), True),
    Case(
        "IddpmCheckpointOld",
        "saves",
        ("running: 1x60", "step: 0+100x60", "saved_step: 0x20 2000x60", "save_interval_steps: 1000x60"),
        False,
    ),
    Case(
        "IddpmCheckpointOld",
        "saves fail, by the clock",
        ("running: 1x60", "step: 0+10x60", "saved_step: 0x60", "unsaved_since_seconds: 300x60", "save_interval_seconds: 900x60"),
        True,
    ),
    Case(
        "IddpmCheckpointOld",
        "waits for machines, by the clock: nothing is unsaved",
        ("running: 1x60", "step: 500x60", "saved_step: 500x60", "unsaved_since_seconds: 0+60x60", "save_interval_seconds: 300x60"),
        False,
    ),
    Case("IddpmCheckpointOld", "ended", ("running: 1x9 0x50", "step: 9000x60", "saved_step: 0x60", "save_interval_steps: 1000x60"), False),
    Case("IddpmNonFiniteSteps", "one", ("running: 1x60", "skipped_steps: 0x30 1x30"), True),
    Case("IddpmNonFiniteSteps", "long ago", ("running: 1x60", "skipped_steps: 0x5 1x60"), False),
    Case("IddpmNonFiniteSteps", "fewer after going back", ("running: 1x60", "skipped_steps: 5x30 3x30"), False),
    Case("IddpmNonFiniteSteps", "fp16 looks for its scale", ("skipped_steps: 0x30 1x30", "loss_scale_log2: 20x60"), False),
    Case(
        "IddpmNonFiniteSteps", "fp16, and the run has just ended", ("skipped_steps: 0x30 1x6 stale", "loss_scale_log2: 20x36 stale"), False
    ),
    Case("IddpmNonFiniteSteps", "fp16 falls apart", ("skipped_steps: 0x30 0+3x30", "loss_scale_log2: 20x60"), True),
    Case("IddpmGpusWithoutJob", "idle", ("gpus AVAILABLE: 4x60", "gpus USED: 0x60"), True),
    Case("IddpmGpusWithoutJob", "used by a job that says nothing", ("gpus AVAILABLE: 1x60", "gpus USED: 3x60"), False),
    Case("IddpmGpusWithoutJob", "idle for ten minutes", ("gpus AVAILABLE: _x30 4x60", "gpus USED: _x30 0x60"), False),
    Case("IddpmGpusWithoutJob", "none", ("gpus AVAILABLE: 0x60", "gpus USED: 0x60"), False),
    Case("IddpmAutoscalerGone", "gone", ("head: 8x60", "autoscaler: 8x20"), True),
    Case("IddpmAutoscalerGone", "there", ("head: 8x60", "autoscaler: 8x60"), False),
    Case("IddpmAutoscalerGone", "starts again", ("head: 8x60", "autoscaler: 8x30 _x6 8x30"), False),
    Case("IddpmAutoscalerGone", "no cluster", ("head: 8x10", "autoscaler: 8x10"), False),
)


def series(text: str) -> dict[str, str]:
    """As promtool takes it."""
    name, _, values = text.rpartition(": ")
    match name.split("{")[0].split(" "):
        case ["gpus", state]:
            full = f'ray_resources{{Name="GPU", State="{state}", ray_cluster="iddpm", NodeAddress="10.0.0.1"}}'
        case ["head"]:
            full = 'ray_node_cpu_count{IsHeadNode="true", ray_cluster="iddpm"}'
        case ["autoscaler"]:
            full = 'autoscaler_running_workers_nodes{ray_cluster="iddpm"}'
        case _ if "{" in name:
            full = "ray_iddpm_" + name.replace("}", ', ray_cluster="iddpm"}')
        case _:
            full = f"ray_iddpm_{name}{LABELS}"
    return {"series": full, "values": values}


def promtool(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    (folder / "rules.yaml").write_text(yaml.safe_dump(alerts.groups()))
    return subprocess.run([PROMTOOL, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def recorded(case: Case) -> dict[str, Any]:
    """The case as promtool takes it: so many alerts of that name fire after 40 minutes."""
    expr = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}})'
    seen = [{"labels": "{}", "value": 1}] if case.fires else []
    return {
        "name": f"{case.alert}: {case.what}",
        "interval": "1m",
        "input_series": [series(one) for one in case.series],
        "promql_expr_test": [{"expr": expr, "eval_time": "40m", "exp_samples": seen}],
    }


def judged(folder: Path, cases: Sequence[Case]) -> subprocess.CompletedProcess[str]:
    """promtool's word on the cases."""
    tests = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [recorded(case) for case in cases]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(tests))
    return promtool(folder, "test", "rules", "tests.yaml")


@needs_promtool
def test_the_rules_are_rules(tmp_path: Path) -> None:
    done = promtool(tmp_path, "check", "rules", "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    done = judged(tmp_path, CASES)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_would_say_so_if_an_alert_were_silent_or_false(tmp_path: Path) -> None:
    for case in (CASES[0], next(case for case in CASES if not case.fires)):
        done = judged(tmp_path, [replace(case, fires=not case.fires)])
        assert done.returncode != 0
        assert case.alert in done.stdout + done.stderr


@needs_promtool
def test_a_person_is_told_which_run_and_for_how_long(tmp_path: Path) -> None:
    alert = next(one for one in ALERTS if one.name == "IddpmNoStep")
    told = {"summary": "cats has made no step for 30m 0s", "description": alert.about}
    test = recorded(CASES[0])
    labels = {"severity": "critical", "run": "cats", "ray_cluster": "iddpm"}
    test["alert_rule_test"] = [
        {"eval_time": "40m", "alertname": alert.name, "exp_alerts": [{"exp_labels": labels, "exp_annotations": told}]}
    ]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [test]}))
    done = promtool(tmp_path, "test", "rules", "tests.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_of_both_kinds() -> None:
    for alert in ALERTS:
        assert {case.fires for case in CASES if case.alert == alert.name} == {True, False}, alert.name


def test_what_is_committed_is_what_is_made() -> None:
    for name, text in files().items():
        assert (ROOT / "k8s" / name).read_text() == text, f"{name}: python -m iddpm_ray.kube.monitoring k8s"


def expressions() -> list[str]:
    """Every PromQL of alerts and dashboard."""
    queries = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [*(alert.expr for alert in ALERTS), *queries, *(one["query"] for one in dashboard()["templating"]["list"])]


def test_every_metric_named_is_published_and_every_published_one_is_shown() -> None:
    named = {name for text in expressions() for name in re.findall(r"\bray_(iddpm_\w+)", text)}
    assert named == {metric.name for metric in METRICS}


def test_panels_do_not_overlap_and_fill_the_page() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    width, height = 24, max(y for _, y in taken) + 1
    assert len(taken) == width * height


@pytest.mark.parametrize(
    ("component", "kinds"), [("gmp", {"PodMonitoring", "Rules"}), ("promop", {"PodMonitor", "PrometheusRule", "ConfigMap"})]
)
def test_the_component_brings_alerts_and_dashboard(component: str, kinds: set[str]) -> None:
    objects = build(ROOT / "k8s/components" / f"monitoring-{component}", own=True)
    assert {one["kind"] for one in objects} == kinds
    (rules,) = [one for one in objects if one["kind"] in ("Rules", "PrometheusRule")]
    assert rules["spec"] == alerts.groups()
    for one in objects:
        if one["kind"] == "ConfigMap":
            (text,) = one["data"].values()
            assert json.loads(text) == dashboard()


def test_every_scrape_knows_its_cluster() -> None:
    """Without this label alerts of two clusters fall together."""
    objects = build(ROOT / "k8s/components/monitoring-promop", own=True)
    ends: list[Any] = [end for one in objects if one["kind"] == "PodMonitor" for end in one["spec"]["podMetricsEndpoints"]]
    assert {end["relabelings"][0]["targetLabel"] for end in ends} == {"ray_cluster"}
    google = build(ROOT / "k8s/components/monitoring-gmp", own=True)
    labels = [one["spec"]["targetLabels"]["fromPod"] for one in google if one["kind"] == "PodMonitoring"]
    assert labels == [[{"from": "ray.io/cluster", "to": "ray_cluster"}]] * len(labels)
    assert labels
