"""House rules about objects together: what one names must be there, who may reach whom, what the ceiling is."""

import re
from collections.abc import Iterator
from typing import Any

from iddpm_ray.errors import UserError
from iddpm_ray.kube.clusters import GPU, Cluster, Group, clusters
from iddpm_ray.kube.names import DIGEST_LABEL
from iddpm_ray.kube.objects import Data, Flaw, get, items, mapping, of_kind, quantity, selects
from iddpm_ray.kube.shape import shape, with_headroom
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text

Objects = list[dict[str, Any]]

JOB_API = 8265
SCRAPED = ("metrics", "as-metrics", "dash-metrics")


def check_set(objects: Objects) -> Iterator[tuple[Data, Flaw]]:
    """What is wrong with objects that are applied together, and in which of them."""
    for one in objects:
        for cluster in clusters(one):
            for flaw in (*_references(objects, cluster), *_doors(objects, one, cluster), *_ceiling(objects, cluster)):
                yield one, flaw
        if one["kind"] == "RayJob":
            for flaw in _spec(objects, one):
                yield one, flaw
    pods = [group for one in objects for cluster in clusters(one) for group in cluster.groups]
    heads = [group for group in pods if group.head]
    for one in of_kind(objects, "NetworkPolicy"):
        for flaw in _policy(one, pods):
            yield one, flaw
    for one in of_kind(objects, "PodDisruptionBudget"):
        for flaw in _budget(one, heads):
            yield one, flaw
    for one in of_kind(objects, "PodMonitoring", "PodMonitor"):
        for flaw in _monitor(one, pods):
            yield one, flaw
    for one in of_kind(objects, "Namespace"):
        if get(one, "metadata", "labels", "pod-security.kubernetes.io/enforce") != "restricted":
            path = "metadata.labels pod-security.kubernetes.io/enforce"
            yield one, Flaw(path, "security", "is not restricted: whoever may make a pod there may own the machine it lands on")
    yield from _priorities(objects, pods)


def _references(objects: Objects, cluster: Cluster) -> Iterator[Flaw]:
    """Names inside a RayCluster, which kustomize does not follow when it renames things."""
    for group in cluster.groups:
        for key, kind in (("serviceAccountName", "ServiceAccount"), ("priorityClassName", "PriorityClass")):
            name, path = get(group.pod, key), f"{group.pod_path}.{key}"
            if name is None:
                yield Flaw(path, "references", "is not given" + _without(key))
            elif name not in (known := _names(objects, kind)) and known:
                yield Flaw(
                    path, "references", f"there is no {kind} {name} among these objects ({', '.join(sorted(known))}): no pod is made"
                )
        for index, volume in enumerate(items(group.pod, "volumes")):
            name = get(volume, "configMap", "name")
            if name is not None and (known := _names(objects, "ConfigMap")) and name not in known:
                path = f"{group.pod_path}.volumes[{index}].configMap.name"
                yield Flaw(
                    path,
                    "references",
                    f"there is no ConfigMap {name} among these objects ({', '.join(sorted(known))}): the pod never starts",
                )


def _without(key: str) -> str:
    if key == "serviceAccountName":
        return ": the pod runs as the namespace's default account, which the bucket does not know"
    return ": the scheduler takes the head and a batch job for equally dear"


def _names(objects: Objects, kind: str) -> set[str]:
    return {str(get(one, "metadata", "name")) for one in of_kind(objects, kind)}


def _doors(objects: Objects, one: Data, cluster: Cluster) -> Iterator[Flaw]:
    if get(cluster.spec, "authOptions", "mode") == "token":
        return
    guarded = [
        group
        for group in cluster.groups
        if any(selects(mapping(p, "spec", "podSelector"), group.labels) for p in of_kind(objects, "NetworkPolicy"))
    ]
    if len(guarded) < len(cluster.groups):
        reason = (
            "is not token, and no network policy here closes the pods: whoever reaches port 8265 runs what they like with the run's rights"
        )
        yield Flaw(f"{cluster.path}.authOptions.mode", "security", reason)


