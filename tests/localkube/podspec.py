"""From a RayCluster to pods, as KubeRay's operator makes them: `ray start`, its environment, the autoscaler beside the head."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iddpm_ray.kube.objects import environment, get, items, mapping, quantity

Data = Mapping[str, Any]

GCS_PORT = 6379
_DEFAULTS = {"metrics-export-port": "8080", "dashboard-agent-listen-port": "52365"}


@dataclass(frozen=True)
class PodSpec:
    """One pod that is to run.

    Attributes:
        group: `headgroup`, or the worker group's name.
        command: argv of the Ray container.
        env: its environment.
        shm: bytes of /dev/shm.
        grace_s: between SIGTERM and SIGKILL.
        sidecar: argv of the autoscaler; empty without one.
        user: and group that both run as.
        mounts: directory in the pod, by the name of the ConfigMap that it shows.
    """

    name: str
    group: str
    head: bool
    labels: dict[str, str]
    command: list[str]
    env: dict[str, str]
    shm: int
    grace_s: float
    sidecar: list[str] = field(default_factory=list)
    user: int = 0
    mounts: dict[str, str] = field(default_factory=dict)


def head_pod(cluster: Data, *, name: str, token: str | None) -> PodSpec:
    """The head of a cluster."""
    return _pod(cluster, mapping(cluster, "spec", "headGroupSpec"), name=name, head_ip="127.0.0.1", token=token)


def worker_pod(cluster: Data, group: Data, *, name: str, head_ip: str, token: str | None) -> PodSpec:
    """A worker of a group.

    Args:
        head_ip: stands for the head's service, whose name nobody resolves here.
    """
    return _pod(cluster, group, name=name, head_ip=head_ip, token=token)


def _pod(cluster: Data, group: Data, *, name: str, head_ip: str, token: str | None) -> PodSpec:
    head = "groupName" not in group
    container = mapping(group, "template", "spec", "containers", 0)
    scaling = get(cluster, "spec", "enableInTreeAutoscaling") is True
    version2 = get(cluster, "spec", "autoscalerOptions", "version") == "v2"
    title = "headgroup" if head else str(group["groupName"])
    env = {key: value for key, value in environment(container).items() if value is not None}
    env |= {
        "RAY_CLUSTER_NAME": str(get(cluster, "metadata", "name")),
        "RAY_CLOUD_INSTANCE_ID": name,
        "RAY_NODE_TYPE_NAME": title,
        "RAY_PORT": str(GCS_PORT),
        "RAY_IP": head_ip,
        "RAY_ADDRESS": f"{head_ip}:{GCS_PORT}",
        "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
    }
    if token is not None:
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    if head and scaling and version2:
        env["RAY_enable_autoscaler_v2"] = "1"
    mount = next((one for one in items(container, "volumeMounts") if get(one, "mountPath") == "/dev/shm"), {})
    volumes = {get(one, "name"): one for one in items(group, "template", "spec", "volumes")}
    size = quantity(get(volumes.get(get(mount, "name")), "emptyDir", "sizeLimit")) or 2**30
    grace = get(group, "template", "spec", "terminationGracePeriodSeconds")
    sidecar = ["ray", "kuberay-autoscaler", "--cluster-name", env["RAY_CLUSTER_NAME"], "--cluster-namespace"]
    return PodSpec(
        name=name,
        group=title,
        head=head,
        labels={
            **{str(key): str(value) for key, value in mapping(group, "template", "metadata", "labels").items()},
            "ray.io/cluster": env["RAY_CLUSTER_NAME"],
            "ray.io/node-type": "head" if head else "worker",
            "ray.io/group": title,
        },
        command=["/bin/bash", "-c", "--", f"ulimit -n 65536; ray start {start_words(cluster, group, head_ip=head_ip)}"],
        env=env,
        shm=int(size),
        grace_s=30.0 if grace is None else float(grace),
        user=int(get(group, "template", "spec", "securityContext", "runAsUser") or 0),
        sidecar=[*sidecar, str(get(cluster, "metadata", "namespace"))] if head and scaling else [],
        mounts={
            str(get(volumes[get(one, "name")], "configMap", "name")): str(one["mountPath"])
            for one in items(container, "volumeMounts")
            if get(volumes.get(get(one, "name")), "configMap", "name") is not None
        },
    )


def start_words(cluster: Data, group: Data, *, head_ip: str) -> str:
    """The options of `ray start`: those given, and what KubeRay adds where they are silent."""
    head = "groupName" not in group
    given = dict(mapping(group, "rayStartParams"))
    resources = mapping(group, "template", "spec", "containers", 0, "resources")
    options = {**_DEFAULTS, **given}
    cpus = quantity(get(resources, "limits", "cpu") or get(resources, "requests", "cpu"))
    memory = quantity(get(resources, "limits", "memory"))
    gpus = quantity(get(resources, "limits", "nvidia.com/gpu"))
    if "num-cpus" not in options and cpus is not None:
        options["num-cpus"] = str(-int(-cpus // 1))
    if "memory" not in options and memory is not None:
        options["memory"] = str(int(memory))
    if "num-gpus" not in options and gpus:
        options["num-gpus"] = str(int(gpus))
    if mapping(group, "labels"):
        options["labels"] = "'" + ",".join(f"{key}={value}" for key, value in mapping(group, "labels").items()) + "'"
    if "resources" in options:
        options["resources"] = f"'{json.loads(str(options['resources']))}'"
    if not head:
        options["address"] = f"{head_ip}:{GCS_PORT}"
    elif get(cluster, "spec", "enableInTreeAutoscaling") is True:
        options["no-monitor"] = "true"
    options["block"] = "true"
    flags = [f"--{key}" if value == "true" else f"--{key}={value}" for key, value in sorted(options.items()) if value != "false"]
    return " ".join((["--head"] if head else []) + flags)
