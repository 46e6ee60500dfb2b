"""House rules about quotas: that there is a ceiling of what may be spent, and that a run fits below it."""

from collections.abc import Iterator
from typing import Any

from iddpm_ray.kube.clusters import GPU, Cluster, Group, containers
from iddpm_ray.kube.objects import Data, Flaw, asked, get, mapping, near, quantity

Objects = list[dict[str, Any]]

_KEYS = {GPU: (f"requests.{GPU}",), "cpu": ("requests.cpu", "cpu"), "memory": ("requests.memory", "memory")}
_PODS = ("pods", "count/pods")


def check_ceiling(objects: Objects, cluster: Cluster, *, here: bool) -> Iterator[Flaw]:
    """What the quotas of its namespace do to a cluster.

    Args:
        here: the namespace is made here; elsewhere its quotas are not to be seen.
    """
    quotas = [
        mapping(one, "spec", "hard")
        for one in near(objects, cluster.namespace, "ResourceQuota")
        if get(one, "spec", "scopes") is None and get(one, "spec", "scopeSelector") is None
    ]
    gpus = {group.path: asked(group.container, GPU) or 0.0 for group in cluster.workers}
    path = f"{cluster.path}.workerGroupSpecs"
    if here and any(gpus.values()) and _least(quotas, _KEYS[GPU]) is None:
        yield Flaw(path, "ceiling", f"no ResourceQuota limits requests.{GPU}: nothing bounds what may be spent at once")
    yield from _gpus(cluster, gpus, _least(quotas, _KEYS[GPU]))
    largest = max((get(group.data, "maxReplicas") or 0 for group in cluster.workers), default=0)
    pods = _least(quotas, _PODS)
    if pods is not None and pods < 1 + largest:
        yield Flaw(path, "ceiling", f"a head and {largest} workers are more than the quota of {pods:g} pods: the others are never made")
    yield from _amounts(cluster, quotas)
    if not near(objects, cluster.namespace, "LimitRange"):
        yield from _missing(cluster, quotas)


def _least(quotas: list[Data], keys: tuple[str, ...]) -> float | None:
    return min((amount for quota in quotas for key in keys if (amount := quantity(quota.get(key))) is not None), default=None)


def _gpus(cluster: Cluster, gpus: dict[str, float], limit: float | None) -> Iterator[Flaw]:
    if limit is None:
        return
    for group in cluster.workers:
        each, most = gpus[group.path], get(group.data, "maxReplicas") or 0
        if each > limit:
            yield Flaw(group.path, "ceiling", f"one pod has {each:g} GPUs, the quota is {limit:g}: none is ever made")
        elif each * most > limit:
            reason = f"{most} pods of {each:g} GPUs are more than the quota of {limit:g}: the autoscaler asks for pods that nobody makes"
            yield Flaw(f"{group.path}.maxReplicas", "ceiling", reason)


def _amounts(cluster: Cluster, quotas: list[Data]) -> Iterator[Flaw]:
    for resource in ("cpu", "memory"):
        limit = _least(quotas, _KEYS[resource])
        head = _whole(cluster, cluster.head, resource)
        for group in cluster.workers:
            if limit is not None and head + _whole(cluster, group, resource) > limit:
                reason = f"the head and one of these ask for more {resource} than the quota has: no worker is ever made"
                yield Flaw(group.path, "ceiling", reason)


def _whole(cluster: Cluster, group: Group, resource: str) -> float:
    return sum(asked(one, resource) or 0.0 for path, one in containers(cluster, group) if ".initContainers[" not in path)


def _missing(cluster: Cluster, quotas: list[Data]) -> Iterator[Flaw]:
    """A quota of an amount makes every container name its own."""
    named = {key for quota in quotas for key in quota}
    for group in cluster.groups:
        for path, one in containers(cluster, group):
            for key in sorted(named):
                kind, _, resource = key.partition(".") if "." in key else ("requests", "", key)
                if kind not in ("requests", "limits") or resource not in ("cpu", "memory"):
                    continue
                given = asked(one, resource) if kind == "requests" else quantity(get(one, "resources", "limits", resource))
                if given is None:
                    reason = f"is not given, and a quota of {key} wants it: no pod is made"
                    yield Flaw(f"{path}.resources.{kind}.{resource}", "ceiling", reason)
