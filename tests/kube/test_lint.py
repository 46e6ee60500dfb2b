"""Our own manifests are without findings, and each of these mistakes in them is found, with its reason."""

import copy
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from iddpm_ray.cli import read_spec
from iddpm_ray.errors import UserError
from iddpm_ray.kube import render
from iddpm_ray.kube.kustomize import build
from iddpm_ray.kube.lint import judge, lint

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAY = K8S / "overlays" / "gke-spot-l4"
EXAMPLE = K8S / "examples" / "cats.yaml"

Objects = list[dict[str, Any]]
Change = Callable[[Any], Any]


@cache
def _overlay() -> Objects:
    return build(OVERLAY)


def overlay() -> Objects:
    return copy.deepcopy(_overlay())


def job() -> Objects:
    return render.job(read_spec(str(EXAMPLE)))


def of(objects: Objects, kind: str) -> Any:
    return next(one for one in objects if one["kind"] == kind)


def cluster(objects: Objects) -> Any:
    return of(objects, "RayCluster")["spec"]


def head(objects: Objects) -> Any:
    return cluster(objects)["headGroupSpec"]


def workers(objects: Objects, group: int = 0) -> Any:
    return cluster(objects)["workerGroupSpecs"][group]


def pod(group: Any) -> Any:
    return group["template"]["spec"]


def container(group: Any) -> Any:
    return pod(group)["containers"][0]


def set_env(group: Any, name: str, value: str | None) -> None:
    own = container(group)["env"]
    own[:] = [one for one in own if one["name"] != name] + ([] if value is None else [{"name": name, "value": value}])


def put(where: Any, key: Any, value: Any) -> None:
    where[key] = value


def drop(where: Any, key: Any) -> None:
    del where[key]


def run_of(objects: Objects) -> Any:
    return of(objects, "RayJob")["spec"]


DRAIN, POLL, STOP = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S", "RAY_JOB_STOP_WAIT_TIME_S"

