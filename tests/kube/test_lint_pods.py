"""Pods that would be refused, that would not start, or would land where they should not, are found."""

from typing import Any

import pytest
from kube.test_lint import DRAIN, POLL, Change, Objects, cluster, container, drop, head, of, overlay, pod, put, set_env, workers
from kube.test_lint import _found as found

from iddpm_ray.kube.lint import judge


def secure(o: Objects) -> Any:
    return container(workers(o))["securityContext"]


def pod_secure(o: Objects) -> Any:
    return pod(workers(o))["securityContext"]


def volume(kind: str, **content: Any) -> Change:
    return lambda o: pod(workers(o))["volumes"].append({"name": "x", kind: content})


def image(name: str) -> Change:
    return lambda o: [put(container(one), "image", name) for one in (head(o), workers(o), workers(o, 1))]


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
    "a head that ends at once": lambda o: set_env(head(o), DRAIN, "0"),
    "a head with more time": lambda o: (put(pod(head(o)), "terminationGracePeriodSeconds", 120), set_env(head(o), DRAIN, None)),
    "poll twice a second": lambda o: set_env(head(o), POLL, "0.5"),
    "variables of Ray's own": lambda o: [
        set_env(head(o), name, "1") for name in ("RAY_AUTH_TOKEN_PATH", "RAY_DASHBOARD_MAX_ACTORS_TO_CACHE", "RAY_JOB_STOP_SIGNAL")
    ],
    **{
        f"image {name}": image(name)
        for name in (
            "reg:5000/x/y_z:V1.2-a",
            "REG.example.com/x:1",
            f"x@sha256:{'0' * 64}",
            f"reg/x:1@sha256:{'a' * 64}",
            "europe-west4-docker.pkg.dev/a-b/c/d__e:0.1.0",
        )
    },
    "only to read, with room to write": lambda o: (
        put(secure(o), "readOnlyRootFilesystem", True),
        pod(workers(o))["volumes"].append({"name": "tmp", "emptyDir": {}}),
        container(workers(o))["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"}),
    ),
    "a standard of a version": lambda o: put(
        of(o, "Namespace")["metadata"]["labels"], "pod-security.kubernetes.io/enforce-version", "v1.33"
    ),
    "words as they are": lambda o: (
        put(pod(head(o)), "restartPolicy", "Never"),
        put(pod(head(o)), "dnsPolicy", "ClusterFirst"),
        put(container(head(o)), "imagePullPolicy", "Always"),
        put(container(head(o))["ports"][0], "protocol", "TCP"),
        put(of(o, "Namespace")["metadata"]["labels"], "pod-security.kubernetes.io/audit", "baseline"),
    ),
    "labels with a prefix": lambda o: labels(o).update({"a.example.com/b_c.d": "E-f_1", "empty": ""}),
    "user in the container": lambda o: (drop(pod_secure(o), "runAsNonRoot"), put(secure(o), "runAsNonRoot", True)),
}


def labels(o: Objects) -> Any:
    return workers(o)["template"]["metadata"]["labels"]


TIMES: dict[str, tuple[Change, str, str]] = {
    "head drains for Ray's default": (lambda o: set_env(head(o), DRAIN, None), "drain", "30 s (Ray's default) of 30 s"),
    "head drains beyond its end": (lambda o: set_env(head(o), DRAIN, "60"), "drain", "60 s of 30 s"),
    "head that drains soon": (lambda o: set_env(head(o), DRAIN, "soon"), "drain", "soon is no number"),
    "head without grace": (lambda o: put(pod(head(o)), "terminationGracePeriodSeconds", 0), "grace", "killed before Ray has ended"),
    "poll of nothing": (lambda o: set_env(head(o), POLL, "0"), "poll", "every 0 s"),
    "poll below nothing": (lambda o: set_env(head(o), POLL, "-1"), "poll", "a number above 0"),
}

