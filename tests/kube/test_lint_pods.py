"""Pods that would be refused, that would not start, or would land where they should not, are found."""

from typing import Any

import pytest
from kube.test_lint import Change, Objects, container, drop, head, overlay, pod, put, workers
from kube.test_lint import _found as found

from iddpm_ray.kube.lint import judge


def secure(o: Objects) -> Any:
    return container(workers(o))["securityContext"]


def pod_secure(o: Objects) -> Any:
    return pod(workers(o))["securityContext"]


def volume(kind: str, **content: Any) -> Change:
    return lambda o: pod(workers(o))["volumes"].append({"name": "x", kind: content})


SECURITY: dict[str, tuple[Change, str, str]] = {
    "capability": (lambda o: put(secure(o)["capabilities"], "add", ["SYS_PTRACE"]), "security", "SYS_PTRACE: only NET_BIND_SERVICE"),
    "port of the machine": (lambda o: put(container(head(o))["ports"][0], "hostPort", 6379), "security", "opens a port of the machine"),
    "proc unmasked": (lambda o: put(secure(o), "procMount", "Unmasked"), "security", "should be Default"),
    "unsafe sysctl": (
        lambda o: put(pod_secure(o), "sysctls", [{"name": "kernel.shmmax", "value": "1"}]),
        "security",
        "kernel.shmmax is not",
    ),
    "network volume": (volume("nfs", server="a", path="/"), "security", "is none of configMap, csi"),
    "volume of a pod's own machine": (volume("gcePersistentDisk", pdName="a"), "security", "is none of"),
    "SELinux": (lambda o: put(pod_secure(o), "seLinuxOptions", {"type": "spc_t"}), "security", "not a container's"),
    "SELinux user": (lambda o: put(secure(o), "seLinuxOptions", {"user": "root"}), "security", "a user or a role"),
    "AppArmor": (lambda o: put(secure(o), "appArmorProfile", {"type": "Unconfined"}), "security", "should be one of RuntimeDefault"),
    "AppArmor by annotation": (
        lambda o: put(
            workers(o)["template"]["metadata"],
            "annotations",
            {"container.apparmor.security.beta.kubernetes.io/ray-worker": "unconfined"},
        ),
        "security",
        "is unconfined",
    ),
    "process of the host": (lambda o: put(pod_secure(o), "windowsOptions", {"hostProcess": True}), "security", "is on"),
    "network of the host": (lambda o: put(pod(workers(o)), "hostNetwork", True), "security", "is on"),
    "processes of the host": (lambda o: put(pod(head(o)), "hostPID", True), "security", "is on"),
    "memory of the host": (lambda o: put(pod(head(o)), "hostIPC", True), "security", "is on"),
    "privileged": (lambda o: put(secure(o), "privileged", True), "security", "should not be set"),
    "root by number": (lambda o: put(pod_secure(o), "runAsUser", 0), "security", "should not be 0"),
    "unconfined in one container": (lambda o: put(secure(o), "seccompProfile", {"type": "Unconfined"}), "security", "RuntimeDefault"),
    "a probe of another host": (
        lambda o: put(container(head(o)), "livenessProbe", {"httpGet": {"host": "10.0.0.1", "port": 80}}),
        "security",
        "names a host",
    ),
    "a first container without locks": (
        lambda o: put(pod(workers(o)), "initContainers", [{"name": "i", "image": "busybox:1"}]),
        "security",
        "should drop ALL",
    ),
}

VALID: dict[str, Change] = {
    "binding to low ports": lambda o: put(secure(o)["capabilities"], "add", ["NET_BIND_SERVICE"]),
    "no port of the machine": lambda o: put(container(head(o))["ports"][0], "hostPort", 0),
    "proc as it is": lambda o: put(secure(o), "procMount", "Default"),
    "safe sysctl": lambda o: put(pod_secure(o), "sysctls", [{"name": "net.ipv4.tcp_keepalive_time", "value": "60"}]),
    "bucket as a folder": volume("csi", driver="gcsfuse.csi.storage.gke.io"),
    "a claim made with the pod": volume("ephemeral", volumeClaimTemplate={"spec": {"accessModes": ["ReadWriteOnce"], "resources": {}}}),
    "names projected": volume("projected", sources=[]),
    "SELinux for containers": lambda o: put(pod_secure(o), "seLinuxOptions", {"type": "container_t", "level": "s0"}),
    "AppArmor of the runtime": lambda o: put(secure(o), "appArmorProfile", {"type": "RuntimeDefault"}),
    "profile in the container": lambda o: (
        drop(pod_secure(o), "seccompProfile"),
        put(secure(o), "seccompProfile", {"type": "RuntimeDefault"}),
    ),
    "user in the container": lambda o: (drop(pod_secure(o), "runAsNonRoot"), put(secure(o), "runAsNonRoot", True)),
}

BROKEN = {**SECURITY}


@pytest.mark.parametrize("name", BROKEN)
def test_mistake_in_a_pod_is_found(name: str) -> None:
    found(overlay(), *BROKEN[name])


@pytest.mark.parametrize("name", VALID)
def test_pods_that_are_as_good_are_without_findings(name: str) -> None:
    objects = overlay()
    VALID[name](objects)
    assert [str(one) for one in judge(objects, where="here")] == []
