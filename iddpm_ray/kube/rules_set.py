"""House rules about objects together: what one names must be there, in the same namespace; who may be evicted, and what the ceiling is."""

import re
from collections.abc import Iterator
from typing import Any

from iddpm_ray.kube.clusters import Cluster, Group, clusters
from iddpm_ray.kube.objects import Data, Flaw, get, items, mapping, namespace, near, of_kind, selects
from iddpm_ray.kube.rules_ceiling import check_ceiling
from iddpm_ray.kube.rules_network import check_network
from iddpm_ray.kube.rules_scrape import check_scrape
from iddpm_ray.kube.rules_security import check_service
from iddpm_ray.kube.rules_spec import check_spec
from iddpm_ray.kube.spelling import meant

Objects = list[dict[str, Any]]

_AT_HOME = {
    *("RayCluster", "RayJob", "RayCronJob", "RayService", "NetworkPolicy", "PodDisruptionBudget", "ResourceQuota", "LimitRange"),
    *("ServiceAccount", "PodMonitoring", "Rules", "ConfigMap", "Secret", "PersistentVolumeClaim", "LocalQueue"),
}  # of no use to a run in another namespace than its own
_DASHBOARD = "grafana_dashboard"  # label of a ConfigMap that Grafana reads, wherever Grafana is
_ENFORCE = "pod-security.kubernetes.io/enforce"
_MODES, _LEVELS = (
    (_ENFORCE, "pod-security.kubernetes.io/audit", "pod-security.kubernetes.io/warn"),
    ("privileged", "baseline", "restricted"),
)
_CLASSES = ("system-cluster-critical", "system-node-critical")  # that every cluster has


def check_set(objects: Objects) -> Iterator[tuple[Data, Flaw]]:
    """What is wrong with objects that are applied together, and in which of them."""
    homes = {str(get(one, "metadata", "name")) for one in of_kind(objects, "Namespace")}
    yield from _homes(objects, homes)
    yield from _twins(objects)
    for one in objects:
        for cluster in clusters(one):
            here = cluster.namespace in homes
            for flaw in (
                *_accounts(objects, cluster, here=here),
                *_references(objects, cluster, here=here),
                *_budget(objects, cluster, here=here),
                *check_ceiling(objects, cluster, here=here),
            ):
                yield one, flaw
        if one["kind"] == "RayJob":
            yield from check_spec(objects, one)
    for one in of_kind(objects, "PodDisruptionBudget"):
        for flaw in _evictions(one, list(_pods(objects, namespace(one)))):
            yield one, flaw
    for one in of_kind(objects, "Service"):
        if any(_leads(one, group) for group in _pods(objects, namespace(one))):
            for flaw in check_service(one):
                yield one, flaw
    yield from _rights(objects)
    yield from check_network(objects, homes)
    yield from check_scrape(objects)
    for one in of_kind(objects, "Namespace"):
        if get(one, "metadata", "labels", _ENFORCE) != "restricted":
            path = f"metadata.labels {_ENFORCE}"
            yield one, Flaw(path, "security", "is not restricted: whoever may make a pod there may own the machine it lands on")
        for mode in (name for name in mapping(one, "metadata", "labels") if str(name) in _MODES):
            if (level := get(one, "metadata", "labels", mode)) not in _LEVELS:
                reason = f"{level} is none of {', '.join(_LEVELS)}: the API server refuses the namespace"
                yield one, Flaw(f"metadata.labels {mode}", "security", reason)
        version = get(one, "metadata", "labels", f"{_ENFORCE}-version")
        if version is not None and not re.fullmatch(r"latest|v1\.[0-9]{1,2}", version):
            yield (
                one,
                Flaw(f"metadata.labels {_ENFORCE}-version", "security", f"{version} is no version: the API server refuses the namespace"),
            )
    yield from _priorities(objects)


def _homes(objects: Objects, homes: set[str]) -> Iterator[tuple[Data, Flaw]]:
    """Everything in the namespace that is made here; without one, nothing is known of the namespaces there are."""
    for one in objects if homes else ():
        home = namespace(one)
        if one["kind"] not in _AT_HOME or home in homes or _DASHBOARD in mapping(one, "metadata", "labels"):
            continue
        made = " or ".join(sorted(homes))
        where = "is not given, so it goes wherever kubectl points" if home is None else f"is {home}"
        reason = f"{where}, and what is made here is {made}: the run does not see it, nor what stands in {made} it"
        yield one, Flaw("metadata.namespace", "namespace", reason)


