"""House rules about rights: who may use the job API, what is open to the outside, and what a pod may do to its machine.

The last is Kubernetes' pod security standard `restricted` (kubernetes.io/docs/concepts/security/pod-security-standards), restated whole:
the namespace enforces it on pods, and so on every one that KubeRay would make, long after the manifest was accepted.
"""

from collections.abc import Iterator
from typing import Any

from iddpm_ray.kube.clusters import Cluster, Group, containers
from iddpm_ray.kube.objects import Data, Flaw, environment, get, items, mapping

_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")
_PATHS = ("_PATH", "_FILE", "GOOGLE_APPLICATION_CREDENTIALS")  # where a secret lies, not what it is
_AUTH = "RAY_AUTH_MODE"
_INSIDE = (None, "", "ClusterIP")
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
_SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.ip_unprivileged_port_start"),
    *("net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_syncookies"),
}
_SELINUX = (None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_PROFILES = ("RuntimeDefault", "Localhost")
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_REFUSED = "the namespace refuses the pod, and none ever starts"


def check_security(cluster: Cluster) -> Iterator[Flaw]:
    """What a cluster lets others do."""
    yield from _token(cluster)
    yield from _outside(cluster)
    for group in cluster.groups:
        yield from _secrets(group)
        yield from _pod(group)
        for path, one in containers(cluster, group):
            for name, reason in (*_container(one), *_inherited(one, mapping(group.pod, "securityContext"))):
                yield Flaw(f"{path}.{name}", "security", f"{reason}: {_REFUSED}")


def _token(cluster: Cluster) -> Iterator[Flaw]:
    """With network policies too: they keep people out by address, and whoever gets into one pod is past them."""
    if get(cluster.spec, "authOptions", "mode") != "token":
        reason = "is not token: whoever reaches port 8265 runs what they like with the run's rights"
        yield Flaw(f"{cluster.path}.authOptions.mode", "security", reason)
    for group in cluster.groups:
        given = environment(group.container).get(_AUTH, "token")
        if given != "token":
            reason = f"is {given}, beside what KubeRay sets for authOptions: nodes with a token and nodes without do not meet"
            yield Flaw(f"{group.container_path}.env {_AUTH}", "security", reason)


def _outside(cluster: Cluster) -> Iterator[Flaw]:
    head = cluster.head
    for path, kind in (
        (f"{head.path}.serviceType", get(head.data, "serviceType")),
        (f"{head.path}.headService.spec.type", get(head.data, "headService", "spec", "type")),
    ):
        if kind not in _INSIDE:
            reason = f"is {kind}: job API, Ray client and state of the cluster are offered outside of it; kubectl port-forward does without"
            yield Flaw(path, "security", reason)
    if items(head.data, "headService", "spec", "externalIPs"):
        yield Flaw(f"{head.path}.headService.spec.externalIPs", "security", "offer the job API outside of the cluster")
    if get(head.data, "enableIngress") is True:
        reason = "is true: the job API is offered to whoever reaches the ingress; kubectl port-forward does without"
        yield Flaw(f"{head.path}.enableIngress", "security", reason)


def check_service(service: Data) -> Iterator[Flaw]:
    """What is wrong with a Service that leads to pods of a run."""
    kind = get(service, "spec", "type")
    if kind not in _INSIDE:
        yield Flaw("spec.type", "security", f"is {kind}: it offers the pods of a run outside of the cluster")
    if items(service, "spec", "externalIPs"):
        yield Flaw("spec.externalIPs", "security", "offer the pods of a run outside of the cluster")


def _secrets(group: Group) -> Iterator[Flaw]:
    for name, value in environment(group.container).items():
        held = any(word in name.upper() for word in _SECRET_WORDS) and not name.upper().endswith(_PATHS)
        if isinstance(value, str) and value and held:
            reason = "holds a secret in the open: whoever may read manifests has it; use valueFrom.secretKeyRef or workload identity"
            yield Flaw(f"{group.container_path}.env {name}", "secrets", reason)


def _pod(group: Group) -> Iterator[Flaw]:
    """What the standard says of a pod as a whole."""
    at, own = group.pod_path, mapping(group.pod, "securityContext")
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if get(group.pod, name):
            yield Flaw(f"{at}.{name}", "security", f"is on: {_REFUSED}")
    for index, volume in enumerate(items(group.pod, "volumes")):
        for kind in sorted(set(volume) - {"name"} - _VOLUMES):
            what = "reaches into the machine" if kind == "hostPath" else f"is none of {', '.join(sorted(_VOLUMES))}"
            yield Flaw(f"{at}.volumes[{index}].{kind}", "security", f"{what}: {_REFUSED}")
    for index, one in enumerate(items(own, "sysctls")):
        if get(one, "name") not in _SYSCTLS:
            yield Flaw(f"{at}.securityContext.sysctls[{index}]", "security", f"{get(one, 'name')} is not among the safe ones: {_REFUSED}")
    for name, reason in _kernel(own):
        yield Flaw(f"{at}.{name}", "security", f"{reason}: {_REFUSED}")
    annotations = mapping(group.data, "template", "metadata", "annotations")
    for key in (key for key in annotations if str(key).startswith(_APPARMOR)):
        value = str(annotations[key])
        if value != "runtime/default" and not value.startswith("localhost/"):
            yield Flaw(f"{group.path}.template.metadata.annotations {key}", "security", f"is {value}: {_REFUSED}")


def _kernel(own: Data) -> Iterator[tuple[str, str]]:
    """Profiles of a security context, of a pod or of a container."""
    options = mapping(own, "seLinuxOptions")
    if options.get("type") not in _SELINUX or options.get("user") or options.get("role"):
        yield "securityContext.seLinuxOptions", "has a type that is not a container's, a user or a role"
    if get(own, "appArmorProfile", "type") not in (None, *_PROFILES):
        yield "securityContext.appArmorProfile.type", f"should be one of {', '.join(_PROFILES)}"
    if get(own, "windowsOptions", "hostProcess"):
        yield "securityContext.windowsOptions.hostProcess", "is on"
    if own.get("runAsUser") == 0:
        yield "securityContext.runAsUser", "should not be 0"


def _container(one: Data) -> Iterator[tuple[str, str]]:
    own = mapping(one, "securityContext")
    yield from _kernel(own)
    if own.get("allowPrivilegeEscalation") is not False:
        yield "securityContext.allowPrivilegeEscalation", "should be false"
    if "ALL" not in items(own, "capabilities", "drop"):
        yield "securityContext.capabilities", "should drop ALL"
    added = [str(name) for name in items(own, "capabilities", "add") if name != "NET_BIND_SERVICE"]
    if added:
        yield "securityContext.capabilities.add", f"{', '.join(added)}: only NET_BIND_SERVICE may be added"
    if own.get("privileged"):
        yield "securityContext.privileged", "should not be set"
    if own.get("procMount") not in (None, "Default"):
        yield "securityContext.procMount", "should be Default"
    for index, port in enumerate(items(one, "ports")):
        if get(port, "hostPort"):
            yield f"ports[{index}].hostPort", f"{get(port, 'hostPort')} opens a port of the machine"
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if get(one, name, "httpGet", "host") or get(one, name, "tcpSocket", "host"):
            yield name, "names a host of its own"


def _inherited(one: Data, pod: Data) -> Iterator[tuple[str, str]]:
    """What a container may leave to its pod."""
    own = mapping(one, "securityContext")

    def given(*path: str) -> Any:
        found = get(own, *path)
        return get(pod, *path) if found is None else found

    if given("runAsNonRoot") is not True:
        yield "securityContext.runAsNonRoot", "should be true"
    if given("seccompProfile", "type") not in _PROFILES:
        yield "securityContext.seccompProfile", "should be RuntimeDefault"
