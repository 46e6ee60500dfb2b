"""Who reaches whom: what all policies over a pod let through together is found where it is too little, and where it is too much."""

import copy
from typing import Any

import pytest
from kube.test_lint import Change, Objects, cluster, container, drop, head, of, overlay, put, set_env, workers
from kube.test_lint import _found as found

from iddpm_ray.kube.lint import judge


def policy(o: Objects) -> Any:
    return of(o, "NetworkPolicy")["spec"]


def rule(o: Objects, index: int) -> Any:
    return policy(o)["ingress"][index]


def egress(*rules: Any) -> Change:
    return lambda o: policy(o).update({"policyTypes": ["Ingress", "Egress"], "egress": list(rules)})


OURS = {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "iddpm"}}}
DNS = {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
STORAGE = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"protocol": "TCP", "port": 443}]}
IN_SPACE = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "iddpm"}}}

BROKEN: dict[str, tuple[Change, str, str]] = {
    "worker without the label": (
        lambda o: drop(workers(o)["template"]["metadata"]["labels"], "app.kubernetes.io/part-of"),
        "network",
        "closes the pods of group gpu-spot",
    ),
    "policy of workers": (lambda o: put(policy(o)["podSelector"]["matchLabels"], "iddpm/role", "worker"), "network", "pods of the head"),
    "policy of heads": (lambda o: put(policy(o)["podSelector"]["matchLabels"], "iddpm/role", "head"), "network", "pods of group gpu-spot"),
    "policy of the way out alone": (
        lambda o: policy(o).update({"policyTypes": ["Egress"], "egress": [{}]}),
        "network",
        "every door stays open",
    ),
    "no way out": (lambda o: put(policy(o), "policyTypes", ["Ingress", "Egress"]), "network", "out to each other, names"),
    "out to names alone": (egress(DNS), "network", "out to each other, storage"),
    "out to all but names": (egress({"to": [OURS]}, STORAGE), "network", "out to names (UDP port 53)"),
    "everybody let in": (lambda o: policy(o)["ingress"].append({}), "network", "lets anybody reach port 8265"),
    "every namespace let in": (
        lambda o: policy(o)["ingress"].append({"from": [{"namespaceSelector": {}}]}),
        "network",
        "lets anybody reach port 8265",
    ),
    "every address let in": (
        lambda o: policy(o)["ingress"].append({"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 10001}]}),
        "network",
        "lets anybody reach port 10001",
    ),
    "half of all addresses let in": (
        lambda o: policy(o)["ingress"].append({"from": [{"ipBlock": {"cidr": "128.0.0.0/1"}}]}),
        "network",
        "lets anybody reach port 8265",
    ),
    "all new addresses let in": (
        lambda o: policy(o)["ingress"].append({"from": [{"ipBlock": {"cidr": "::/0"}}]}),
        "network",
        "lets anybody reach port 8265",
    ),
    "operator without the agent's port": (lambda o: rule(o, 1)["ports"].pop(1), "network", "reach TCP port 52365"),
    "operator over UDP": (lambda o: put(rule(o, 1)["ports"][0], "protocol", "UDP"), "network", "reach TCP port 8265"),
    "operator sought in the run's namespace": (lambda o: drop(rule(o, 1)["from"][0], "namespaceSelector"), "network", "never submitted"),
    "operator in the wrong namespace": (
        lambda o: rule(o, 1)["from"][0].update(IN_SPACE),
        "network",
        "kuberay-operator (in the namespace kuberay-operator)",
    ),
    "pods that reach one port of each other": (
        lambda o: put(rule(o, 0), "ports", [{"protocol": "TCP", "port": 6379}]),
        "network",
        "find no connection",
    ),
    "collectors kept out": (lambda o: policy(o)["ingress"].pop(2), "monitoring", "lets what collects metrics reach port 8080"),
    "collectors at another port": (lambda o: put(rule(o, 2)["ports"][0], "port", 8081), "monitoring", "reach port 8080"),
    "collectors from another namespace": (
        lambda o: put(rule(o, 2)["from"][0]["namespaceSelector"]["matchExpressions"][0], "values", ["metrics"]),
        "monitoring",
        "it is never scraped",
    ),
    "collectors by a label that no namespace has": (
        lambda o: put(rule(o, 2)["from"][0]["namespaceSelector"]["matchExpressions"][0], "key", "kubernetes.io/metadata.names"),
        "monitoring",
        "it is never scraped",
    ),
    "clusters told apart by nothing": (
        lambda o: put(of(o, "PodMonitoring")["spec"]["targetLabels"]["fromPod"][0], "from", "ray.io/clusters"),
        "monitoring",
        "of all clusters for one",
    ),
    "autoscaler's numbers not read": (
        lambda o: of(o, "PodMonitoring")["spec"]["endpoints"].pop(1),
        "monitoring",
        "no monitor here reads the port as-metrics",
    ),
    "clusters not told apart": (lambda o: drop(of(o, "PodMonitoring")["spec"], "targetLabels"), "monitoring", "of all clusters for one"),
    "no token, with a policy": (lambda o: drop(cluster(o), "authOptions"), "security", "whoever reaches port 8265"),
    "token off": (lambda o: put(cluster(o), "authOptions", {"mode": "disabled"}), "security", "whoever reaches port 8265"),
    "token off by a variable": (lambda o: set_env(head(o), "RAY_AUTH_MODE", "disabled"), "security", "do not meet"),
    "balancer": (lambda o: put(head(o), "serviceType", "LoadBalancer"), "security", "offered outside"),
    "port of the machines": (lambda o: put(head(o), "serviceType", "NodePort"), "security", "offered outside"),
    "balancer by template": (lambda o: put(head(o), "headService", {"spec": {"type": "LoadBalancer"}}), "security", "offered outside"),
    "balancer of our own": (
        lambda o: o.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "x", "namespace": "iddpm"},
                "spec": {"type": "LoadBalancer", "selector": {"ray.io/node-type": "head"}, "ports": [{"port": 8265}]},
            }
        ),
        "security",
        "outside of the cluster",
    ),
    "ingress": (lambda o: put(head(o), "enableIngress", True), "security", "whoever reaches the ingress"),
}


