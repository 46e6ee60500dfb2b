"""House rules about a RayJob and the spec that it runs: what is applied is what `render` makes of that spec."""

import re
from collections.abc import Iterator
from typing import Any

from iddpm_ray.errors import UserError
from iddpm_ray.kube import render
from iddpm_ray.kube.clusters import GPU, Cluster, clusters
from iddpm_ray.kube.compare import Difference, differences
from iddpm_ray.kube.names import DIGEST_LABEL
from iddpm_ray.kube.objects import Data, Flaw, get, items, mapping, namespace, near, quantity
from iddpm_ray.kube.shape import shape, with_headroom
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text

Objects = list[dict[str, Any]]

_SHOWN = 5  # differences that are named; the others are counted
_BY_OTHERS = {"suspend", "managedBy"}  # fields of a RayJob that Kueue sets


def check_spec(objects: Objects, job: Data) -> Iterator[tuple[Data, Flaw]]:
    """What is wrong between a RayJob and the spec that it runs, and in which object."""
    found = re.search(r"jobs/train\.py (/\S+)", str(get(job, "spec", "entrypoint") or ""))
    rendered = get(job, "metadata", "labels", DIGEST_LABEL) is not None
    place = found[1] if found else f"{render.SPEC_FOLDER}/{render.SPEC_FILE}" if rendered else None
    if place is None:
        return
    folder, _, file = place.rpartition("/")
    for cluster in clusters(job):
        volume = _volume(cluster, folder)
        name, key = get(volume, "configMap", "name"), _key(volume, file)
        if name is None or key is None:
            what = f"no ConfigMap mounted at {folder}" if name is None else f"no {file} in what it mounts at {folder}"
            yield job, Flaw("spec.entrypoint", "spec", f"reads {place}, and the head has {what}: the job fails at once")
            continue
        maps = [one for one in near(objects, namespace(job), "ConfigMap") if get(one, "metadata", "name") == name]
        if rendered and not maps:
            reason = f"there is no ConfigMap {name} among these objects, and `render` makes it with the job: the head never starts"
            yield job, Flaw(f"{cluster.head.pod_path}.volumes configMap", "references", reason)
        for one in maps:
            yield from _agrees(job, one, key, cluster)


def _volume(cluster: Cluster, folder: str) -> Data | None:
    mounts = [mount for mount in items(cluster.head.container, "volumeMounts") if get(mount, "mountPath") == folder]
    volumes = {get(one, "name"): one for one in items(cluster.head.pod, "volumes")}
    return volumes.get(get(mounts[0], "name")) if mounts else None


def _key(volume: Data | None, file: str) -> str | None:
    """The key of the ConfigMap that stands in its folder under a file's name."""
    chosen = get(volume, "configMap", "items")
    return file if chosen is None else next((get(one, "key") for one in chosen if get(one, "path") == file), None)


def _agrees(job: Data, spec_map: Data, file: str, cluster: Cluster) -> Iterator[tuple[Data, Flaw]]:
    text = get(spec_map, "data", file)
    if text is None:
        reason = f"reads {file}, which the ConfigMap {get(spec_map, 'metadata', 'name')} does not hold"
        yield job, Flaw("spec.entrypoint", "spec", reason)
        return
    try:
        spec = load_text(text, source=file)
        cut = shape(spec)
        made = render.job(spec)
    except UserError as error:
        yield job, Flaw("spec.rayClusterSpec", "spec", f"the spec it runs is refused: {error}")
        return
    if get(job, "metadata", "labels", DIGEST_LABEL) != spec.digest()[:16]:
        yield job, Flaw(f"metadata.labels {DIGEST_LABEL}", "spec", "is not the digest of the spec it runs: render the job again")
    for flaw in (*_room(spec, cut.pods, cut.workers_a_pod, cluster), *_hours(spec, job)):
        yield job, flaw
    if get(job, "metadata", "labels", DIGEST_LABEL) is not None:
        yield from _as_rendered(spec, made, spec_map, job, file)


def _as_rendered(spec: JobSpec, made: Objects, spec_map: Data, job: Data, file: str) -> Iterator[tuple[Data, Flaw]]:
    """Field by field; whoever adds labels, variables or volumes may, whoever changes what the spec decides may not."""
    of_map = [*differences({"metadata": made[0]["metadata"]}, spec_map)]
    own, patient = (one.model_dump(mode="json") for one in (spec, render.for_pods(spec)))
    of_map += [Difference(f"data.{file} {one.path}", one.want, one.have) for one in differences(patient, own)]
    of_job = [*differences(made[1], job)]
    extra = set(mapping(job, "spec")) - set(made[1]["spec"]) - _BY_OTHERS
    of_job += [Difference(f"spec.{name}", None, get(job, "spec", name)) for name in sorted(extra)]
    wanted = {one["groupName"] for one in made[1]["spec"]["rayClusterSpec"]["workerGroupSpecs"]}
    for index, group in enumerate(items(job, "spec", "rayClusterSpec", "workerGroupSpecs")):
        if get(group, "groupName") not in wanted:
            of_job.append(Difference(f"spec.rayClusterSpec.workerGroupSpecs[{index}]", None, get(group, "groupName")))
    for one, found in ((spec_map, of_map), (job, of_job)):
        for number, difference in enumerate(found[:_SHOWN], start=1):
            more = f" (and {len(found) - _SHOWN} more differences)" if number == _SHOWN < len(found) else ""
            yield one, Flaw(difference.path, "spec", f"{_words(difference)}: render the job again, or change its spec{more}")


def _words(difference: Difference) -> str:
    have, want = _short(difference.have), _short(difference.want)
    if difference.want is None:
        return f"is {have}, and nothing of the kind is made of the spec it runs"
    return f"is {'not there' if difference.have is None else have}, and the spec it runs makes it {want}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hours(spec: JobSpec, job: Data) -> Iterator[Flaw]:
    deadline, hours = get(job, "spec", "activeDeadlineSeconds"), spec.cluster.max_hours
    if deadline is not None and deadline < 3600 * (hours or 0):
        reason = f"{deadline} s end the cluster before cluster.max_hours, {hours:g}, end the run: nothing is saved then"
        yield Flaw("spec.activeDeadlineSeconds", "job", reason)


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
