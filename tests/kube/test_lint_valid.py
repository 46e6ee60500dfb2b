"""What is valid is without findings: other kinds, what a server adds, parts of a kustomization. What only looks so is found."""

import copy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.test_lint import K8S, Change, cluster, container, drop, head, job, of, overlay, put, workers

from iddpm_ray.kube.kustomize import build
from iddpm_ray.kube.lint import judge, lint
from iddpm_ray.kube.objects import quantity


def beside(kind: str, version: str, **content: Any) -> Change:
    return lambda o: o.append({"apiVersion": version, "kind": kind, "metadata": {"name": "x", "namespace": "iddpm"}, **content})


RULES = [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["get"]}]
SERVED = {
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "generation": 3,
    "managedFields": [{"manager": "kubectl"}],
    "resourceVersion": "17",
    "uid": "0a1b",
}


def endpoint(o: Any) -> Any:
    return of(o, "PodMonitoring")["spec"]["endpoints"][0]


VALID: dict[str, Change] = {
    "role": beside("Role", "rbac.authorization.k8s.io/v1", rules=RULES),
    "service": beside("Service", "v1", spec={"selector": {"app": "tracker"}, "ports": [{"port": 5000}]}),
    "claim": beside("PersistentVolumeClaim", "v1", spec={"accessModes": ["ReadWriteMany"]}),
    "range of limits": beside("LimitRange", "v1", spec={"limits": [{"type": "Container", "default": {"cpu": "1"}}]}),
    "queue": beside("LocalQueue", "kueue.x-k8s.io/v1beta1", spec={"clusterQueue": "x"}),
    "deployment": beside("Deployment", "apps/v1", spec={"replicas": 1}),
    "some operator's": beside("Certificate", "cert-manager.io/v1", spec={"secretName": "x"}),
    "series dropped": lambda o: put(endpoint(o), "metricRelabeling", [{"action": "drop", "regex": "x", "sourceLabels": ["__name__"]}]),
    "an interval of two units": lambda o: put(endpoint(o), "interval", "1m30s"),
    "what a server adds": lambda o: [one["metadata"].update(copy.deepcopy(SERVED)) for one in o],
    "status": lambda o: [put(one, "status", {"state": "ready"}) for one in o],
    "no time of making": lambda o: put(workers(o)["template"]["metadata"], "creationTimestamp", None),
    "limits alone": lambda o: (
        put(container(workers(o))["resources"]["limits"], "cpu", "7"),
        drop(container(workers(o))["resources"], "requests"),
    ),
    "limits alone on the head": lambda o: put(container(head(o)), "resources", {"limits": {"cpu": "2", "memory": "8Gi"}}),
    "a list of objects": lambda o: o.__setitem__(slice(None), [{"apiVersion": "v1", "kind": "List", "items": copy.deepcopy(o)}]),
    **{
        f"memory of {text}": lambda o, text=text: container(workers(o))["resources"].update(
            requests={**container(workers(o))["resources"]["requests"], "memory": text},
            limits={**container(workers(o))["resources"]["limits"], "memory": text},
        )
        for text in ("28e9", "27648Mi", "28991029248", "2.8E10")
    },
}

BROKEN: dict[str, tuple[Change, str]] = {
    "misspelt kind": (lambda o: put(of(o, "NetworkPolicy"), "kind", "NetworkPolicies"), "is no kind that there is: "),
    "misspelt kind of KubeRay": (lambda o: put(of(o, "RayCluster"), "kind", "RayClustr"), "RayCluster"),
    "version that is no more": (lambda o: put(of(o, "RayCluster"), "apiVersion", "ray.io/v1alpha1"), "ray.io/v1 RayCluster"),
    "group that is no more": (lambda o: put(of(o, "PodDisruptionBudget"), "apiVersion", "policy/v1beta1"), "policy/v1 PodDisruptionBudget"),
    "a role without a name": (lambda o: o.append({"apiVersion": "v1", "kind": "Service", "metadata": {}}), "name is missing"),
}


@pytest.mark.parametrize("name", VALID)
def test_what_is_valid_is_without_findings(name: str) -> None:
    objects = overlay()
    before = copy.deepcopy(objects)
    VALID[name](objects)
    assert objects != before
    assert [str(one) for one in judge(objects, where="here")] == []


