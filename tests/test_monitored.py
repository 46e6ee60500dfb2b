"""A real Prometheus at a real Ray with real runs: every metric that dashboard and alerts name is there, and a run's end is seen as such."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from monitored import Head, Prometheus, started_head, started_prometheus, until

from iddpm_ray.kube.alerts import ALERTS
from iddpm_ray.kube.dashboard import dashboard

pytestmark = [
    pytest.mark.slow,  # a Ray with dashboard and autoscaler, and three starts of a run: minutes
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus (Debian: prometheus)"),
]

NEEDS_A_GPU = {"ray_iddpm_gpu_memory_peak_bytes", "ray_iddpm_gpu_memory_bytes"}


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with started_head() as one:
        yield one


@pytest.fixture(scope="module")
def prometheus(head: Head, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with started_prometheus(tmp_path_factory.mktemp("prometheus"), head.scraped) as one:
        yield one


def settings(root: Path, name: str, **changes: Any) -> list[str]:
    small = {
        "cluster__cpus_per_worker": 0.5,
        "data__cpus_per_task": 0.5,
        "data__validation_fraction": 0.2,
        "log__validate_every": "5 steps",
    }
    return tiny.arguments(root, run__name=name, train__duration="1000000 steps", **small, **changes)


def test_every_metric_of_dashboard_and_alerts_is_there_and_the_end_is_seen(head: Head, prometheus: Prometheus, tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path / "pictures")
    first = head.train(*settings(tmp_path, "steps", checkpoint__every="20 steps"), log=tmp_path / "steps.log")
    second = head.train(*settings(tmp_path, "clock", checkpoint__every="0.1 min", optim__precision="fp16"), log=tmp_path / "clock.log")

    def of(run: str, metric: str) -> float | None:
        return prometheus.value(f'max by (run) (ray_iddpm_{metric}{{run="{run}"}})')

    def going() -> bool:
        for run, process in (("steps", first), ("clock", second)):
            assert process.poll() is None, (tmp_path / f"{run}.log").read_text()
        return all((of(run, "saved_step") or 0) > 0 and (of(run, "loss") or 0) > 0 for run in ("steps", "clock"))

    until(going, what="both runs have saved")
    named = {name for text in expressions() for name in re.findall(r"\b(?:ray_|autoscaler_)\w+", text)} - {"ray_cluster"}
    until(lambda: named - NEEDS_A_GPU <= prometheus.names(), what="every metric", patience_s=60)

    assert of("steps", "running") == 1
    assert of("steps", "workers") == 1
    before = of("steps", "step") or 0
    until(lambda: (of("steps", "step") or 0) > before, what="the step rises")
    assert of("steps", "save_interval_steps") == 20
    assert of("clock", "save_interval_seconds") == 6
    productive = prometheus.value('max(ray_iddpm_worker_seconds{run="steps", category="productive"})')
    assert productive is not None
    assert productive > 0
    quarters = prometheus.now('max by (quarter) (ray_iddpm_loss_by_timestep{run="steps"})')
    assert {one["metric"]["quarter"] for one in quarters} == {"0", "1", "2", "3"}
    (rules,) = prometheus.ask("rules")["groups"]
    assert {rule["name"]: rule["health"] for rule in rules["rules"]} == {alert.name: "ok" for alert in ALERTS}
    assert all(rule["state"] == "inactive" for rule in rules["rules"] if rule["name"] in ("IddpmNoStep", "IddpmAutoscalerGone"))

    first.terminate()  # saves and ends
    assert first.wait(120) == 0, (tmp_path / "steps.log").read_text()
    second.kill()  # its driver is gone without a word
    until(lambda: of("steps", "running") in (0, None) and of("clock", "running") is None, what="neither looks alive", patience_s=90)
    last = {
        run: prometheus.value(f'max(max_over_time(timestamp(ray_iddpm_running{{run="{run}"}} == 0)[10m:1s]))') for run in ("steps", "clock")
    }
    assert last["steps"] is not None, "an end is said, and not only a silence"
    assert last["clock"] is None
    gone = next(alert for alert in ALERTS if alert.name == "IddpmDriverGone")
    until(lambda: [one["metric"]["run"] for one in prometheus.now(gone.expr)] == ["clock"], what="the one that was killed is missed")


def expressions() -> list[str]:
    """Every PromQL of alerts and dashboard."""
    return [*(alert.expr for alert in ALERTS), *(target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])]
