"""Objects that miss each other are found: in another namespace, not there at all, or below a ceiling that lets nothing through."""

import copy
from typing import Any

import pytest
from kube.test_lint import Change, Objects, cluster, container, drop, head, job, of, overlay, pod, put, workers
from kube.test_lint import _found as found

from iddpm_ray.kube.lint import judge

OTHER = ("RayCluster", "NetworkPolicy", "PodDisruptionBudget", "ResourceQuota", "ServiceAccount", "PodMonitoring", "Rules")


def away(kind: str) -> Change:
    return lambda o: put(of(o, kind)["metadata"], "namespace", "default")


def none_of(kind: str) -> Change:
    return lambda o: [o.remove(one) for one in list(o) if one["kind"] == kind]


def hard(o: Objects) -> Any:
    return of(o, "ResourceQuota")["spec"]["hard"]


def budget(o: Objects) -> Any:
    return of(o, "PodDisruptionBudget")["spec"]


def classes(o: Objects) -> Any:
    return [one for one in o if one["kind"] == "PriorityClass"]


BROKEN: dict[str, tuple[Change, str, str]] = {
    **{f"{kind} elsewhere": (away(kind), "namespace", "is default, and what is made here is iddpm") for kind in OTHER},
    "namespace renamed": (lambda o: put(of(o, "Namespace")["metadata"], "name", "other"), "namespace", "is iddpm, and what is made here"),
    "namespace left out": (lambda o: drop(of(o, "NetworkPolicy")["metadata"], "namespace"), "namespace", "wherever kubectl points"),
    "policy elsewhere": (away("NetworkPolicy"), "network", "every door stays open"),
    "budget elsewhere": (away("PodDisruptionBudget"), "budget", "is in the namespace default"),
    "monitor elsewhere": (away("PodMonitoring"), "monitoring", "chooses none of the pods"),
    "account elsewhere": (away("ServiceAccount"), "references", "there is no ServiceAccount iddpm-head"),
    "no budget": (none_of("PodDisruptionBudget"), "budget", "takes the driver along"),
    "no policy": (none_of("NetworkPolicy"), "network", "every door stays open"),
    "no classes": (none_of("PriorityClass"), "references", "there is no PriorityClass iddpm-head"),
    "no accounts": (none_of("ServiceAccount"), "references", "there is no ServiceAccount iddpm-worker"),
    "a claim that is not here": (
        lambda o: (
            o.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "x", "namespace": "iddpm"}, "spec": {}}),
            pod(workers(o))["volumes"].append({"name": "x", "persistentVolumeClaim": {"claimName": "y"}}),
        ),
        "references",
        "no PersistentVolumeClaim y",
    ),
    "a map of variables that is not here": (
        lambda o: put(container(workers(o)), "envFrom", [{"configMapRef": {"name": "y"}}]),
        "references",
        "no ConfigMap y",
    ),
    "head without its token": (lambda o: put(pod(head(o)), "automountServiceAccountToken", False), "accounts", "no worker ever comes"),
    "account of the head without its token": (
        lambda o: put(of(o, "ServiceAccount"), "automountServiceAccountToken", False),
        "accounts",
        "no worker ever comes",
    ),
    "one GPU for groups of five": (lambda o: put(hard(o), "requests.nvidia.com/gpu", "1"), "ceiling", "5 pods of 1 GPUs"),
    "one pod": (lambda o: put(hard(o), "pods", "1"), "ceiling", "more than the quota of 1 pods"),
    "CPUs for the head alone": (lambda o: put(hard(o), "requests.cpu", "4"), "ceiling", "ask for more cpu"),
    "quota of limits that nobody gives": (lambda o: put(hard(o), "limits.cpu", "100"), "ceiling", "wants it: no pod is made"),
    "budget that says two things": (lambda o: put(budget(o), "minAvailable", 1), "budget", "refuses both"),
    "budget for one of all heads": (
        lambda o: (drop(budget(o), "maxUnavailable"), put(budget(o), "minAvailable", 1)),
        "budget",
        "the others may be evicted",
    ),
    "budget over workers": (lambda o: drop(budget(o)["selector"]["matchLabels"], "iddpm/role"), "budget", "can be drained"),
    "head that pushes nobody": (lambda o: put(classes(o)[0], "preemptionPolicy", "Never"), "priorities", "a new head waits"),
    "rights for workers": (
        lambda o: o.append(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": "x", "namespace": "iddpm"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "x"},
                "subjects": [{"kind": "ServiceAccount", "name": "iddpm-worker"}],
            }
        ),
        "accounts",
        "whatever runs in a worker",
    ),
    "class of everybody": (lambda o: put(classes(o)[1], "globalDefault", True), "priorities", "every pod of the cluster"),
}


