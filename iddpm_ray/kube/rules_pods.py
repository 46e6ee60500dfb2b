"""House rules about single pods: the head, the versions, memory, GPUs and mounts."""

import json
import re
from collections.abc import Iterator

from iddpm_ray.kube.clusters import ACCELERATOR, GPU, Cluster, Group
from iddpm_ray.kube.machines import GIB
from iddpm_ray.kube.objects import Data, Flaw, asked, get, items, mapping, quantity
from iddpm_ray.kube.pods import RAY_VERSION

HEAD_GIB = 4
SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"


_PART = r"([a-z0-9]+([._-]+[a-z0-9]+)*|[A-Z]{4,})"  # the latter stands for what is still to be put there
_IMAGE = re.compile(  # registry with its port, path, tag, digest
    rf"([A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"
)


def check_pods(cluster: Cluster) -> Iterator[Flaw]:
    """What is wrong with the pods of a cluster, as KubeRay would make them."""
    yield from _head(cluster)
    yield from _versions(cluster)
    for group in cluster.groups:
        yield from _memory(group)
        yield from _mounts(group)
        yield from _life(group)
    for group in cluster.workers:
        yield from _gpus(group, google=cluster.google)


def _head(cluster: Cluster) -> Iterator[Flaw]:
    head = cluster.head
    if get(head.data, "rayStartParams", "num-cpus") != "0":
        reason = "should be '0': otherwise ranks and tasks land on the head, and one that needs too much takes the driver along"
        yield Flaw(f"{head.path}.rayStartParams.num-cpus", "head", reason)
    if get(head.data, "rayStartParams", "dashboard-host") != "0.0.0.0":
        reason = "should be 0.0.0.0: the operator cannot reach the job API, and no job ever starts"
        yield Flaw(f"{head.path}.rayStartParams.dashboard-host", "head", reason)
    if get(head.data, "template", "metadata", "annotations", SAFE) != "false":
        path = f"{head.path}.template.metadata.annotations {SAFE}"
        yield Flaw(path, "head", "is not 'false': a cluster that tidies up its machines evicts the driver")
    memory = quantity(get(head.container, "resources", "limits", "memory"))
    if memory is not None and memory < HEAD_GIB * GIB:
        yield Flaw(f"{head.container_path}.resources.limits.memory", "head", f"below {HEAD_GIB}Gi heads of long runs are killed for memory")
    if asked(head.container, GPU):
        reason = "is asked for by the head, where no rank ever runs: it is paid for as long as the head lives"
        yield Flaw(f"{head.container_path}.resources {GPU}", "head", reason)
    if get(head.pod, "serviceAccountName") in {get(group.pod, "serviceAccountName") for group in cluster.workers}:
        reason = "is the workers' too: whatever runs in a worker may change the RayCluster"
        yield Flaw(f"{head.pod_path}.serviceAccountName", "accounts", reason)
    for group in cluster.workers:
        if get(group.pod, "automountServiceAccountToken") is not False:
            reason = "is not false: a worker needs no token of the API server, and whatever runs in it could use one"
            yield Flaw(f"{group.pod_path}.automountServiceAccountToken", "accounts", reason)


def _versions(cluster: Cluster) -> Iterator[Flaw]:
    if get(cluster.spec, "rayVersion") != RAY_VERSION:
        reason = f"should be {RAY_VERSION}, which the image has: by it KubeRay decides what this Ray can do"
        yield Flaw(f"{cluster.path}.rayVersion", "version", reason)
    images = {str(get(group.container, "image")) for group in cluster.groups}
    if len(images) > 1:
        reason = (
            f"differs between groups ({', '.join(sorted(images))}): Ray refuses nodes of other versions, and ranks would run other code"
        )
        yield Flaw(f"{cluster.head.container_path}.image", "version", reason)
    for group in cluster.groups:
        image = str(get(group.container, "image") or "")
        tag = image.rpartition("/")[2].partition(":")[2]
        if "@sha256:" not in image and tag in ("", "latest"):
            reason = f"{image} names no version: a pod that comes later may run other code in the same run"
            yield Flaw(f"{group.container_path}.image", "version", reason)
        elif image and not _IMAGE.fullmatch(image):
            reason = f"{image!r} names no image: small letters, then a tag or @sha256: and 64 digits; no pod ever starts"
            yield Flaw(f"{group.container_path}.image", "version", reason)
    other = get(cluster.spec, "autoscalerOptions", "image")
    if other is not None and images != {other}:
        reason = f"is {other}, the head's is another: an autoscaler of another Ray does not understand its head"
        yield Flaw(f"{cluster.path}.autoscalerOptions.image", "version", reason)
    if get(cluster.spec, "upgradeStrategy", "type") == "Recreate":
        yield Flaw(f"{cluster.path}.upgradeStrategy.type", "version", "is Recreate: an edit of the manifest kills a run without notice")


