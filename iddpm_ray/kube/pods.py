"""The RayCluster of a run: a head on an on-demand machine, and groups of workers that come and go. Plain data, a function of the spec."""

import json
from typing import Any

from iddpm_ray.kube.names import CAPACITY_LABEL, PART_OF, PROJECT
from iddpm_ray.kube.shape import Shape, gib, image_of, shape
from iddpm_ray.spec.spec import JobSpec

Data = dict[str, Any]

RAY_VERSION = "2.60.0"
SPOT = "cloud.google.com/gke-spot"
SPEC_FOLDER = "/etc/iddpm"
IDLE_S = 120
HEAD_CPUS, HEAD_GIB, HEAD_STORE_GIB, HEAD_SHM_GIB = 2, 8, 1, 2
JOB_STOP_S = 300  # a stopped run may take as long to save

LOCKED: Data = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD_LOCKED: Data = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
HEAD_PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001, "metrics": 8080, "as-metrics": 44217, "dash-metrics": 44227}


def cluster_spec(spec: JobSpec, *, spec_map: str | None = None) -> Data:
    """The field `spec` of a RayCluster.

    Args:
        spec_map: ConfigMap to mount on the head, with the run's spec.

    Raises:
        SpecError: the run does not fit its machines.
    """
    cut, image = shape(spec), image_of(spec)
    kinds = {"spot": ("spot",), "spot-first": ("spot", "on-demand"), "on-demand": ("on-demand",)}[spec.kube.capacity]
    return {
        "rayVersion": RAY_VERSION,
        "enableInTreeAutoscaling": True,
        "authOptions": {"mode": "token"},
        "autoscalerOptions": {
            "version": "v2",
            "idleTimeoutSeconds": IDLE_S,
            "imagePullPolicy": "IfNotPresent",
            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
            "securityContext": {**POD_AS_CONTAINER, **LOCKED},
        },
        "headGroupSpec": _head(spec, image, spec_map=spec_map),
        "workerGroupSpecs": [_workers(spec, cut, image, kind=kind, priority=len(kinds) - place) for place, kind in enumerate(kinds)],
    }


POD_AS_CONTAINER: Data = {name: value for name, value in POD_LOCKED.items() if name != "fsGroup"}


def _head(spec: JobSpec, image: str, *, spec_map: str | None) -> Data:
    container = {
        "name": "ray-head",
        "image": image,
        "ports": [{"name": name, "containerPort": port} for name, port in HEAD_PORTS.items()],
        "env": _environment(
            RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=5,
            RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S=1,
            RAY_JOB_STOP_WAIT_TIME_S=JOB_STOP_S,
            RAY_DASHBOARD_MAX_EVENTS_TO_CACHE=1000,
            RAY_USAGE_STATS_ENABLED=0,
        ),
        **_from_secrets(spec),
        "resources": {
            "requests": {"cpu": str(HEAD_CPUS), "memory": f"{HEAD_GIB}Gi"},
            "limits": {"memory": f"{HEAD_GIB}Gi"},
        },
        "securityContext": LOCKED,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [_shm(HEAD_SHM_GIB)]
    if spec_map is not None:
        container["volumeMounts"].append({"name": "spec", "mountPath": SPEC_FOLDER, "readOnly": True})
        volumes.append({"name": "spec", "configMap": {"name": spec_map}})
    pod = {
        "serviceAccountName": "iddpm-head",
        "priorityClassName": "iddpm-head",
        "terminationGracePeriodSeconds": 30,
        "securityContext": POD_LOCKED,
        "affinity": _not_on_spot(),
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0", "object-store-memory": str(gib(HEAD_STORE_GIB))},
        "template": {
            "metadata": {
                "labels": {PART_OF: PROJECT, "iddpm/role": "head"},
                "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
            },
            "spec": pod,
        },
    }


def _workers(spec: JobSpec, cut: Shape, image: str, *, kind: str, priority: int) -> Data:
    amounts = {"cpu": str(cut.cpus), "memory": f"{cut.memory_gib}Gi"}
    gpus = {"nvidia.com/gpu": str(cut.gpus)} if cut.gpus else {}
    spot = kind == "spot"
    pod: Data = {
        "serviceAccountName": "iddpm-worker",
        "automountServiceAccountToken": False,
        "priorityClassName": "iddpm-train",
        "terminationGracePeriodSeconds": cut.grace_s,
        "securityContext": POD_LOCKED,
        "nodeSelector": {"node.kubernetes.io/instance-type": cut.machine.name} | ({SPOT: "true"} if spot else {}),
        "tolerations": _tolerations(spot=spot, gpu=bool(cut.gpus)),
        "containers": [
            {
                "name": "ray-worker",
                "image": image,
                "ports": [{"name": "metrics", "containerPort": 8080}],
                "env": _environment(RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=cut.drain_s),
                **_from_secrets(spec),
                "resources": {"requests": amounts | gpus, "limits": {"memory": amounts["memory"]} | gpus},
                "securityContext": LOCKED,
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
        "volumes": [_shm(cut.shm_gib)],
    }
    if cut.machine.gpu is not None:
        pod["nodeSelector"]["cloud.google.com/gke-accelerator"] = cut.machine.gpu.label
    if not spot:
        pod["affinity"] = _not_on_spot()
    start = {"object-store-memory": str(gib(cut.store_gib))}
    if cut.machine.gpu is not None:  # an autoscaler at zero machines does not know what GPUs they would have
        start["resources"] = json.dumps(json.dumps({f"accelerator_type:{cut.machine.gpu.name}": 1}))
    return {
        "groupName": f"{'gpu' if cut.gpus else 'cpu'}-{kind}",
        "minReplicas": 0,
        "replicas": 0,
        "maxReplicas": cut.most_pods,
        "priority": 10 * (priority - 1),
        "labels": {CAPACITY_LABEL: kind},
        "rayStartParams": start,
        "template": {"metadata": {"labels": {PART_OF: PROJECT, "iddpm/role": "worker"}}, "spec": pod},
    }


def _tolerations(*, spot: bool, gpu: bool) -> list[Data]:
    both = [{"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}] if spot else []
    return both + ([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}] if gpu else [])


def _not_on_spot() -> Data:
    term = {"matchExpressions": [{"key": SPOT, "operator": "DoesNotExist"}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _shm(size: int) -> Data:
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{size}Gi"}}


def _environment(**values: int) -> list[Data]:
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def _from_secrets(spec: JobSpec) -> Data:
    """Whatever stands in the run's Secrets as variables; a Secret that is not there keeps the pod from starting, and kubectl says so."""
    return {"envFrom": [{"secretRef": {"name": name}} for name in spec.kube.secrets]} if spec.kube.secrets else {}
