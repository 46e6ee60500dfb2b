"""House rules about machines: which ones pods may land on, and whether they fit."""

from collections.abc import Iterator

from iddpm_ray.kube.clusters import ACCELERATOR, GPU, MACHINE, PROVISIONING, SPOT, Cluster, Group, containers
from iddpm_ray.kube.machines import GIB, Machine
from iddpm_ray.kube.objects import Data, Flaw, asked, get, items, mapping, quantity
from iddpm_ray.kube.spelling import NODE_LABELS, meant

_PENDING = "the pod stays Pending for ever"


def check_place(cluster: Cluster) -> Iterator[Flaw]:
    """What keeps the pods of a cluster off machines, or lets them onto the wrong ones."""
    if cluster.head.spot or (cluster.google and not cluster.head.never_spot):
        reason = f"the head may land on a spot machine, and the driver is lost with it: require {SPOT} DoesNotExist, in every term"
        yield Flaw(f"{cluster.head.pod_path}.affinity", "head", reason)
    for group in cluster.groups:
        yield from _taints(group, google=cluster.google)
        yield from _labels(group)
        yield from _limits(cluster, group)
        yield from _machine(cluster, group)
    for group in cluster.workers:
        if not group.spot and cluster.google and not group.never_spot:
            reason = f"on-demand in name: without {SPOT} DoesNotExist in every term it may land on spot, with nobody expecting a reclaim"
            yield Flaw(f"{group.pod_path}.affinity", "machine", reason)


def _taints(group: Group, *, google: bool) -> Iterator[Flaw]:
    path = f"{group.pod_path}.tolerations"
    if group.spot and not group.head and not _bears(group, SPOT, "true"):
        yield Flaw(path, "machine", f"do not bear the taint {SPOT}=true:NoSchedule of spot pools: {_PENDING}")
    if google and asked(group.container, GPU) and not _bears(group, GPU, "present"):
        reason = f"do not bear the taint {GPU}=present:NoSchedule of GPU machines: where nobody adds that for it, {_PENDING}"
        yield Flaw(path, "machine", reason)


def _bears(group: Group, key: str, value: str) -> bool:
    def bears(one: Data) -> bool:
        if get(one, "effect") not in (None, "", "NoSchedule"):
            return False
        if get(one, "operator") == "Exists":
            return get(one, "key") in (None, "", key)
        return get(one, "key") == key and (get(one, "value") or "") == value

    return any(bears(one) for one in items(group.pod, "tolerations"))


def _labels(group: Group) -> Iterator[Flaw]:
    keys = [(f"{group.pod_path}.nodeSelector {key}", str(key)) for key in group.selector]
    keys += [(f"{group.pod_path}.affinity", str(get(one, "key"))) for term in group.terms for one in term]
    for path, key in keys:
        right = meant(key, NODE_LABELS)
        if right is not None:
            yield Flaw(path, "machine", f"{key} is a label of no machine ({right}?): {_PENDING}, or lands anywhere")
    for key, values in ((SPOT, ("true",)), (PROVISIONING, ("spot", "standard"))):
        if group.selector.get(key, values[0]) not in values:
            reason = f"{group.selector[key]} is on no machine, it is {' or '.join(values)} or not there: {_PENDING}"
            yield Flaw(f"{group.pod_path}.nodeSelector {key}", "machine", reason)


def _limits(cluster: Cluster, group: Group) -> Iterator[Flaw]:
    for path, one in containers(cluster, group):
        limits = mapping(one, "resources", "limits")
        for name, given in mapping(one, "resources", "requests").items():
            least, most = quantity(given), quantity(limits.get(name))
            if least is not None and most is not None and least > most:
                reason = f"{given} is more than the limit of {limits[name]}: the API server refuses every pod"
                yield Flaw(f"{path}.resources.requests.{name}", "machine", reason)


def _machine(cluster: Cluster, group: Group) -> Iterator[Flaw]:
    machine, named = group.machine, group.selector.get(MACHINE)
    if named is not None and machine is None:
        yield Flaw(
            f"{group.pod_path}.nodeSelector {MACHINE}", "machine", f"{named} is no machine type known here, so its size is not checked"
        )
    if machine is not None:
        yield from _room(cluster, group, machine)
        yield from _gpus(group, machine)


def _room(cluster: Cluster, group: Group, machine: Machine) -> Iterator[Flaw]:
    """Of all containers of the pod, the autoscaler among them."""
    path = f"{group.container_path}.resources"
    together = [one for at, one in containers(cluster, group) if ".initContainers[" not in at]
    cpus, memory = (sum(asked(one, name) or 0.0 for one in together) for name in ("cpu", "memory"))
    if cpus > machine.pod_cpus:
        reason = f"{cpus:g} of the {machine.pod_cpus} that a pod can have on {machine.name}: {_PENDING}"
        yield Flaw(f"{path}.requests.cpu", "machine", reason)
    if memory > machine.pod_gib * GIB:
        yield Flaw(f"{path}.requests.memory", "machine", f"{memory / GIB:g} GiB of {machine.pod_gib} on {machine.name}: {_PENDING}")


def _gpus(group: Group, machine: Machine) -> Iterator[Flaw]:
    path, gpus = f"{group.container_path}.resources {GPU}", asked(group.container, GPU) or 0.0
    if gpus > machine.gpus:
        yield Flaw(path, "machine", f"{gpus:g} of the {machine.gpus} of {machine.name}: {_PENDING}")
    elif 0 < gpus < machine.gpus:
        reason = f"{gpus:g} of the {machine.gpus} GPUs of {machine.name}: the others are paid for and idle"
        yield Flaw(path, "machine", reason)
    label = None if machine.gpu is None else machine.gpu.label
    if group.selector.get(ACCELERATOR, label) != label:
        reason = f"{group.selector[ACCELERATOR]}, and {machine.name} has {label or 'no GPU'}: {_PENDING}"
        yield Flaw(f"{group.pod_path}.nodeSelector {ACCELERATOR}", "machine", reason)
