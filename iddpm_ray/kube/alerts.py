"""When somebody has to look at a run: the alerts, as data, for the Prometheus operator and for Google Managed Prometheus.

The numbers come from `sinks.metrics` by way of Ray's export, and from Ray itself. A run is told apart by its name and its cluster; of
several series of one run (a driver and its successor) the larger value counts.
"""

from dataclasses import dataclass
from typing import Any

from iddpm_ray.kube.names import PART_OF, PROJECT

Data = dict[str, Any]

EACH = "ray_cluster, run"


def of_run(metric: str) -> str:
    """The metric of each run, in PromQL."""
    return f"max by ({EACH}) (ray_iddpm_{metric})"


_LAST = f"max by ({EACH}) (max_over_time(timestamp(ray_iddpm_running == {{}})[1h:10s]))"  # the last moment at which it was so
RUNNING = f"on ({EACH}) {of_run('running')} == 1"


@dataclass(frozen=True)
class Alert:
    """One alert.

    Attributes:
        expr: in PromQL; fires where it has a value.
        patience: how long it has to, before anybody is told.
        severity: `critical` where money or work is being lost, else `warning`.
        summary: one line; the labels of the series can be named in it.
        about: what it means and where to look.
    """

    name: str
    expr: str
    patience: str
    severity: str
    summary: str
    about: str


ALERTS: tuple[Alert, ...] = (
    Alert(
        "IddpmNoStep",
        f"time() - {of_run('step_time_seconds')} > 600 and {RUNNING}",
        "1m",
        "critical",
        "{{ $labels.run }} has made no step for {{ $value | humanizeDuration }}",
        "The driver is there and no update was completed for 10 minutes: it waits for machines, starts slowly, or hangs. The job's log "
        "says which: a hang is named there after cluster.hang_timeout_s, and so is what the run waits for.",
    ),
    Alert(
        "IddpmDriverGone",
        f"{_LAST.format(1)} unless on ({EACH}) {of_run('running')} unless on ({EACH}) {_LAST.format(0)} > on ({EACH}) {_LAST.format(1)}",
        "10m",
        "critical",
        "the driver of {{ $labels.run }} is gone without a word",
        "The run did not end: its driver died, or the head with it, and for 10 minutes nobody has taken the run up. `kubectl get rayjob` "
        "shows whether the operator submits it again; submitting the same spec goes on from the newest checkpoint. Silent an hour later.",
    ),
    Alert(
        "IddpmCheckpointOld",
        f"({of_run('step')} - {of_run('saved_step')} > 2 * {of_run('save_interval_steps')} "
        f"or time() - {of_run('unsaved_since_seconds')} > 2 * {of_run('save_interval_seconds')}) and {RUNNING}",
        "2m",
        "critical",
        "{{ $labels.run }} has saved nothing for more than two intervals",
        "More than 2 x checkpoint.every is unsaved, and would be done again if a machine went now: saves fail, or take longer than an "
        "interval. The job's log has a line for each save that failed; `python jobs/checkpoint.py ls RUN` shows what there is.",
    ),
    Alert(
        "IddpmNonFiniteSteps",
        f"max by ({EACH}) (delta(ray_iddpm_skipped_steps[15m])) > 10 or "
        f"(max by ({EACH}) (delta(ray_iddpm_skipped_steps[15m])) > 0 unless on ({EACH}) "
        f"max by ({EACH}) (last_over_time(ray_iddpm_loss_scale_log2[15m])))",
        "0m",
        "warning",
        "{{ $labels.run }} skipped steps with non-finite gradients",
        "An update was skipped because a gradient was not finite (with fp16, whose loss scale is found that way, more than 10 in 15 "
        "minutes). The job's log names the timesteps and the command that does the step again; optim.max_nonfinite_steps in a row end the "
        "run.",
    ),
    Alert(
        "IddpmGpusWithoutJob",
        'sum by (ray_cluster) (ray_resources{Name="GPU", State="AVAILABLE"}) > 0 '
        'unless on (ray_cluster) sum by (ray_cluster) (ray_resources{Name="GPU", State="USED"}) > 0',
        "15m",
        "critical",
        "{{ $value }} GPUs of {{ $labels.ray_cluster }} are paid for and used by nobody",
        "Pods with GPUs have been there for 15 minutes and no job uses one, although idle workers are given back after two: the autoscaler "
        "does not scale down, or minReplicas keeps them.",
    ),
    Alert(
        "IddpmAutoscalerGone",
        'count by (ray_cluster) (ray_node_cpu_count{IsHeadNode="true"}) unless on (ray_cluster) '
        "count by (ray_cluster) (autoscaler_running_workers_nodes)",
        "5m",
        "critical",
        "the autoscaler of {{ $labels.ray_cluster }} says nothing",
        "The head is there and its container `autoscaler` is not, or does not answer: no worker comes, none is replaced, none goes. "
        "`kubectl logs HEAD_POD -c autoscaler` says why.",
    ),
)


def groups() -> Data:
    """The field `spec` of a PrometheusRule or Rules; with `groups` alone it is a rule file of Prometheus itself."""
    return {"groups": [{"name": PROJECT, "interval": "30s", "rules": [_rule(alert) for alert in ALERTS]}]}


def prometheus_rule() -> Data:
    """For the Prometheus operator."""
    return _object("monitoring.coreos.com/v1", "PrometheusRule")


def google_rules() -> Data:
    """For Google Managed Prometheus."""
    return _object("monitoring.googleapis.com/v1", "Rules")


def _object(version: str, kind: str) -> Data:
    metadata = {"name": "iddpm-alerts", "namespace": "iddpm", "labels": {PART_OF: PROJECT}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": groups()}


def _rule(alert: Alert) -> Data:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.patience,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.about},
    }