NAMES: dict[str, tuple[Change, str, str]] = {
    "misspelt variable": (
        lambda o: container(workers(o))["env"].append({"name": DRAIN.removesuffix("_S"), "value": "12"}),
        "names",
        f"is read by nobody ({DRAIN}?)",
    ),
    "misspelt annotation": (
        lambda o: put(of(o, "ServiceAccount")["metadata"], "annotations", {"iam.gke.io/gcp-service-acount": "x@y"}),
        "names",
        "(iam.gke.io/gcp-service-account?)",
    ),
    "variable twice": (lambda o: container(workers(o))["env"].insert(0, {"name": DRAIN, "value": "30"}), "names", "stands twice"),
    "volume twice": (lambda o: pod(workers(o))["volumes"].append({"name": "shm", "emptyDir": {}}), "names", "no pod is made"),
    "path twice": (
        lambda o: container(head(o))["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"}),
        "names",
        "stands twice",
    ),
    "value of a label": (lambda o: put(of(o, "RayCluster")["metadata"], "labels", {"a": "b/c d"}), "names", "'b/c d' should be"),
    "long value of a label": (lambda o: put(of(o, "RayCluster")["metadata"], "labels", {"a": "b" * 64}), "names", "at most 63"),
    "key of a pod's label": (lambda o: put(labels(o), "a b", "c"), "names", "'a b' is no key"),
    "prefix of a pod's label": (lambda o: put(labels(o), "A/b", "c"), "names", "'A/b' is no key"),
    "key of an annotation": (lambda o: put(of(o, "Namespace")["metadata"], "annotations", {"a b": "c"}), "names", "'a b' is no key"),
    "operator of a toleration": (lambda o: put(pod(workers(o))["tolerations"][0], "operator", "Equals"), "names", "none of Exists, Equal"),
    "effect of a toleration": (lambda o: put(pod(workers(o))["tolerations"][1], "effect", "Noschedule"), "names", "none of NoSchedule"),
    "when an image is fetched": (lambda o: put(container(head(o)), "imagePullPolicy", "IfAbsent"), "names", "none of Always"),
    "when the autoscaler's image is fetched": (
        lambda o: put(cluster(o)["autoscalerOptions"], "imagePullPolicy", "IfAbsent"),
        "names",
        "refuses the head",
    ),
    "protocol of a port": (lambda o: put(container(head(o))["ports"][0], "protocol", "tcp"), "names", "none of TCP"),
    "level of a warning": (
        lambda o: put(of(o, "Namespace")["metadata"]["labels"], "pod-security.kubernetes.io/warn", "strict"),
        "security",
        "strict is none of",
    ),
    "name of a group": (lambda o: put(workers(o), "groupName", "GPU spot"), "groups", "refuses every pod"),
    "name of the head's group": (lambda o: put(workers(o), "groupName", "headgroup"), "groups", "is the head's"),
}

LIFE: dict[str, tuple[Change, str, str]] = {
    "pod that ends": (lambda o: put(pod(workers(o)), "activeDeadlineSeconds", 3600), "life", "whatever runs in it"),
    "names of the machine": (lambda o: put(pod(workers(o)), "dnsPolicy", "Default"), "life", "no worker finds its head"),
    "nowhere to write": (lambda o: put(secure(o), "readOnlyRootFilesystem", True), "life", "never starts"),
    "shared memory to read": (lambda o: put(container(workers(o))["volumeMounts"][0], "readOnly", True), "life", "the object store cannot"),
    "image never fetched": (lambda o: put(container(workers(o)), "imagePullPolicy", "Never"), "life", "has just come"),
    "no room for logs": (
        lambda o: put(container(workers(o))["resources"]["limits"], "ephemeral-storage", "1Mi"),
        "life",
        "evicted as soon",
    ),
    "image of capitals": (image("reg/X:1"), "version", "names no image"),
    "image with a blank": (image("reg/x :1"), "version", "names no image"),
    "digest cut short": (image("reg/x@sha256:abc"), "version", "names no image"),
    "another autoscaler": (
        lambda o: put(cluster(o)["autoscalerOptions"], "image", "rayproject/ray:2.40.0"),
        "version",
        "an autoscaler of another Ray",
    ),
    "given back at once": (lambda o: put(cluster(o)["autoscalerOptions"], "idleTimeoutSeconds", 0), "idle", "between two attempts"),
    "capacity of another name": (lambda o: put(workers(o)["labels"], "iddpm/capacity", "on-demand"), "groups", "says on-demand"),
    "an alert that waits in no unit": (
        lambda o: put(of(o, "Rules")["spec"]["groups"][0]["rules"][0], "for", "10x"),
        "schema",
        "does not match",
    ),
    "a standard of no version": (
        lambda o: put(of(o, "Namespace")["metadata"]["labels"], "pod-security.kubernetes.io/enforce-version", "v1.99x"),
        "security",
        "is no version",
    ),
    "the same object twice": (lambda o: o.append(of(o, "RayCluster")), "names", "stands twice among these"),
}

BROKEN = {**SECURITY, **TIMES, **NAMES, **LIFE}


@pytest.mark.parametrize("name", BROKEN)
def test_mistake_in_a_pod_is_found(name: str) -> None:
    found(overlay(), *BROKEN[name])


@pytest.mark.parametrize("name", VALID)
def test_pods_that_are_as_good_are_without_findings(name: str) -> None:
    objects = overlay()
    VALID[name](objects)
    assert [str(one) for one in judge(objects, where="here")] == []
