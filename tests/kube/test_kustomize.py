"""The subset of kustomize builds what kustomize builds, and refuses the rest by name."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from iddpm_ray.errors import UserError
from iddpm_ray.kube.kustomize import apply, build

K8S = Path(__file__).parents[2] / "k8s"
FOLDERS = [K8S / "base", *sorted((K8S / "overlays").iterdir())]


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


@pytest.mark.skipif(not (shutil.which("kubectl") or shutil.which("kustomize")), reason="neither kubectl nor kustomize is installed")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_subset_builds_what_kustomize_builds(folder: Path) -> None:
    assert by_name(build(folder, own=True)) == by_name(build(folder))


def test_the_long_window_is_a_component_that_can_be_added(tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    file = tmp_path / "k8s/overlays/gke-spot-l4/kustomization.yaml"
    file.write_text(file.read_text().replace("components:\n", "components:\n  - ../../components/spot-120s\n"))
    group = by_name(build(file.parent, own=True))["RayCluster", "iddpm"]["spec"]["workerGroupSpecs"][0]
    pod = group["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 105
    assert {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "95"} in pod["containers"][0]["env"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("namePrefix: a-", "uses namePrefix"),
        ("resources: [nothing.yaml]", "names nothing.yaml"),
        ("patches: [{patch: '{}', target: {kind: X, labelSelector: a}}]", "labelSelector"),
        ("patches: [{patch: '{a: 1}', target: {kind: X}}]", "no JSON patch"),
    ],
)
def test_what_the_subset_cannot_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "kustomization.yaml").write_text(text)
    with pytest.raises(UserError, match=says):
        build(tmp_path, own=True)


@pytest.mark.parametrize(
    ("operation", "after"),
    [
        ({"op": "add", "path": "/a/-", "value": 3}, {"a": [1, 2, 3], "b/c": {}}),
        ({"op": "add", "path": "/a/0", "value": 3}, {"a": [3, 1, 2], "b/c": {}}),
        ({"op": "remove", "path": "/a/0"}, {"a": [2], "b/c": {}}),
        ({"op": "replace", "path": "/a/1", "value": 5}, {"a": [1, 5], "b/c": {}}),
        ({"op": "add", "path": "/b~1c/d", "value": 1}, {"a": [1, 2], "b/c": {"d": 1}}),
        ({"op": "test", "path": "/a/0", "value": 1}, {"a": [1, 2], "b/c": {}}),
    ],
)
def test_operations_of_a_json_patch(operation: dict[str, Any], after: dict[str, Any]) -> None:
    one: dict[str, Any] = {"a": [1, 2], "b/c": {}}
    apply(one, operation, source="here")
    assert one == after


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "path": "/x", "value": 1},
        {"op": "remove", "path": "/a/7"},
        {"op": "test", "path": "/a/0", "value": 2},
        {"op": "move", "path": "/a/0", "from": "/a/1"},
    ],
)
def test_an_operation_that_does_not_fit_is_refused(operation: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="here: "):
        apply({"a": [1, 2]}, operation, source="here")
