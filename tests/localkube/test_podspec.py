"""The pods that are run here are those that KubeRay would make of the same manifest."""

from pathlib import Path
from typing import Any

from localkube.podspec import head_pod, start_words, worker_pod

from iddpm_ray.kube.kustomize import build

K8S = Path(__file__).parents[2] / "k8s"


def cluster(overlay: str) -> dict[str, Any]:
    return next(one for one in build(K8S / "overlays" / overlay) if one["kind"] == "RayCluster")


def test_the_head_starts_as_kuberay_starts_it() -> None:
    made = cluster("dev-cpu")
    assert start_words(made, made["spec"]["headGroupSpec"], head_ip="127.0.0.1") == (
        "--head --block --dashboard-agent-listen-port=52365 --dashboard-host=0.0.0.0 --memory=4294967296 "
        "--metrics-export-port=8080 --no-monitor --num-cpus=0 --object-store-memory=157286400"
    )
    pod = head_pod(made, name="h", token="t")
    assert pod.env["RAY_enable_autoscaler_v2"] == "1"
    assert (pod.env["RAY_AUTH_MODE"], pod.env["RAY_AUTH_TOKEN"]) == ("token", "t")
    assert pod.sidecar == ["ray", "kuberay-autoscaler", "--cluster-name", "iddpm", "--cluster-namespace", "iddpm"]
    assert pod.shm == 512 * 2**20


def test_a_worker_has_its_gpus_labels_and_the_manifests_times() -> None:
    made = cluster("gke-spot-l4")
    group = made["spec"]["workerGroupSpecs"][0]
    words = start_words(made, group, head_ip="10.0.0.1")
    assert "--num-gpus=1" in words
    assert "--num-cpus=7" in words
    assert "--address=10.0.0.1:6379" in words
    assert "--labels='iddpm/capacity=spot'" in words
    assert """--resources='{"accelerator_type:L4": 1}'""" in words
    pod = worker_pod(made, group, name="w", head_ip="10.0.0.1", token=None)
    assert pod.env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "12"
    assert pod.env["RAY_CLOUD_INSTANCE_ID"] == "w"
    assert pod.grace_s == 15
    assert pod.sidecar == []
    assert "RAY_AUTH_MODE" not in pod.env