def _twins(objects: Objects) -> Iterator[tuple[Data, Flaw]]:
    seen: set[tuple[Any, ...]] = set()
    for one in objects:
        name = (str(one["apiVersion"]).partition("/")[0], one["kind"], namespace(one), get(one, "metadata", "name"))
        if name in seen:
            yield one, Flaw("metadata.name", "names", "stands twice among these objects: the last one is applied over the first")
        seen.add(name)


def _pods(objects: Objects, home: str | None) -> Iterator[Group]:
    return (group for one in objects for cluster in clusters(one) if cluster.namespace == home for group in cluster.groups)


def _accounts(objects: Objects, cluster: Cluster, *, here: bool) -> Iterator[Flaw]:
    """Names inside a RayCluster, which kustomize does not follow when it renames things."""
    accounts = {str(get(one, "metadata", "name")): one for one in near(objects, cluster.namespace, "ServiceAccount")}
    classes = {str(get(one, "metadata", "name")) for one in of_kind(objects, "PriorityClass")}
    for group in cluster.groups:
        for key, kind, known in (("serviceAccountName", "ServiceAccount", set(accounts)), ("priorityClassName", "PriorityClass", classes)):
            name, path = get(group.pod, key), f"{group.pod_path}.{key}"
            if name is None or (name, key) == ("default", "serviceAccountName"):
                yield Flaw(path, "references", f"is {name or 'not given'}" + _without(key))
            elif name not in known | set(_CLASSES) and (here or meant(name, known)):
                yield Flaw(path, "references", f"there is no {kind} {name} among these objects{_those(known)}: no pod is made")
    yield from _token(cluster.head, accounts, scaling=get(cluster.spec, "enableInTreeAutoscaling") is True)


def _those(known: set[str]) -> str:
    return f" ({', '.join(sorted(known))})" if known else ""


def _without(key: str) -> str:
    if key == "serviceAccountName":
        return ": the pod runs as the namespace's default account, which the bucket does not know"
    return ": the scheduler takes the head and a batch job for equally dear"


def _token(head: Group, accounts: dict[str, dict[str, Any]], *, scaling: bool) -> Iterator[Flaw]:
    """The autoscaler in the head changes the RayCluster, with the account's token."""
    account = accounts.get(str(get(head.pod, "serviceAccountName")))
    own = get(head.pod, "automountServiceAccountToken")
    if scaling and (own is False or (own is None and get(account, "automountServiceAccountToken") is False)):
        reason = "is false for the head: the autoscaler there has no token of the API server, and no worker ever comes"
        yield Flaw(f"{head.pod_path}.automountServiceAccountToken", "accounts", reason)


def _leads(service: Data, group: Group) -> bool:
    selector = mapping(service, "spec", "selector")
    return bool(selector) and selects({"matchLabels": selector}, group.labels)


def _rights(objects: Objects) -> Iterator[tuple[Data, Flaw]]:
    """Rights over the API server for whatever runs in a worker."""
    used = {
        (cluster.namespace, get(group.pod, "serviceAccountName"))
        for one in objects
        for cluster in clusters(one)
        for group in cluster.workers
    }
    for one in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        for index, subject in enumerate(items(one, "subjects")):
            home = get(subject, "namespace") or namespace(one)
            if get(subject, "kind") == "ServiceAccount" and (home, get(subject, "name")) in used:
                yield (
                    one,
                    Flaw(f"subjects[{index}]", "accounts", "is the workers' account: whatever runs in a worker then has these rights"),
                )


def _references(objects: Objects, cluster: Cluster, *, here: bool) -> Iterator[Flaw]:
    for group in cluster.groups:
        for path, kind, name in _named(group):
            known = {str(get(one, "metadata", "name")) for one in near(objects, cluster.namespace, kind)}
            away = [str(namespace(one)) for one in of_kind(objects, kind) if get(one, "metadata", "name") == name]
            unknown = away or meant(name, known) or (here and (known or kind == "ConfigMap"))
            if name in known or not unknown:
                continue
            where = f"it is in the namespace {away[0]}" if away else f"there is no {kind} {name} among these objects{_those(known)}"
            yield Flaw(path, "references", f"{name}: {where}: the pod never starts")


