"""House rules about who reaches whom: asked of all network policies over a pod together, as Kubernetes adds them up."""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from iddpm_ray.kube.clusters import Cluster, Group, clusters
from iddpm_ray.kube.objects import Data, Flaw, get, items, mapping, near, of_kind, selects
from iddpm_ray.kube.ports import agent, opened, written
from iddpm_ray.kube.spelling import meant

Objects = list[dict[str, Any]]

OPERATORS = ("kuberay-operator", "kuberay-system", "kuberay", "ray-system")  # namespaces that it is installed in; ours is the first
_OPERATOR = {"app.kubernetes.io/name": "kuberay-operator"}
_SPACE = "kubernetes.io/metadata.name"
_PRIVATE = [ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")]
_ANY = (10002, 32768, 60999, 65535)  # raylets, workers, gloo and NCCL take ports as they come


@dataclass(frozen=True)
class End:
    """One end of a connection.

    Attributes:
        labels: of the pod; None where nobody here knows them.
        sure: whether the labels of its namespace are known not to be those that a selector wants.
    """

    namespace: str | None
    labels: Data | None
    sure: bool = False


STRANGER = End("somebody-elses", {"app": "somebody-elses"}, sure=True)


def check_network(objects: Objects, homes: set[str]) -> Iterator[tuple[Data, Flaw]]:
    """What the policies keep apart that has to meet, and whom they let in.

    Args:
        homes: namespaces that are made here, whose policies are all here too.
    """
    for one in objects:
        for cluster in clusters(one):
            policies = near(objects, cluster.namespace, "NetworkPolicy")
            meant = any(_chooses(policy, group) for policy in of_kind(objects, "NetworkPolicy") for group in cluster.groups)
            if cluster.namespace in homes or meant:
                for flaw in _unguarded(cluster, policies):
                    yield one, flaw
            yield from _kept_apart(cluster, policies)
            yield from _shut_in(cluster, policies)
            yield from _strangers(cluster, policies)


def rules(policies: Objects, group: Group, way: str) -> list[Data] | None:
    """The rules over a pod, of all policies that choose it; None where no policy closes it.

    Args:
        way: `ingress` or `egress`.
    """
    chosen = [one for one in policies if _chooses(one, group) and _speaks(one, way)]
    return [rule for one in chosen for rule in items(one, "spec", way)] if chosen else None


def admits(
    found: list[Data], home: str | None, end: End, port: int, *, names: dict[str, int], way: str = "from", udp: bool = False
) -> bool:
    """Whether a rule lets a connection through.

    Args:
        home: namespace of the policies.
        end: the far end.
        names: of the ports of the pod that is connected to.
    """
    return any(_opens(rule, port, names=names, udp=udp) and _meant(rule, home, end, way=way) for rule in found)


def _chooses(policy: Data, group: Group) -> bool:
    return selects(mapping(policy, "spec", "podSelector"), group.labels)


def _speaks(policy: Data, way: str) -> bool:
    types = get(policy, "spec", "policyTypes")
    if types is None:
        return way == "ingress" or get(policy, "spec", "egress") is not None
    return way.capitalize() in types


def _opens(rule: Data, number: int, *, names: dict[str, int], udp: bool) -> bool:
    def opens(port: Data) -> bool:
        first = get(port, "port")
        first = names.get(first) if isinstance(first, str) else first
        if (get(port, "protocol") or "TCP") != ("UDP" if udp else "TCP"):
            return False
        return get(port, "port") is None or (first is not None and first <= number <= (get(port, "endPort") or first))

    return not items(rule, "ports") or any(opens(port) for port in items(rule, "ports"))


def _meant(rule: Data, home: str | None, end: End, *, way: str) -> bool:
    return not items(rule, way) or any(_is(peer, home, end) for peer in items(rule, way))


def _is(peer: Data, home: str | None, end: End) -> bool:
    if (block := get(peer, "ipBlock")) is not None:
        return not end.sure or _wide(str(get(block, "cidr")))
    spaces = get(peer, "namespaceSelector")
    if not (end.namespace == home if spaces is None else _space(spaces, end)):
        return False
    return get(peer, "podSelector") is None or end.labels is None or selects(mapping(peer, "podSelector"), end.labels)


def _space(selector: Data, end: End) -> bool:
    """Of a namespace its name is known, and no other label: for those a stranger is taken not to have them, everybody else to have them."""
    wanted = {key: value for key, value in mapping(selector, "matchLabels").items() if key == _SPACE}
    expressions = [one for one in items(selector, "matchExpressions") if get(one, "key") == _SPACE]
    if any(meant(str(key), [_SPACE]) for key in (*mapping(selector, "matchLabels"), *_keys(selector))):
        return False
    others = len(mapping(selector, "matchLabels")) + len(items(selector, "matchExpressions")) - len(wanted) - len(expressions)
    return selects({"matchLabels": wanted, "matchExpressions": expressions}, {_SPACE: end.namespace}) and not (others and end.sure)


def _keys(selector: Data) -> list[Any]:
    return [get(one, "key") for one in items(selector, "matchExpressions")]


def _wide(cidr: str) -> bool:
    """Whether so many public addresses are in it that they are nobody's in particular."""
    try:
        network = ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return False
    inside = any(network.version == one.version and network.subnet_of(one) for one in _PRIVATE)  # type: ignore[arg-type]
    return not inside and network.prefixlen < (16 if network.version == 4 else 32)


def _unguarded(cluster: Cluster, policies: Objects) -> Iterator[Flaw]:
    open_ones = [group for group in cluster.groups if rules(policies, group, "ingress") is None]
    if open_ones:
        names = ", ".join(group.name for group in open_ones)
        reason = f"no network policy of its namespace closes the pods of {names}: every door stays open, the job API's and Ray's own too"
        yield Flaw(open_ones[0].path, "network", reason)


def _first(policies: Objects, group: Group, way: str) -> Data:
    return next(one for one in policies if _chooses(one, group) and _speaks(one, way))


def _kept_apart(cluster: Cluster, policies: Objects) -> Iterator[tuple[Data, Flaw]]:
    home, told = cluster.namespace, False
    for group in cluster.groups:
        found, names = rules(policies, group, "ingress"), written(group)
        if found is None:
            continue
        ports = (opened(group, "gcs"), opened(group, "client"), *_ANY) if group.head else _ANY
        others = [other for other in cluster.groups if not (group.head and other.head)]
        if not told and not all(admits(found, home, End(home, other.labels), port, names=names) for other in others for port in ports):
            reason = f"does not let the pods of {group.name} reach each other on every port: Ray's nodes and the ranks find no connection"
            yield _first(policies, group, "ingress"), Flaw("spec.ingress", "network", reason)
            told = True
        for port, loss in ((opened(group, "dashboard"), "the job is never submitted"), (agent(group), "it never hears from Ray's agent")):
            if group.head and not any(admits(found, home, End(space, _OPERATOR), port, names=names) for space in OPERATORS):
                reason = f"does not let kuberay-operator (in the namespace {OPERATORS[0]}) reach TCP port {port} of the head: {loss}"
                yield _first(policies, group, "ingress"), Flaw("spec.ingress", "network", reason)


def _shut_in(cluster: Cluster, policies: Objects) -> Iterator[tuple[Data, Flaw]]:
    home = cluster.namespace
    for group in cluster.groups:
        found = rules(policies, group, "egress")
        if found is None:
            continue
        others = [other for other in cluster.groups if not (group.head and other.head)]

        def out(end: End, port: int, found: list[Data] = found, *, udp: bool = False) -> bool:
            return admits(found, home, end, port, names={}, way="to", udp=udp)

        missing = [] if all(out(End(home, other.labels), port) for other in others for port in _ANY) else ["each other"]
        missing += [] if out(End("kube-system", None), 53, udp=True) else ["names (UDP port 53)"]
        missing += [] if any(_opens(rule, 443, names={}, udp=False) and _leaves(rule) for rule in found) else ["storage (TCP port 443)"]
        if missing:
            reason = f"does not let {group.name} out to {', '.join(missing)}: the run never starts"
            yield _first(policies, group, "egress"), Flaw("spec.egress", "network", reason)
            return


def _leaves(rule: Data) -> bool:
    return not items(rule, "to") or any(get(peer, "ipBlock") is not None for peer in items(rule, "to"))


def _strangers(cluster: Cluster, policies: Objects) -> Iterator[tuple[Data, Flaw]]:
    home = cluster.namespace
    for policy in policies:
        for group in cluster.groups:
            if not _chooses(policy, group) or not _speaks(policy, "ingress"):
                continue
            ports = (opened(group, "dashboard"), opened(group, "gcs"), opened(group, "client")) if group.head else ()
            doors, names = (*ports, agent(group), *_ANY), written(group)
            for index, rule in enumerate(items(policy, "spec", "ingress")):
                found = next((port for port in doors if admits([rule], home, STRANGER, port, names=names)), None)
                if found is not None:
                    reason = f"lets anybody reach port {found} of {group.name}: nothing but a token is between them and the run"
                    yield policy, Flaw(f"spec.ingress[{index}]", "network", reason)
