"""Who may do what, as docs/security.md says it, read off the manifests that are applied."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iddpm_ray.cli import read_spec
from iddpm_ray.kube import render
from iddpm_ray.kube.kustomize import build

K8S = Path(__file__).parents[2] / "k8s"
Data = dict[str, Any]


def sets() -> dict[str, list[Data]]:
    """Everything that is applied: each overlay, and what each example's run brings."""
    overlays = {path.name: build(path, own=True) for path in sorted((K8S / "overlays").iterdir())}
    return overlays | {name: render.job(read_spec(str(K8S / "examples" / f"{name}.yaml"))) for name in ("cats", "digits-cpu")}


SETS = sets()
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())


def clusters(objects: list[Data]) -> Iterator[Data]:
    """The spec of every RayCluster, alone or inside a RayJob."""
    for one in objects:
        if one["kind"] == "RayCluster":
            yield one["spec"]
        elif one["kind"] == "RayJob":
            yield one["spec"]["rayClusterSpec"]


def templates(objects: list[Data]) -> Iterator[tuple[str, Data]]:
    """`head` or `worker`, and the template of the pod."""
    for cluster in clusters(objects):
        yield "head", cluster["headGroupSpec"]["template"]
        for group in cluster["workerGroupSpecs"]:
            yield "worker", group["template"]


def policy(objects: list[Data]) -> Data:
    (found,) = [one["spec"] for one in objects if one["kind"] == "NetworkPolicy"]
    return found


@pytest.mark.parametrize("name", SETS)
def test_the_job_api_asks_for_a_token(name: str) -> None:
    found = [cluster["authOptions"]["mode"] for cluster in clusters(SETS[name])]
    assert found
    assert set(found) == {"token"}


@pytest.mark.parametrize("name", SETS)
def test_workers_have_no_token_of_the_api_server_and_nobody_is_granted_a_role(name: str) -> None:
    for kind, template in templates(SETS[name]):
        pod = template["spec"]
        assert pod["serviceAccountName"] == f"iddpm-{kind}"
        assert (pod.get("automountServiceAccountToken") is False) == (kind == "worker")
    assert not {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} & {one["kind"] for one in SETS[name]}


@pytest.mark.parametrize("name", SETS)
def test_nothing_is_exposed_to_the_outside(name: str) -> None:
    assert not {"Service", "Ingress", "Gateway", "HTTPRoute", "Route"} & {one["kind"] for one in SETS[name]}
    for cluster in clusters(SETS[name]):
        assert not {"serviceType", "headService", "enableIngress"} & set(cluster["headGroupSpec"])


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_are_reached_by_each_other_the_operator_and_collectors_alone(name: str) -> None:
    own, operator, collectors = policy(SETS[name])["ingress"]
    ours = {"matchLabels": {"app.kubernetes.io/part-of": "iddpm"}}
    assert policy(SETS[name])["policyTypes"] == ["Ingress"]
    assert own == {"from": [{"podSelector": ours}]}
    assert operator["from"] == [
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}},
    ]
    assert sorted(port["port"] for port in operator["ports"]) == [8265, 52365]
    ((peer,), ports) = collectors["from"], {port["port"] for port in collectors["ports"]}
    assert peer["namespaceSelector"]["matchExpressions"][0]["values"] == ["gmp-system", "gke-gmp-system", "monitoring"]
    assert 8265 not in ports


@pytest.mark.parametrize("name", SETS)
def test_the_policy_of_the_namespace_covers_every_pod(name: str) -> None:
    (chosen,) = policy(SETS[OVERLAYS[0]])["podSelector"]["matchLabels"].items()
    for _, template in templates(SETS[name]):
        assert chosen in template["metadata"]["labels"].items()


@pytest.mark.parametrize("name", SETS)
def test_pods_run_without_rights_over_the_machine(name: str) -> None:
    for _, template in templates(SETS[name]):
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 1000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any("hostPath" in volume for volume in pod["volumes"])
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        for container in pod["containers"]:
            assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_namespace_is_restricted_and_its_gpus_are_bounded(name: str) -> None:
    (namespace,) = [one for one in SETS[name] if one["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    (quota,) = [one for one in SETS[name] if one["kind"] == "ResourceQuota"]
    assert int(quota["spec"]["hard"]["requests.nvidia.com/gpu"]) > 0


@pytest.mark.parametrize("name", OVERLAYS)
def test_training_pushes_nobody_off_a_machine(name: str) -> None:
    classes = {one["metadata"]["name"]: one for one in SETS[name] if one["kind"] == "PriorityClass"}
    assert classes["iddpm-train"]["preemptionPolicy"] == "Never"
    for kind, template in templates(SETS[name]):
        assert template["spec"]["priorityClassName"] == {"head": "iddpm-head", "worker": "iddpm-train"}[kind]


@pytest.mark.parametrize("name", SETS)
def test_usage_statistics_are_off(name: str) -> None:
    for cluster in clusters(SETS[name]):
        (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
        assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in head["env"]