def _memory(group: Group) -> Iterator[Flaw]:
    resources = mapping(group.container, "resources")
    most = quantity(get(resources, "limits", "memory"))
    path = f"{group.container_path}.resources"
    if most is None or asked(group.container, "memory") != most:
        reason = "request and limit should be given and equal: a pod that gets more than it asked for is the first to be killed"
        yield Flaw(f"{path}.memory", "memory", reason)
    if asked(group.container, "cpu") is None:
        yield Flaw(f"{path}.requests.cpu", "memory", "is not given: Ray then takes all CPUs of the machine for its own")
    store = quantity(get(group.data, "rayStartParams", "object-store-memory"))
    if store is None:
        reason = "is not given: Ray takes 30 % of the memory, which the ranks then lack"
        yield Flaw(f"{group.path}.rayStartParams.object-store-memory", "memory", reason)
    mount = next((one for one in items(group.container, "volumeMounts") if get(one, "mountPath") == "/dev/shm"), None)
    volume = next((one for one in items(group.pod, "volumes") if mount is not None and get(one, "name") == get(mount, "name")), None)
    if get(volume, "emptyDir", "medium") != "Memory":
        reason = "is no memory volume of ours: KubeRay adds one as large as all memory, which a full object store then uses up"
        yield Flaw(f"{group.pod_path}.volumes /dev/shm", "memory", reason)
        return
    size = quantity(get(volume, "emptyDir", "sizeLimit"))
    where = f"{group.pod_path}.volumes /dev/shm sizeLimit"
    if size is None:
        yield Flaw(where, "memory", "is not given: /dev/shm may take all memory of the pod, and the pod is killed for it")
        return
    if store is not None and store >= size:
        yield Flaw(where, "memory", f"{size / GIB:g} GiB do not hold the object store of {store / GIB:g} GiB: Ray falls back to the disk")
    if most is not None and size > 0.6 * most:
        yield Flaw(where, "memory", f"{size / GIB:g} of the pod's {most / GIB:g} GiB: what is left is too little for the ranks")


def _mounts(group: Group) -> Iterator[Flaw]:
    volumes = {get(one, "name") for one in items(group.pod, "volumes")}
    for index, mount in enumerate(items(group.container, "volumeMounts")):
        if get(mount, "name") not in volumes:
            path = f"{group.container_path}.volumeMounts[{index}]"
            yield Flaw(path, "references", f"volume {get(mount, 'name')} is not there: the API server refuses every pod")


def _life(group: Group) -> Iterator[Flaw]:
    """What keeps Ray's process from living in its pod."""
    if get(group.pod, "activeDeadlineSeconds") is not None:
        reason = "ends the pod after that time, whatever runs in it: cluster.max_hours ends a run, and it saves first"
        yield Flaw(f"{group.pod_path}.activeDeadlineSeconds", "life", reason)
    if get(group.pod, "dnsPolicy") == "Default":
        reason = "is Default: the pod does not know the cluster's names, and no worker finds its head (ClusterFirst, or nothing, would do)"
        yield Flaw(f"{group.pod_path}.dnsPolicy", "life", reason)
    places = {str(get(one, "mountPath")).rstrip("/") for one in items(group.container, "volumeMounts") if not get(one, "readOnly")}
    if get(group.container, "securityContext", "readOnlyRootFilesystem") is True and "/tmp" not in places:
        reason = "is true, and nothing is mounted at /tmp: Ray has its sockets and logs there, and never starts"
        yield Flaw(f"{group.container_path}.securityContext.readOnlyRootFilesystem", "life", reason)
    if "/dev/shm" not in places and any(get(one, "mountPath") == "/dev/shm" for one in items(group.container, "volumeMounts")):
        yield Flaw(f"{group.container_path}.volumeMounts /dev/shm", "life", "is readOnly: the object store cannot be made there")
    if get(group.container, "imagePullPolicy") == "Never":
        reason = "is Never: a machine that has just come has no image, and the pod never starts there"
        yield Flaw(f"{group.container_path}.imagePullPolicy", "life", reason)
    disk = quantity(get(group.container, "resources", "limits", "ephemeral-storage"))
    if disk is not None and disk < GIB:
        reason = f"{disk / 2**20:g} MiB: the pod is evicted as soon as Ray has written logs of that size"
        yield Flaw(f"{group.container_path}.resources.limits.ephemeral-storage", "life", reason)


def _gpus(group: Group, *, google: bool) -> Iterator[Flaw]:
    resources = mapping(group.container, "resources")
    most = quantity(get(resources, "limits", GPU))
    path = f"{group.container_path}.resources {GPU}"
    if asked(group.container, GPU) != most:
        yield Flaw(path, "gpus", "request and limit differ: the API server refuses the pod")
    count, machine = most or 0, group.machine
    start = mapping(group.data, "rayStartParams")
    if "num-gpus" in start and quantity(start["num-gpus"]) != count:
        reason = f"tells Ray of {start['num-gpus']} GPUs, the pod has {count:g}: ranks wait for ever, or share one unseen"
        yield Flaw(f"{group.path}.rayStartParams.num-gpus", "gpus", reason)
    if not count:
        if ACCELERATOR in group.selector:
            yield Flaw(path, "gpus", "is not asked for, though the machine has GPUs that are paid for")
        return
    if google and ACCELERATOR not in group.selector:
        yield Flaw(
            f"{group.pod_path}.nodeSelector {ACCELERATOR}", "gpus", "is not given: any GPU may come, and memory is found out by running out"
        )
    known = _custom(start)
    if not any(name.startswith("accelerator_type:") for name in known):
        reason = (
            "does not name accelerator_type: a spec with cluster.accelerator_type waits for ever, since no machine of zero seems to have it"
        )
        yield Flaw(f"{group.path}.rayStartParams.resources", "gpus", reason)
    elif machine is not None and machine.gpu is not None and f"accelerator_type:{machine.gpu.name}" not in known:
        reason = f"names another GPU than {machine.name} has: {machine.gpu.name}"
        yield Flaw(f"{group.path}.rayStartParams.resources", "gpus", reason)


def _custom(start: Data) -> Data:
    """The custom resources of a group: JSON inside a JSON string, as KubeRay wants it."""
    try:
        known = json.loads(json.loads(str(start.get("resources"))))
    except (ValueError, TypeError):
        return {}
    return known if isinstance(known, dict) else {}