def _named(group: Group) -> Iterator[tuple[str, str, str]]:
    """Path, kind and name of what the pods of a group cannot start without, but for Secrets: those are in no manifest."""
    for index, volume in enumerate(items(group.pod, "volumes")):
        for key, kind, inner in (("configMap", "ConfigMap", "name"), ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName")):
            name = get(volume, key, inner)
            if name is not None and get(volume, key, "optional") is not True:
                yield f"{group.pod_path}.volumes[{index}].{key}.{inner}", kind, str(name)
    for index, one in enumerate(items(group.container, "envFrom")):
        if (name := get(one, "configMapRef", "name")) is not None and get(one, "configMapRef", "optional") is not True:
            yield f"{group.container_path}.envFrom[{index}].configMapRef.name", "ConfigMap", str(name)


def _budget(objects: Objects, cluster: Cluster, *, here: bool) -> Iterator[Flaw]:
    """Whether something keeps the head from eviction; elsewhere than beside the Namespace that may stand in another file."""
    choosing = [one for one in of_kind(objects, "PodDisruptionBudget") if selects(mapping(one, "spec", "selector"), cluster.head.labels)]
    near_by = near(objects, cluster.namespace, "PodDisruptionBudget")
    if (here or choosing) and not any(one in near_by for one in choosing):
        away = f" ({get(choosing[0], 'metadata', 'name')} is in the namespace {namespace(choosing[0])})" if choosing else ""
        reason = f"no PodDisruptionBudget of its namespace chooses the head{away}: a drained machine takes the driver along at once"
        yield Flaw(cluster.head.path, "budget", reason)


def _evictions(budget: Data, pods: list[Group]) -> Iterator[Flaw]:
    chosen = [group for group in pods if selects(mapping(budget, "spec", "selector"), group.labels)]
    least, most = get(budget, "spec", "minAvailable"), get(budget, "spec", "maxUnavailable")
    if least is not None and most is not None:
        yield Flaw("spec.minAvailable", "budget", "stands beside maxUnavailable: the API server refuses both, and no head is protected")
        return
    if not any(group.head for group in chosen):
        return
    if least is not None and least != "100%":
        yield Flaw("spec.minAvailable", "budget", f"{least} keeps so many of all heads of the namespace, and the others may be evicted")
    if least is None and most not in (0, "0", "0%"):
        yield Flaw("spec.maxUnavailable", "budget", "is not 0: there is one head, and it may be evicted")
    if not all(group.head for group in chosen):
        reason = "chooses workers too: no machine of theirs can be drained, and upgrades of the pools stand still"
        yield Flaw("spec.selector", "budget", reason)


def _priorities(objects: Objects) -> Iterator[tuple[Data, Flaw]]:
    classes = {str(get(one, "metadata", "name")): one for one in of_kind(objects, "PriorityClass")}
    pods = [group for one in objects for cluster in clusters(one) for group in cluster.groups]
    used = {head: {name for group in pods if group.head is head and (name := _class(group)) in classes} for head in (True, False)}
    heads = [classes[name] for name in used[True]]
    for name in sorted(used[False]):
        if heads and get(classes[name], "value") >= min(get(one, "value") for one in heads):
            yield classes[name], Flaw("value", "priorities", "is not below the head's: a worker may push the driver off its machine")
        if get(classes[name], "preemptionPolicy") != "Never":
            yield classes[name], Flaw("preemptionPolicy", "priorities", "is not Never: a worker that comes back pushes other runs off")
    for one in heads:
        if get(one, "preemptionPolicy") == "Never":
            reason = "is Never: a new head waits for room that lesser pods hold, and the run with it"
            yield one, Flaw("preemptionPolicy", "priorities", reason)
    for name in sorted(used[True] | used[False]):
        if get(classes[name], "globalDefault") is True:
            reason = "is true: every pod of the cluster that names no class is then as dear as those of runs"
            yield classes[name], Flaw("globalDefault", "priorities", reason)


def _class(group: Group) -> str:
    return str(get(group.pod, "priorityClassName"))