def _ceiling(objects: Objects, cluster: Cluster) -> Iterator[Flaw]:
    """Only where the namespace is made here: elsewhere its quota is not to be seen."""
    gpus = {group.path: quantity(get(group.container, "resources", "limits", GPU)) or 0.0 for group in cluster.workers}
    if not any(gpus.values()) or not _names(objects, "Namespace"):
        return
    limits = [
        limit
        for quota in of_kind(objects, "ResourceQuota")
        if (limit := quantity(get(quota, "spec", "hard", f"requests.{GPU}"))) is not None
    ]
    if not limits:
        yield Flaw(
            f"{cluster.path}.workerGroupSpecs",
            "ceiling",
            f"no ResourceQuota limits requests.{GPU}: nothing bounds what may be spent at once",
        )
        return
    for group in cluster.workers:
        if gpus[group.path] > min(limits):
            yield Flaw(group.path, "ceiling", f"one pod has {gpus[group.path]:g} GPUs, the quota is {min(limits):g}: none is ever made")


def _policy(policy: Data, pods: list[Group]) -> Iterator[Flaw]:
    selector = mapping(policy, "spec", "podSelector")
    chosen = [group for group in pods if selects(selector, group.labels)]
    if pods and not chosen:
        yield Flaw("spec.podSelector", "network", "chooses none of the pods here: every door stays open")
        return
    if "Ingress" not in items(policy, "spec", "policyTypes") and get(policy, "spec", "policyTypes") is not None:
        return
    rules = items(policy, "spec", "ingress")
    for group in chosen:
        if not any(not items(rule, "ports") and any(_admits(peer, group.labels) for peer in items(rule, "from")) for rule in rules):
            reason = f"does not let the pods of {group.name} reach each other on every port: Ray's nodes and the ranks find no connection"
            yield Flaw("spec.ingress", "network", reason)
            break
    if chosen and not any(_admits_operator(rule) for rule in rules):
        yield Flaw("spec.ingress", "network", f"does not let kuberay-operator reach port {JOB_API}: the job is never submitted")


def _admits(peer: Data, labels: Data) -> bool:
    return get(peer, "namespaceSelector") is None and get(peer, "podSelector") is not None and selects(mapping(peer, "podSelector"), labels)


def _admits_operator(rule: Data) -> bool:
    if items(rule, "ports") and JOB_API not in [get(port, "port") for port in items(rule, "ports")]:
        return False
    operator = {"app.kubernetes.io/name": "kuberay-operator"}
    return not items(rule, "from") or any(
        get(peer, "namespaceSelector") is not None and selects(mapping(peer, "podSelector"), operator) for peer in items(rule, "from")
    )


def _budget(budget: Data, heads: list[Group]) -> Iterator[Flaw]:
    chosen = [group for group in heads if selects(mapping(budget, "spec", "selector"), group.labels)]
    if heads and not chosen:
        yield Flaw("spec.selector", "budget", "chooses no head: a drained machine takes the driver along at once")
    if get(budget, "spec", "maxUnavailable") not in (0, "0", "0%"):
        yield Flaw("spec.maxUnavailable", "budget", "is not 0: there is one head, and it may be evicted")


def _monitor(monitor: Data, pods: list[Group]) -> Iterator[Flaw]:
    selector = mapping(monitor, "spec", "selector")
    chosen = [group for group in pods if selects(selector, group.labels)]
    if pods and not chosen:
        yield Flaw("spec.selector", "monitoring", "chooses none of the pods here: there will be no numbers, and no alert says so")
    ends = items(monitor, "spec", "endpoints") or items(monitor, "spec", "podMetricsEndpoints")
    for group in chosen:
        ports = {get(port, "name") for port in items(group.container, "ports")}
        for index, end in enumerate(ends):
            if isinstance(get(end, "port"), str) and get(end, "port") not in ports:
                yield Flaw(
                    f"spec endpoint {index}", "monitoring", f"{group.name} has no port named {get(end, 'port')}: it is never scraped"
                )


