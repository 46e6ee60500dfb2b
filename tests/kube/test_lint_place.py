"""Pods that land on the wrong machines, or on none, are found."""

from typing import Any

import pytest
from kube.test_lint import Change, Objects, container, drop, head, overlay, pod, put, workers
from kube.test_lint import _found as found

from iddpm_ray.kube.lint import judge

SPOT, KIND = "cloud.google.com/gke-spot", "cloud.google.com/gke-provisioning"
TYPE, GPU = "node.kubernetes.io/instance-type", "nvidia.com/gpu"


def selector(o: Objects) -> Any:
    return pod(workers(o))["nodeSelector"]


def terms(group: Any) -> Any:
    return pod(group)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def term(key: str, operator: str, *values: str) -> Any:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def required(*given: Any) -> Any:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(given)}}}


def toleration(o: Objects, index: int) -> Any:
    return pod(workers(o))["tolerations"][index]


def renamed(before: str, after: str) -> Change:
    return lambda o: put(selector(o), after, selector(o).pop(before))


def large_head(o: Objects) -> None:
    put(pod(head(o)), "nodeSelector", {TYPE: "e2-standard-4"})
    put(container(head(o)), "resources", {"requests": {"cpu": "2", "memory": "64Gi"}, "limits": {"memory": "64Gi"}})


def sidecar(o: Objects) -> None:
    locked = container(workers(o))["securityContext"]
    pod(workers(o))["containers"].append(
        {"name": "s", "image": "busybox:1", "securityContext": locked, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    )


BROKEN: dict[str, tuple[Change, str, str]] = {
    "head with a second term": (lambda o: terms(head(o)).append(term("kubernetes.io/os", "In", "linux")), "head", "may land on a spot"),
    "head that would rather not": (
        lambda o: put(
            pod(head(o)),
            "affinity",
            {
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term(SPOT, "DoesNotExist")}]
                }
            },
        ),
        "head",
        "may land on a spot",
    ),
    "on-demand group with a second term": (
        lambda o: terms(workers(o, 1)).append(term("kubernetes.io/os", "In", "linux")),
        "machine",
        "on-demand in name",
    ),
    "spot in one term of two": (
        lambda o: (drop(selector(o), SPOT), put(pod(workers(o)), "affinity", required(term(SPOT, "Exists"), term(TYPE, "Exists")))),
        "machine",
        "on-demand in name",
    ),
    "head by name of spot": (lambda o: put(pod(head(o)), "affinity", required(term(KIND, "In", "spot"))), "head", "may land on a spot"),
    "toleration of another value": (lambda o: put(toleration(o, 0), "value", "yes"), "machine", "do not bear the taint"),
    "toleration of another effect": (lambda o: put(toleration(o, 0), "effect", "NoExecute"), "machine", "do not bear the taint"),
    "no toleration of GPU machines": (lambda o: pod(workers(o))["tolerations"].pop(1), "machine", "nvidia.com/gpu=present:NoSchedule"),
    "misspelt label of machines": (renamed(TYPE, "node.kubernetes.io/instance-typ"), "machine", "(node.kubernetes.io/instance-type?)"),
    "misspelt label of GKE": (renamed(SPOT, "cloud.google.com/gke-spots"), "machine", "(cloud.google.com/gke-spot?)"),
    "misspelt prefix": (renamed(TYPE, "node.kubernetes.oi/instance-type"), "machine", "is a label of no machine"),
    "misspelt label of an affinity": (
        lambda o: put(pod(head(o)), "affinity", required(term("cloud.google.com/gke-spott", "DoesNotExist"))),
        "machine",
        "is a label of no machine",
    ),
    "spot that is false": (lambda o: put(selector(o), SPOT, "false"), "machine", "it is true or not there"),
    "head too large": (large_head, "machine", "65 GiB of 12 on e2-standard-4"),
    "head and autoscaler too large": (
        lambda o: (
            put(pod(head(o)), "nodeSelector", {TYPE: "e2-standard-4"}),
            put(container(head(o))["resources"]["requests"], "cpu", "3"),
        ),
        "machine",
        "3.5 of the 3 that a pod can have",
    ),
    "GPUs of any machine": (lambda o: drop(pod(workers(o)), "nodeSelector"), "gpus", "any GPU may come"),
    "spot or not of any machine": (lambda o: drop(pod(workers(o)), "nodeSelector"), "machine", "on-demand in name"),
    "head with a GPU": (
        lambda o: [put(container(head(o))["resources"][kind], GPU, "1") for kind in ("requests", "limits")],
        "head",
        "where no rank ever runs",
    ),
    "limit below the request": (lambda o: put(container(workers(o))["resources"]["limits"], "cpu", "1"), "machine", "limit of 1"),
    "no room beside a second container": (sidecar, "machine", "8 of the 7"),
}

VALID: dict[str, Change] = {
    "spot by affinity": lambda o: (drop(selector(o), SPOT), put(pod(workers(o)), "affinity", required(term(SPOT, "In", "true")))),
    "spot in every term": lambda o: (
        drop(selector(o), SPOT),
        put(pod(workers(o)), "affinity", required(term(SPOT, "Exists"), term(KIND, "In", "spot"))),
    ),
    "spot by kind": lambda o: put(selector(o), KIND, "spot"),
    "head by kind": lambda o: (drop(pod(head(o)), "affinity"), put(pod(head(o)), "nodeSelector", {KIND: "standard"})),
    "head off spot in every term": lambda o: put(
        pod(head(o)), "affinity", required(term(SPOT, "DoesNotExist"), term(SPOT, "NotIn", "true"), term(KIND, "In", "standard"))
    ),
    "everything borne": lambda o: put(pod(workers(o)), "tolerations", [{"operator": "Exists"}]),
    "taints borne whatever they say": lambda o: put(
        pod(workers(o)), "tolerations", [{"key": SPOT, "operator": "Exists"}, {"key": GPU, "operator": "Exists"}]
    ),
    "taints borne by value": lambda o: put(
        pod(workers(o)), "tolerations", [{"key": SPOT, "value": "true"}, {"key": GPU, "value": "present", "effect": "NoSchedule"}]
    ),
    "labels of one's own": lambda o: selector(o).update({"team": "a", "example.com/zone": "b", "cloud.google.com/gke-nodepool": "l4"}),
    "no type of machine": lambda o: drop(selector(o), TYPE),
    "head on a machine that holds it": lambda o: put(pod(head(o)), "nodeSelector", {TYPE: "e2-standard-4"}),
    "limit as high as the request": lambda o: put(container(workers(o))["resources"]["limits"], "cpu", "7"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_mistake_in_where_pods_land_is_found(name: str) -> None:
    found(overlay(), *BROKEN[name])


@pytest.mark.parametrize("name", VALID)
def test_places_that_are_as_good_are_without_findings(name: str) -> None:
    objects = overlay()
    VALID[name](objects)
    assert [str(one) for one in judge(objects, where="here")] == []