def split(o: Objects) -> None:
    first = of(o, "NetworkPolicy")
    second = copy.deepcopy(first)
    second["metadata"]["name"] = "second"
    first["spec"]["ingress"], second["spec"]["ingress"] = first["spec"]["ingress"][:1], second["spec"]["ingress"][1:]
    o.append(second)


def another(name: str, **spec: Any) -> Change:
    metadata = {"name": name, "namespace": "iddpm"}
    return lambda o: o.append({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec})


VALID: dict[str, Change] = {
    "nothing beside what is allowed": another("deny", podSelector={}, policyTypes=["Ingress"]),
    "split in two": split,
    "policy of another app": another("tracker", podSelector={"matchLabels": {"app": "tracker"}}, ingress=[{}]),
    "policy of the whole namespace": lambda o: put(policy(o), "podSelector", {}),
    "policy by KubeRay's label": lambda o: put(policy(o), "podSelector", {"matchLabels": {"ray.io/is-ray-node": "yes"}}),
    "operator by namespace": lambda o: put(
        rule(o, 1), "from", [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kuberay-operator"}}}]
    ),
    "operator by a label of its namespace": lambda o: put(rule(o, 1), "from", [{"namespaceSelector": {"matchLabels": {"team": "ray"}}}]),
    "operator's port by name": lambda o: put(rule(o, 1)["ports"][0], "port", "dashboard"),
    "operator's ports as a range": lambda o: put(rule(o, 1), "ports", [{"protocol": "TCP", "port": 8000, "endPort": 60000}]),
    "ports without protocol": lambda o: [drop(port, "protocol") for port in rule(o, 1)["ports"]],
    "collectors by name of port": lambda o: put(
        rule(o, 2), "ports", [{"port": name} for name in ("metrics", "as-metrics", "dash-metrics")]
    ),
    "out to what is needed": egress({"to": [OURS]}, DNS, STORAGE),
    "out to everything": egress({}),
    "an office's addresses": lambda o: policy(o)["ingress"].append({"from": [{"ipBlock": {"cidr": "10.8.0.0/16"}}]}),
    "an office's public addresses": lambda o: policy(o)["ingress"].append({"from": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}),
    "metrics for everybody": lambda o: policy(o)["ingress"].append({"ports": [{"port": 8080}]}),
    "a service inside": lambda o: put(head(o), "serviceType", "ClusterIP"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_mistake_of_the_network_is_found(name: str) -> None:
    found(overlay(), *BROKEN[name])


@pytest.mark.parametrize("name", VALID)
def test_what_lets_the_same_through_is_without_findings(name: str) -> None:
    objects = overlay()
    VALID[name](objects)
    assert [str(one) for one in judge(objects, where="here")] == []


def test_ports_that_move_together_are_without_findings() -> None:
    """The job API at another port, in the container, in `ray start` and in the policy."""
    objects = overlay()
    put(head(objects)["rayStartParams"], "dashboard-port", "9265")
    next(port for port in container(head(objects))["ports"] if port["name"] == "dashboard")["containerPort"] = 9265
    put(rule(objects, 1)["ports"][0], "port", 9265)
    assert [str(one) for one in judge(objects, where="here")] == []