def _priorities(objects: Objects, pods: list[Group]) -> Iterator[tuple[Data, Flaw]]:
    classes = {str(get(one, "metadata", "name")): one for one in of_kind(objects, "PriorityClass")}
    heads = [classes[name] for group in pods if group.head and (name := str(get(group.pod, "priorityClassName"))) in classes]
    workers = {name for group in pods if not group.head and (name := str(get(group.pod, "priorityClassName"))) in classes}
    for name in sorted(workers):
        if heads and get(classes[name], "value") >= min(get(one, "value") for one in heads):
            yield classes[name], Flaw("value", "priorities", "is not below the head's: a worker may push the driver off its machine")
        if get(classes[name], "preemptionPolicy") != "Never":
            yield classes[name], Flaw("preemptionPolicy", "priorities", "is not Never: a worker that comes back pushes other runs off")


def _spec(objects: Objects, job: Data) -> Iterator[Flaw]:
    """The spec that travels with a RayJob, against the pods it will run in."""
    found = re.search(r"jobs/train\.py (/\S+)", str(get(job, "spec", "entrypoint") or ""))
    if found is None:
        return
    folder, _, file = found[1].rpartition("/")
    for cluster in clusters(job):
        mounts = [mount for mount in items(cluster.head.container, "volumeMounts") if get(mount, "mountPath") == folder]
        volumes = {get(one, "name"): get(one, "configMap", "name") for one in items(cluster.head.pod, "volumes")}
        name = volumes.get(get(mounts[0], "name")) if mounts else None
        if name is None:
            yield Flaw(
                "spec.entrypoint", "spec", f"reads {found[1]}, and the head has no ConfigMap mounted at {folder}: the job fails at once"
            )
            continue
        for one in of_kind(objects, "ConfigMap"):
            if get(one, "metadata", "name") == name:
                yield from _agrees(job, one, file, cluster)


def _agrees(job: Data, spec_map: Data, file: str, cluster: Cluster) -> Iterator[Flaw]:
    text = get(spec_map, "data", file)
    if text is None:
        yield Flaw("spec.entrypoint", "spec", f"reads {file}, which the ConfigMap {get(spec_map, 'metadata', 'name')} does not hold")
        return
    try:
        spec = load_text(text, source=file)
        cut = shape(spec)
    except UserError as error:
        yield Flaw("spec.rayClusterSpec", "spec", f"the spec it runs is refused: {error}")
        return
    if get(job, "metadata", "labels", DIGEST_LABEL) != spec.digest()[:16]:
        yield Flaw(f"metadata.labels {DIGEST_LABEL}", "spec", "is not the digest of the spec it runs: render the job again")
    yield from _room(spec, cut.pods, cut.workers_a_pod, cluster)


def _room(spec: JobSpec, pods: int, workers_a_pod: int, cluster: Cluster) -> Iterator[Flaw]:
    for group in cluster.workers:
        most, gpus = get(group.data, "maxReplicas"), quantity(get(group.container, "resources", "limits", GPU)) or 0.0
        path = f"{group.path}.maxReplicas"
        if most is not None and most < with_headroom(pods):
            reason = (
                f"{most}: the run wants {pods} pods, and the replacement of one that is being taken away needs room: {with_headroom(pods)}"
            )
            yield Flaw(path, "headroom", reason)
        if spec.cluster.gpus_per_worker * workers_a_pod > gpus:
            path = f"{group.container_path}.resources {GPU}"
            yield Flaw(path, "gpus", f"{gpus:g}: the spec puts {workers_a_pod} workers of {spec.cluster.gpus_per_worker:g} GPUs on a pod")