def another_budget(o: Objects) -> None:
    other = copy.deepcopy(of(o, "PodDisruptionBudget"))
    other["metadata"]["name"] = "tracker"
    other["spec"] = {"minAvailable": 1, "selector": {"matchLabels": {"app": "tracker"}}}
    o.append(other)


def another_monitor(o: Objects) -> None:
    other = copy.deepcopy(of(o, "PodMonitoring"))
    other["metadata"]["name"] = "tracker"
    other["spec"] = {"selector": {"matchLabels": {"app": "tracker"}}, "endpoints": [{"port": "http"}]}
    o.append(other)


VALID: dict[str, Change] = {
    "budget of another app": another_budget,
    "monitor of another app": another_monitor,
    "budget that keeps all": lambda o: (drop(budget(o), "maxUnavailable"), put(budget(o), "minAvailable", "100%")),
    "budget by KubeRay's label": lambda o: put(budget(o), "selector", {"matchLabels": {"ray.io/node-type": "head"}}),
    "dashboard where Grafana is": lambda o: o.append(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "x", "namespace": "monitoring", "labels": {"grafana_dashboard": "1"}},
            "data": {},
        }
    ),
    "a class that every cluster has": lambda o: put(pod(head(o)), "priorityClassName", "system-cluster-critical"),
    "room for all": lambda o: hard(o).update({"pods": "20", "requests.cpu": "100", "requests.memory": "400Gi"}),
    "a quota of some pods": lambda o: o.append(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "x", "namespace": "iddpm"},
            "spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort"]},
        }
    ),
    "a map that may be missing": lambda o: put(container(workers(o)), "envFrom", [{"configMapRef": {"name": "y", "optional": True}}]),
    "another namespace for all": lambda o: [
        put(one["metadata"], "name" if one["kind"] == "Namespace" else "namespace", "team-b")
        for one in o
        if one["kind"] == "Namespace" or "namespace" in one["metadata"]
    ],
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_misses_each_other_is_found(name: str) -> None:
    found(overlay(), *BROKEN[name])


@pytest.mark.parametrize("name", VALID)
def test_what_is_as_good_is_without_findings(name: str) -> None:
    objects = overlay()
    VALID[name](objects)
    assert [str(one) for one in judge(objects, where="here")] == []


def test_the_specs_map_in_another_namespace_than_its_job_is_found() -> None:
    found(job(), away("ConfigMap"), "references", "it is in the namespace default")


def test_a_run_beside_another_app_is_not_asked_for_what_stands_elsewhere() -> None:
    """Accounts, policies and budgets of the run's namespace are in the overlay, not in this file."""
    metadata = {"name": "tracker", "namespace": "iddpm"}
    others = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "tracker"}, "value": 1},
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata,
            "spec": {"podSelector": {"matchLabels": {"app": "tracker"}}},
        },
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata,
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "tracker"}}},
        },
    ]
    assert [str(one) for one in judge([*job(), *others], where="here")] == []


def test_an_account_that_is_almost_the_one_is_found_without_its_namespace() -> None:
    objects = [one for one in overlay() if one["kind"] in ("RayCluster", "ServiceAccount")]
    put(pod(head(objects)), "serviceAccountName", "iddpm-haed")
    assert [one.rule for one in judge(objects, where="here")] == ["references"]


def test_a_cluster_without_its_namespace_is_not_asked_what_stands_there() -> None:
    """Its accounts, classes, quota and policies may be on the cluster already."""
    objects = [one for one in overlay() if one["kind"] == "RayCluster"]
    assert cluster(objects)
    assert judge(objects, where="here") == []