IN_THE_OVERLAY: dict[str, tuple[Change, str, str]] = {
    # what is broken: how, the rule that finds it, what its reason says
    "drain left to Ray": (lambda o: set_env(workers(o), DRAIN, None), "drain", "told a deadline 15 s later than the machine has"),
    "drain as long as the window": (lambda o: set_env(workers(o), DRAIN, "15"), "drain", "the node is killed instead"),
    "drain off": (lambda o: set_env(workers(o), DRAIN, "0"), "drain", "turns the notice off"),
    "drain far too short": (lambda o: set_env(workers(o), DRAIN, "3"), "drain", "not offered to a save"),
    "drain no number": (lambda o: set_env(workers(o), DRAIN, "12s"), "drain", "is no number"),
    "drain of the second group": (lambda o: set_env(workers(o, 1), DRAIN, "30"), "drain", "15 s later"),
    "grace that does not exist": (lambda o: put(pod(workers(o)), "terminationGracePeriodSeconds", 60), "grace", "never comes"),
    "grace left to Kubernetes": (lambda o: drop(pod(workers(o)), "terminationGracePeriodSeconds"), "grace", "the rest of 30 s never comes"),
    "poll left to Ray": (lambda o: set_env(head(o), POLL, None), "poll", "every 5.0 s"),
    "stop wait left to Ray": (lambda o: set_env(head(o), STOP, None), "stop", "killed after 3.0 s, before it has saved"),
    "preStop that sleeps": (
        lambda o: put(container(workers(o)), "lifecycle", {"preStop": {"exec": {"command": ["sleep", "5"]}}}),
        "pid1",
        "inside the few seconds",
    ),
    "command overwritten": (
        lambda o: put(workers(o)["template"]["metadata"], "annotations", {"ray.io/overwrite-container-cmd": "true"}),
        "pid1",
        "never hear of a reclaim",
    ),
    "a command of one's own": (lambda o: put(container(workers(o)), "args", ["echo hi"]), "pid1", "hears no SIGTERM"),
    "no headroom": (lambda o: workers(o).update(replicas=5), "headroom", "asked for, and refused"),
    "no limit": (lambda o: drop(workers(o), "maxReplicas"), "headroom", "then has no limit"),
    "machines kept warm": (lambda o: put(workers(o), "minReplicas", 2), "idle", "paid for also when nothing runs"),
    "idle for hours": (lambda o: put(cluster(o)["autoscalerOptions"], "idleTimeoutSeconds", 7200), "idle", "7200 s"),
    "no autoscaler": (lambda o: put(cluster(o), "enableInTreeAutoscaling", False), "autoscaling", "never given back"),
    "old autoscaler": (lambda o: put(cluster(o)["autoscalerOptions"], "version", "v1"), "autoscaling", "while the old pod still lives"),
    "small autoscaler": (lambda o: drop(cluster(o)["autoscalerOptions"], "resources"), "autoscaling", "never started again"),
    "unlocked autoscaler": (lambda o: drop(cluster(o)["autoscalerOptions"], "securityContext"), "security", "refuses the pod"),
    "on-demand first": (lambda o: put(workers(o, 1), "priority", 10), "groups", "where spot ones would do"),
    "twice the same group": (lambda o: put(workers(o, 1), "groupName", "gpu-spot"), "groups", "stands twice"),
    "work on the head": (lambda o: drop(head(o)["rayStartParams"], "num-cpus"), "head", "land on the head"),
    "job API on localhost": (lambda o: drop(head(o)["rayStartParams"], "dashboard-host"), "head", "no job ever starts"),
    "head on spot": (lambda o: drop(pod(head(o)), "affinity"), "head", "may land on a spot machine"),
    "head may be tidied away": (lambda o: drop(head(o)["template"]["metadata"], "annotations"), "head", "evicts the driver"),
    "small head": (
        lambda o: put(container(head(o)), "resources", {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}),
        "head",
        "killed for memory",
    ),
    "one account for all": (lambda o: put(pod(workers(o)), "serviceAccountName", "iddpm-head"), "accounts", "may change the RayCluster"),
    "token in the worker": (lambda o: drop(pod(workers(o)), "automountServiceAccountToken"), "accounts", "needs no token"),
    "account renamed": (lambda o: put(of(o, "ServiceAccount")["metadata"], "name", "iddpm-head-v2"), "references", "no pod is made"),
    "priority renamed": (lambda o: put(pod(head(o)), "priorityClassName", "high"), "references", "there is no PriorityClass high"),
    "another Ray": (lambda o: put(cluster(o), "rayVersion", "2.46.0"), "version", "should be 2.60.0"),
    "two images": (lambda o: put(container(workers(o)), "image", "other:1"), "version", "Ray refuses nodes of other versions"),
    "image without version": (lambda o: put(container(head(o)), "image", "iddpm-ray:latest"), "version", "may run other code"),
    "root": (lambda o: put(pod(workers(o))["securityContext"], "runAsNonRoot", False), "security", "refuses the pod"),
    "escalation": (lambda o: drop(container(workers(o))["securityContext"], "allowPrivilegeEscalation"), "security", "should be false"),
    "no seccomp": (lambda o: drop(pod(head(o))["securityContext"], "seccompProfile"), "security", "should be RuntimeDefault"),
    "a path of the machine": (
        lambda o: pod(workers(o))["volumes"].append({"name": "data", "hostPath": {"path": "/mnt"}}),
        "security",
        "reaches into the machine",
    ),
    "memory overcommitted": (
        lambda o: put(container(workers(o))["resources"]["requests"], "memory", "8Gi"),
        "memory",
        "first to be killed",
    ),
    "no shared memory": (lambda o: put(container(workers(o)), "volumeMounts", []), "memory", "as large as all memory"),
    "shared memory without limit": (lambda o: drop(pod(workers(o))["volumes"][0]["emptyDir"], "sizeLimit"), "memory", "killed for it"),
    "store larger than its place": (
        lambda o: put(workers(o)["rayStartParams"], "object-store-memory", "10737418240"),
        "memory",
        "falls back to the disk",
    ),
    "store left to Ray": (lambda o: drop(workers(o)["rayStartParams"], "object-store-memory"), "memory", "30 % of the memory"),
    "GPUs unequal": (lambda o: put(container(workers(o))["resources"]["requests"], "nvidia.com/gpu", "2"), "gpus", "differ"),
    "GPUs forgotten": (
        lambda o: put(container(workers(o)), "resources", {"requests": {"cpu": "7", "memory": "27Gi"}, "limits": {"memory": "27Gi"}}),
        "gpus",
        "paid for",
    ),
    "Ray told of more GPUs": (lambda o: put(workers(o)["rayStartParams"], "num-gpus", "8"), "gpus", "wait for ever"),
    "GPU type unknown at zero": (lambda o: drop(workers(o)["rayStartParams"], "resources"), "gpus", "waits for ever"),
    "another GPU": (
        lambda o: put(pod(workers(o))["nodeSelector"], "cloud.google.com/gke-accelerator", "nvidia-tesla-t4"),
        "machine",
        "Pending for ever",
    ),
    "too large for the machine": (
        lambda o: put(container(workers(o))["resources"]["requests"], "cpu", "8"),
        "machine",
        "8 of the 7 that a pod can have",
    ),
    "half a machine": (
        lambda o: put(pod(workers(o))["nodeSelector"], "node.kubernetes.io/instance-type", "g2-standard-24"),
        "machine",
        "paid for and idle",
    ),
    "spot not borne": (lambda o: put(pod(workers(o)), "tolerations", []), "machine", "do not bear the taint"),
    "on-demand by luck": (lambda o: drop(pod(workers(o, 1)), "affinity"), "machine", "may land on spot"),
    "no ceiling": (lambda o: o.remove(of(o, "ResourceQuota")), "ceiling", "nothing bounds what may be spent"),
    "ceiling below one pod": (
        lambda o: put(of(o, "ResourceQuota")["spec"]["hard"], "requests.nvidia.com/gpu", "0"),
        "ceiling",
        "none is ever made",
    ),
    "doors open": (lambda o: drop(cluster(o), "authOptions"), "security", "whoever reaches port 8265 runs what they like"),
    "policy of nobody": (
        lambda o: put(of(o, "NetworkPolicy")["spec"]["podSelector"], "matchLabels", {"app": "x"}),
        "network",
        "every door stays open",
    ),
    "policy keeps the operator out": (lambda o: of(o, "NetworkPolicy")["spec"]["ingress"].pop(1), "network", "never submitted"),
    "policy keeps the pods apart": (lambda o: of(o, "NetworkPolicy")["spec"]["ingress"].pop(0), "network", "find no connection"),
    "budget of nobody": (
        lambda o: put(of(o, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"], "iddpm/role", "master"),
        "budget",
        "chooses the head",
    ),
    "budget lets go": (lambda o: put(of(o, "PodDisruptionBudget")["spec"], "maxUnavailable", 1), "budget", "may be evicted"),
    "nothing scraped": (
        lambda o: put(of(o, "PodMonitoring")["spec"]["endpoints"][0], "port", "prometheus"),
        "monitoring",
        "never scraped",
    ),
    "open namespace": (
        lambda o: put(of(o, "Namespace")["metadata"]["labels"], "pod-security.kubernetes.io/enforce", "baseline"),
        "security",
        "is not restricted",
    ),
    "worker above the head": (
        lambda o: put([x for x in o if x["kind"] == "PriorityClass"][1], "value", 200000),
        "priorities",
        "push the driver",
    ),
    "secret in the open": (lambda o: set_env(workers(o), "WANDB_API_KEY", "abc"), "secrets", "in the open"),
    "misspelt field": (
        lambda o: put(workers(o), "maxReplica", workers(o)["maxReplicas"]),
        "schema",
        "no such field: maxReplica",
    ),
    "misspelt field deep in a pod": (lambda o: put(container(workers(o)), "volumeMount", []), "schema", "no such field: volumeMount"),
    "text for a number": (lambda o: put(workers(o), "minReplicas", "0"), "schema", "the API server refuses it"),
    "misspelt key of a policy": (lambda o: put(of(o, "NetworkPolicy")["spec"], "ingres", []), "schema", "no such field: ingres"),
    "unknown manager": (lambda o: put(cluster(o), "managedBy", "me"), "cel", "should be one of"),
    "name with a dot": (lambda o: put(of(o, "RayCluster")["metadata"], "name", "iddpm.1"), "operator", "no pod ever starts"),
    "name too long": (lambda o: put(of(o, "RayCluster")["metadata"], "name", "a" * 54), "operator", "at most 53"),
    "restarted pods": (lambda o: put(pod(workers(o)), "restartPolicy", "Always"), "operator", "autoscaler v2"),
    "labels for ray start": (lambda o: put(workers(o)["rayStartParams"], "labels", "a=b"), "operator", "belong in the field labels"),
    "token and an old Ray": (lambda o: put(cluster(o), "rayVersion", "2.40.0"), "operator", "2.52.0 or newer"),
    "resources given twice": (lambda o: put(workers(o), "resources", {"CPU": "7"}), "operator", "keep one"),
}

IN_THE_JOB: dict[str, tuple[Change, str, str]] = {
    "submitter pod": (lambda o: drop(run_of(o), "submissionMode"), "job", "ends a healthy run"),
    "mode that nobody knows": (lambda o: put(run_of(o), "submissionMode", "SidecarMod"), "job", "though nobody refuses it"),
    "no retry": (lambda o: put(run_of(o), "backoffLimit", 0), "job", "which could resume"),
    "waits for ever": (lambda o: drop(run_of(o), "preRunningDeadlineSeconds"), "job", "waits for ever"),
    "cluster stays": (
        lambda o: (drop(run_of(o), "shutdownAfterJobFinishes"), drop(run_of(o), "ttlSecondsAfterFinished")),
        "job",
        "until somebody remembers",
    ),
    "time to live without end": (lambda o: put(run_of(o), "shutdownAfterJobFinishes", False), "operator", "needs shutdownAfterJobFinishes"),
    "deadline of nothing": (lambda o: put(run_of(o), "activeDeadlineSeconds", 0), "operator", "at least 1"),
    "rules for deletion twice": (
        lambda o: put(run_of(o), "deletionStrategy", {"deletionRules": [{"policy": "DeleteSelf", "condition": {"jobStatus": "FAILED"}}]}),
        "operator",
        "exclude each other",
    ),
    "rule without condition": (
        lambda o: put(run_of(o), "deletionStrategy", {"deletionRules": [{"policy": "DeleteSelf", "condition": {}}]}),
        "cel",
        "needs jobStatus or jobDeploymentStatus",
    ),
    "no room for a replacement": (
        lambda o: put(run_of(o)["rayClusterSpec"]["workerGroupSpecs"][0], "maxReplicas", 4),
        "headroom",
        "the run wants 4 pods",
    ),
    "spec edited by hand": (lambda o: put(of(o, "ConfigMap")["data"], "spec.yaml", SPEC.replace("seed: 0", "seed: 1")), "spec", "render"),
    "spec that is refused": (
        lambda o: put(of(o, "ConfigMap")["data"], "spec.yaml", SPEC.replace("workers: 4", "workers: 0")),
        "spec",
        "is refused",
    ),
    "spec not mounted": (
        lambda o: drop(run_of(o)["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"], 1),
        "spec",
        "fails at once",
    ),
    "spec under another name": (lambda o: put(of(o, "ConfigMap")["metadata"], "name", "dogs-spec"), "references", "no ConfigMap cats-spec"),
    "no token": (lambda o: drop(run_of(o)["rayClusterSpec"], "authOptions"), "security", "whoever reaches port 8265"),
    "long name": (lambda o: put(of(o, "RayJob")["metadata"], "name", "a" * 48), "operator", "at most 47"),
}

SPEC = of(job(), "ConfigMap")["data"]["spec.yaml"]


def test_our_manifests_are_without_findings() -> None:
    verdict = lint(K8S)
    assert [str(one) for one in verdict.findings] == []
    looked = " ".join(verdict.looked)
    for name in (
        "base",
        "gke-spot-l4",
        "gke-a100",
        "dev-cpu",
        "spot-120s",
        "monitoring-promop",
        "cats.rayjob.yaml",
        "cats.raycluster.yaml",
    ):
        assert name in looked


def test_what_is_mutated_is_without_findings_before() -> None:
    assert judge(overlay(), where="") == judge(job(), where="") == []


@pytest.mark.parametrize("name", IN_THE_OVERLAY)
def test_mistake_in_the_overlay_is_found(name: str) -> None:
    _found(overlay(), *IN_THE_OVERLAY[name])


@pytest.mark.parametrize("name", IN_THE_JOB)
def test_mistake_in_the_job_is_found(name: str) -> None:
    _found(job(), *IN_THE_JOB[name])


def _found(objects: Objects, change: Change, rule: str, says: str) -> None:
    before = copy.deepcopy(objects)
    change(objects)
    assert objects != before
    findings = judge(objects, where="here")
    assert any(one.rule == rule and says in one.reason for one in findings), [str(one) for one in findings]


def test_a_strategic_merge_that_replaces_the_groups_is_found(tmp_path: Path) -> None:
    """kustomize does it silently; what is left of the group is found out."""
    shutil.copytree(K8S, tmp_path / "k8s")
    file = tmp_path / "k8s/overlays/gke-spot-l4/kustomization.yaml"
    groups = "{workerGroupSpecs: [{groupName: gpu-spot, maxReplicas: 9}]}"
    merge = f"{{apiVersion: ray.io/v1, kind: RayCluster, metadata: {{name: iddpm}}, spec: {groups}}}"
    wanted = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**wanted, "patches": [{"patch": merge}]}))
    found = [one for one in lint(tmp_path / "k8s").findings if "gke-spot-l4" in one.where]
    assert found


def test_a_kustomization_that_does_not_build_is_one_finding(tmp_path: Path) -> None:
    shutil.copytree(K8S / "base", tmp_path / "base")
    (tmp_path / "base/pdb.yaml").unlink()
    (found,) = lint(tmp_path).findings
    assert found.rule == "build"


def test_a_single_file_and_nothing_at_all(tmp_path: Path) -> None:
    text = (K8S / "base/raycluster.yaml").read_text()
    (tmp_path / "one.yaml").write_text(text.replace('"12"', '"30"'))
    findings = lint(tmp_path / "one.yaml").findings
    assert {one.rule for one in findings} == {"drain"}
    for path, says in ((tmp_path / "none", "is not there"), (tmp_path / "empty", "holds no manifests")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=says):
            lint(path)