@pytest.mark.parametrize("name", BROKEN)
def test_what_only_looks_so_is_found(name: str) -> None:
    change, says = BROKEN[name]
    objects = overlay()
    change(objects)
    assert any(one.rule == "schema" and says in one.reason for one in judge(objects, where="here"))


def test_a_monitor_may_stand_where_prometheus_is() -> None:
    objects = build(K8S / "base")
    spec = {
        "namespaceSelector": {"matchNames": ["iddpm"]},
        "selector": {"matchLabels": {"ray.io/is-ray-node": "yes"}},
        "podMetricsEndpoints": [{"port": "metrics", "metricRelabelings": [{"action": "labeldrop", "regex": "x"}]}],
    }
    metadata = {"name": "runs", "namespace": "monitoring"}
    objects.append({"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": metadata, "spec": spec})
    assert [str(one) for one in judge(objects, where="here")] == []
    spec["namespaceSelector"] = {"matchNames": ["others"]}
    assert [one.rule for one in judge(objects, where="here")] == ["monitoring"]


def test_a_list_is_judged_object_by_object() -> None:
    objects = overlay()
    drop(cluster(objects), "authOptions")
    assert {one.rule for one in judge([{"apiVersion": "v1", "kind": "List", "items": objects}], where="here")} == {"security"}


def test_a_job_as_the_server_prints_it_is_without_findings() -> None:
    objects = job()
    for one in objects:
        one["metadata"].update(copy.deepcopy(SERVED), annotations={**one["metadata"]["annotations"], "kubectl.kubernetes.io/x": "{}"})
    of(objects, "RayJob")["status"] = {"jobStatus": "RUNNING"}
    assert [str(one) for one in judge(objects, where="here")] == []


@pytest.mark.parametrize(
    "wanted",
    [
        {"patchesStrategicMerge": ["part.yaml"]},
        {"patchesJson6902": [{"target": {"version": "v1", "kind": "RayCluster", "name": "iddpm"}, "path": "part.yaml"}]},
        {"patches": [{"path": "part.yaml"}]},
        {"configMapGenerator": [{"name": "x", "files": ["part.yaml"]}]},
        {"configMapGenerator": [{"name": "x", "files": ["spec.yaml=part.yaml"]}]},
        {"secretGenerator": [{"name": "x", "envs": ["part.yaml"]}]},
        {"configurations": ["part.yaml"]},
        {"replacements": [{"path": "part.yaml"}]},
    ],
    ids=lambda wanted: next(iter(wanted)),
)
def test_a_file_that_a_kustomization_takes_part_of_is_no_object_of_its_own(tmp_path: Path, wanted: dict[str, Any]) -> None:
    shutil.copytree(K8S / "base", tmp_path / "base")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/kustomization.yaml").write_text(yaml.safe_dump({"resources": ["../base"], **wanted}))
    part = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "iddpm"}, "spec": {"suspend": False}}
    (tmp_path / "more/part.yaml").write_text(yaml.safe_dump(part))
    assert not [one for one in lint(tmp_path).findings if one.where.endswith("part.yaml")]
    (tmp_path / "more/kustomization.yaml").write_text(yaml.safe_dump({"resources": ["../base"]}))
    assert [one for one in lint(tmp_path).findings if one.where.endswith("part.yaml")]


@pytest.mark.parametrize(
    ("text", "number"),
    [("28e9", 28e9), ("1E3", 1000.0), ("2E", 2e18), ("500m", 0.5), (".5Gi", 2**29), ("1.", 1.0), ("-1", -1.0), ("+2k", 2000.0), (3, 3.0)],
)
def test_quantities_as_kubernetes_writes_them(text: str | int, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["27GB", "27gi", "1e", "e9", "", "1.5.2", "1e3Gi", "1e999", None, True])
def test_what_is_no_quantity_is_none(text: Any) -> None:
    assert quantity(text) is None


def test_linting_loads_neither_torch_nor_ray() -> None:
    words = f"import sys; from iddpm_ray.kube.lint import lint; from pathlib import Path; lint(Path({str(K8S)!r})); "
    words += "assert not {'torch', 'ray'} & set(sys.modules), 'loaded'"
    assert subprocess.run([sys.executable, "-c", words], cwd=K8S.parent, check=False, timeout=120).returncode == 0
