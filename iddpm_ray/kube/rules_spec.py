"""House rules about a RayJob and the spec that it runs."""

import re
from collections.abc import Iterator
from typing import Any

from iddpm_ray.errors import UserError
from iddpm_ray.kube.clusters import GPU, Cluster, clusters
from iddpm_ray.kube.names import DIGEST_LABEL
from iddpm_ray.kube.objects import Data, Flaw, get, items, namespace, near, quantity
from iddpm_ray.kube.shape import shape, with_headroom
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text

Objects = list[dict[str, Any]]


def check_spec(objects: Objects, job: Data) -> Iterator[Flaw]:
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
        for one in near(objects, namespace(job), "ConfigMap"):
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
