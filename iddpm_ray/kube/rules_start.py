"""House rules about `ray start`: the options that KubeRay hands on as they are, and the ports that come of them."""

import math
import re
from collections.abc import Iterator

from iddpm_ray.kube.clusters import Cluster, Group
from iddpm_ray.kube.objects import Data, Flaw, asked, get, items, mapping, quantity
from iddpm_ray.kube.ports import NAMED, ON_WORKERS, opened

LEAST_STORE = 75 * 2**20  # Ray's own minimum
WHOLE = {
    *("port", "object-manager-port", "node-manager-port", "min-worker-port", "max-worker-port", "ray-client-server-port", "memory"),
    *("object-store-memory", "num-cpus", "num-gpus", "dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port"),
    *("runtime-env-agent-port", "metrics-export-port", "system-reserved-memory"),
}
FLAGS = {
    *("head", "block", "no-redirect-output", "enable-object-reconstruction", "no-monitor", "ray-debugger-external"),
    *("disable-usage-stats", "enable-resource-isolation", "include-dashboard", "include-log-monitor"),
}
OPTIONS = {
    *WHOLE,
    *FLAGS,
    *("node-ip-address", "address", "node-name", "redis-username", "redis-password", "redis-shard-ports", "worker-port-list", "resources"),
    *("dashboard-host", "plasma-directory", "object-spilling-directory", "autoscaling-config", "temp-dir", "system-config"),
    *("tracing-startup-hook", "labels", "labels-file", "system-reserved-cpu", "cgroup-path", "proxy-server-url", "log-style", "log-color"),
}
"""Of `ray start` in the Ray that the image has."""

_PORT_NAME = re.compile(r"(?=.{1,15}$)(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NEVER = "Ray never starts in the pod"


def check_start(cluster: Cluster) -> Iterator[Flaw]:
    """What is wrong with the options of `ray start`, and with the ports of its pods."""
    for group in cluster.groups:
        yield from _options(group)
        yield from _store(group)
        yield from _shares(group)
        yield from _ports(group)


def _options(group: Group) -> Iterator[Flaw]:
    for name, value in mapping(group.data, "rayStartParams").items():
        path, text = f"{group.path}.rayStartParams.{name}", str(value)
        if name not in OPTIONS:
            yield Flaw(path, "start", f"is no option of `ray start`: {_NEVER}")
        elif name in WHOLE and not re.fullmatch(r"[0-9]+", text):
            yield Flaw(path, "start", f"{text!r} is no whole number, which `ray start` takes here and nothing else: {_NEVER}")
        elif name in FLAGS and text.lower() not in ("true", "false"):
            yield Flaw(path, "start", f"{text!r} is neither true nor false: {_NEVER}")
        elif name == "block" and text != "true":
            yield Flaw(path, "start", "is not true: `ray start` is the first process of the pod, and the pod ends when it returns")
        elif name == "address":
            yield Flaw(path, "start", "leads to another head than KubeRay's: no worker of this cluster joins it")
        elif name == "include-dashboard" and group.head and text.lower() == "false":
            yield Flaw(path, "start", "is false: the job API is part of the dashboard, and no job ever starts")


def _store(group: Group) -> Iterator[Flaw]:
    given = str(get(group.data, "rayStartParams", "object-store-memory") or "")
    if given.isdigit() and int(given) < LEAST_STORE:
        path = f"{group.path}.rayStartParams.object-store-memory"
        yield Flaw(path, "start", f"{given} bytes are less than the {LEAST_STORE} that Ray wants at least: {_NEVER}")


def _shares(group: Group) -> Iterator[Flaw]:
    """What Ray is told that a pod has, against what it has."""
    start = mapping(group.data, "rayStartParams")
    cpus = quantity(get(group.container, "resources", "limits", "cpu")) or asked(group.container, "cpu")
    told = quantity(start.get("num-cpus"))
    path = f"{group.path}.rayStartParams"
    if not group.head and told == 0:
        yield Flaw(f"{path}.num-cpus", "start", "is 0: no rank and no task is ever placed there, and the run waits for ever")
    elif told is not None and cpus is not None and told > math.ceil(cpus):
        yield Flaw(f"{path}.num-cpus", "start", f"tells Ray of {told:g} CPUs, the pod has {cpus:g}: so much more is placed there than fits")
    memory, most = quantity(start.get("memory")), quantity(get(group.container, "resources", "limits", "memory"))
    if memory is not None and most is not None and memory > most:
        reason = f"tells Ray of {memory / 2**30:g} GiB, the pod has {most / 2**30:g}: what fits by Ray's count is killed for memory"
        yield Flaw(f"{path}.memory", "start", reason)


def _ports(group: Group) -> Iterator[Flaw]:
    for at, one in enumerate(items(group.pod, "containers")):
        names: set[str] = set()
        for index, port in enumerate(items(one, "ports")):
            path = f"{group.pod_path}.containers[{at}].ports[{index}]"
            name, number = get(port, "name"), get(port, "containerPort")
            if name is not None and not _PORT_NAME.fullmatch(name):
                reason = f"{name!r} should be at most 15 small letters, digits and dashes: the API server refuses every pod"
                yield Flaw(f"{path}.name", "ports", reason)
            if name in names:
                yield Flaw(f"{path}.name", "ports", f"{name} stands twice: the API server refuses every pod")
            if not isinstance(number, int) or not 1 <= number <= 65535:
                yield Flaw(f"{path}.containerPort", "ports", f"{number} is no port: the API server refuses every pod")
            names |= set() if name is None else {name}
            if at == 0:
                yield from _pinned(group, port, path)


def _pinned(group: Group, port: Data, path: str) -> Iterator[Flaw]:
    name = str(get(port, "name"))
    if name not in NAMED or not (group.head or name in ON_WORKERS):
        return
    real = opened(group, name)
    if get(port, "containerPort") != real:
        option = NAMED[name][0]
        where = "" if option is None else f" (rayStartParams.{option})"
        reason = f"is {get(port, 'containerPort')}, and Ray opens {real}{where}: whoever finds the port by its name knocks at a wall"
        yield Flaw(f"{path}.containerPort {name}", "ports", reason)
