"""House rules about numbers: that what collects them finds the pods, their ports, and a way in."""

from collections.abc import Iterator
from typing import Any

from iddpm_ray.kube.clusters import Cluster, Group, clusters
from iddpm_ray.kube.names import PART_OF
from iddpm_ray.kube.objects import Data, Flaw, get, items, mapping, namespace, near, of_kind, selects
from iddpm_ray.kube.ports import written
from iddpm_ray.kube.rules_network import End, admits, rules

Objects = list[dict[str, Any]]

SCRAPED = ("metrics", "as-metrics")  # what the alerts read; `as-metrics` is the autoscaler's, on the head
_GOOGLES = ("gmp-system", "gke-gmp-system")
_CLUSTER = "ray_cluster"  # by which the alerts group
_USUAL = ("monitoring", "prometheus", "observability")


def check_scrape(objects: Objects) -> Iterator[tuple[Data, Flaw]]:
    """What is wrong with the monitors, and with what keeps them out."""
    all_clusters = [(one, cluster) for one in objects for cluster in clusters(one)]
    monitors = list(of_kind(objects, "PodMonitoring", "PodMonitor"))
    for monitor in monitors:
        chosen = [(cluster, group) for _, cluster in all_clusters for group in cluster.groups if _chooses(monitor, cluster, group)]
        if all_clusters and not chosen and _for_runs(monitor):
            reason = "chooses none of the pods here, in the namespaces that it looks at: there will be no numbers, and no alert says so"
            yield monitor, Flaw("spec.selector", "monitoring", reason)
        for cluster, group in chosen:
            for flaw in _ends(objects, monitor, cluster, group):
                yield monitor, flaw
    if any(True for _ in of_kind(objects, "Rules", "PrometheusRule")) and any(_for_runs(one) for one in monitors):
        for monitor in monitors:
            if _for_runs(monitor) and not _tells_clusters_apart(monitor):
                reason = f"give no series the label {_CLUSTER}: the alerts take the numbers of all clusters for one"
                yield monitor, Flaw("spec targetLabels or relabelings", "monitoring", reason)
        for one, cluster in all_clusters:
            for flaw in _unread(monitors, cluster):
                yield one, flaw


def _tells_clusters_apart(monitor: Data) -> bool:
    if get(monitor, "kind") == "PodMonitoring":
        return any(
            (get(one, "from"), get(one, "to")) == ("ray.io/cluster", _CLUSTER) for one in items(monitor, "spec", "targetLabels", "fromPod")
        )
    return all(any(get(one, "targetLabel") == _CLUSTER for one in items(end, "relabelings")) for end in _endpoints(monitor))


def _for_runs(monitor: Data) -> bool:
    """Whether its selector speaks of labels that only pods of Ray and of runs have."""
    selector = mapping(monitor, "spec", "selector")
    keys = [*mapping(selector, "matchLabels"), *(get(one, "key") for one in items(selector, "matchExpressions"))]
    return not keys or any(str(key).startswith(("iddpm/", "ray.io/")) or key == PART_OF for key in keys)


def _chooses(monitor: Data, cluster: Cluster, group: Group) -> bool:
    names = items(monitor, "spec", "namespaceSelector", "matchNames")
    everywhere = get(monitor, "spec", "namespaceSelector", "any") is True
    looked = cluster.namespace in names if names else cluster.namespace == namespace(monitor)
    return (everywhere or looked) and selects(mapping(monitor, "spec", "selector"), group.labels)


def _endpoints(monitor: Data) -> list[Data]:
    return items(monitor, "spec", "endpoints") or items(monitor, "spec", "podMetricsEndpoints")


def _ends(objects: Objects, monitor: Data, cluster: Cluster, group: Group) -> Iterator[Flaw]:
    ports = written(group)
    found = rules(near(objects, cluster.namespace, "NetworkPolicy"), group, "ingress")
    for index, end in enumerate(_endpoints(monitor)):
        port = get(end, "port")
        number = ports.get(port) if isinstance(port, str) else port
        if port is not None and (number is None or number not in ports.values()):
            what = f"named {port}" if isinstance(port, str) else f"{port}"
            yield Flaw(f"spec endpoint {index}", "monitoring", f"{group.name} has no port {what}: it is never scraped")
        elif number is not None and found is not None and not _reached(found, monitor, cluster, number, ports):
            reason = f"no network policy lets what collects metrics reach port {number} of {group.name}: it is never scraped"
            yield Flaw(f"spec endpoint {index}", "monitoring", reason)


def _reached(found: list[Data], monitor: Data, cluster: Cluster, number: int, ports: dict[str, int]) -> bool:
    """Google's collectors have namespaces of their own; those of the Prometheus operator may have any that a policy names."""
    spaces = set(_GOOGLES)
    if get(monitor, "kind") == "PodMonitor":
        spaces = {*_USUAL, *_named(found)} - {cluster.namespace}
    mine = [rule for rule in found if not _for_operator(rule)]
    return any(admits(mine, cluster.namespace, End(space, None), number, names=ports) for space in spaces)


def _named(found: list[Data]) -> set[str]:
    selectors = [mapping(peer, "namespaceSelector") for rule in found for peer in items(rule, "from")]
    values = {value for one in selectors for value in mapping(one, "matchLabels").values()}
    return values | {value for one in selectors for expression in items(one, "matchExpressions") for value in items(expression, "values")}


def _for_operator(rule: Data) -> bool:
    peers = items(rule, "from")
    return bool(peers) and all("kuberay-operator" in mapping(peer, "podSelector", "matchLabels").values() for peer in peers)


def _unread(monitors: Objects, cluster: Cluster) -> Iterator[Flaw]:
    for group in cluster.groups:
        chosen = [one for one in monitors if _chooses(one, cluster, group)]
        ends = {get(end, "port") for one in chosen for end in _endpoints(one)}
        ports = written(group)
        for name in SCRAPED if group.head else SCRAPED[:1]:
            if name not in ends and ports.get(name) not in ends:
                reason = f"no monitor here reads the port {name} of {group.name}: alerts that need it are silent, or never stop"
                yield Flaw(f"{group.container_path}.ports", "monitoring", reason)
