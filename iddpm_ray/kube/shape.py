"""How a run is cut into pods: workers, GPUs, CPUs and memory of each, and the times of a reclaim. Pure; what cannot be is refused."""

import math
from dataclasses import dataclass

from iddpm_ray.errors import SpecError
from iddpm_ray.kube.machines import GIB, MACHINES, Machine
from iddpm_ray.spec.problems import Problem, refuse
from iddpm_ray.spec.spec import JobSpec

LARGEST_STORE_GIB = 16
# Tasks, NCCL and DataLoader-like buffers share /dev/shm with the object store.
_SHM_A_WORKER_GIB = 1
_STORE_SHARE = 0.2


@dataclass(frozen=True)
class Shape:
    """The pods of a run.

    Attributes:
        pods: for the most workers that the run may have.
        most_pods: that the autoscaler may have at once; a replacement starts while the old pod still lives.
        workers_a_pod: that sit on one.
        cpus, memory_gib, gpus: of a pod, all whole.
        store_gib, shm_gib: object store, and the memory file system that holds it; both are part of the memory.
        grace_s: between SIGTERM and SIGKILL.
        drain_s: what the ranks are told they have.
    """

    machine: Machine
    pods: int
    most_pods: int
    workers_a_pod: int
    cpus: int
    memory_gib: int
    gpus: int
    store_gib: int
    shm_gib: int
    grace_s: int
    drain_s: int


def shape(spec: JobSpec) -> Shape:
    """Cuts the run into pods of whole machines.

    Raises:
        SpecError: names every field that does not fit the machine, and what would.
    """
    machine = MACHINES[spec.kube.machine]
    workers_a_pod = _workers_a_pod(spec, machine)
    refuse(_problems(spec, machine, workers_a_pod))
    pods = math.ceil(spec.cluster.worker_range()[1] / workers_a_pod)
    window = spec.kube.reclaim_window_s
    store = min(max(1, int(machine.pod_gib * _STORE_SHARE)), LARGEST_STORE_GIB)
    return Shape(
        machine=machine,
        pods=pods,
        most_pods=with_headroom(pods),
        workers_a_pod=workers_a_pod,
        cpus=machine.pod_cpus,
        memory_gib=machine.pod_gib,
        gpus=machine.gpus,
        store_gib=store,
        shm_gib=store + _SHM_A_WORKER_GIB * workers_a_pod,
        grace_s=window,
        drain_s=drain_seconds(window),
    )


def drain_seconds(window_s: int) -> int:
    """What ranks may be told of a window: its last seconds belong to the end of the processes. 15 gives 12, 105 gives 95."""
    return window_s - max(3, window_s // 10)


def with_headroom(pods: int) -> int:
    """A quarter more, so that a pod that is being taken away does not keep its replacement out."""
    return pods + math.ceil(pods / 4)


def _workers_a_pod(spec: JobSpec, machine: Machine) -> int:
    if machine.gpus:
        return machine.gpus
    each = spec.cluster.cpus_per_worker + spec.data.cpus_per_task
    return max(1, min(int(machine.pod_cpus // each), spec.cluster.worker_range()[1]))


def _problems(spec: JobSpec, machine: Machine, workers_a_pod: int) -> list[Problem]:
    cluster, kube = spec.cluster, spec.kube
    low, high = cluster.worker_range()
    problems: list[Problem] = []
    if machine.gpus and cluster.gpus_per_worker != 1:
        fix = f"should be 1: {machine.name} has {machine.gpus} GPUs that would be paid for and not used; or a kube.machine without GPUs"
        problems.append(Problem("cluster.gpus_per_worker", cluster.gpus_per_worker, fix))
    if not machine.gpus and cluster.gpus_per_worker:
        problems.append(Problem("kube.machine", machine.name, f"has no GPU, and cluster.gpus_per_worker is {cluster.gpus_per_worker:g}"))
    if machine.gpus and high % machine.gpus:
        fitting = [str(count) for count in (high // machine.gpus * machine.gpus, math.ceil(high / machine.gpus) * machine.gpus) if count]
        fix = (
            f"does not fill machines of {machine.gpus} GPUs (kube.machine {machine.name}): {' or '.join(fitting)}, or a machine with fewer"
        )
        problems.append(Problem("cluster.workers", high if low == high else [low, high], fix))
    if machine.gpu and cluster.accelerator_type not in (None, machine.gpu.name):
        fix = f"is not what kube.machine {machine.name} has: {machine.gpu.name}, or null; Ray would wait for ever"
        problems.append(Problem("cluster.accelerator_type", cluster.accelerator_type, fix))
    if cluster.address is not None:
        problems.append(Problem("cluster.address", cluster.address, "leads away from the pods that are made here: leave it out"))
    if cluster.object_store_gib is not None:
        fix = "has no effect: the pods' store is a share of their machine's memory. Leave it out"
        problems.append(Problem("cluster.object_store_gib", cluster.object_store_gib, fix))
    problems += _too_little(spec, machine, workers_a_pod)
    if kube.capacity == "on-demand" and kube.reclaim_window_s != 15:
        problems.append(Problem("kube.reclaim_window_s", kube.reclaim_window_s, "has no effect on machines that are not reclaimed"))
    return problems


def _too_little(spec: JobSpec, machine: Machine, workers_a_pod: int) -> list[Problem]:
    """CPUs of a machine against its workers and their share of the data tasks, as the driver counts them."""
    cluster, data = spec.cluster, spec.data
    high = cluster.worker_range()[1]
    pods = math.ceil(high / workers_a_pod)
    tasks = math.ceil(max(data.tasks, high) / pods)
    need = workers_a_pod * cluster.cpus_per_worker + tasks * data.cpus_per_task
    if need <= machine.pod_cpus:
        return []
    fits = [other.name for other in MACHINES.values() if other.gpu == machine.gpu and other.gpus == machine.gpus and other.pod_cpus >= need]
    fix = (
        f"gives a pod {machine.pod_cpus} CPUs, and {workers_a_pod} workers x cluster.cpus_per_worker {cluster.cpus_per_worker:g} + "
        f"{tasks} data tasks x data.cpus_per_task {data.cpus_per_task:g} need {need:g}: "
        + (f"{fits[0]}, or lower those" if fits else "lower those")
    )
    return [Problem("kube.machine", machine.name, fix)]


def image_of(spec: JobSpec) -> str:
    """The image that the spec names.

    Raises:
        SpecError: it names none.
    """
    if spec.kube.image is None:
        fix = "build k8s/images/Dockerfile, push it where the cluster can pull it, and name it: kube.image=REGISTRY/iddpm-ray:TAG"
        raise SpecError("kube.image is needed to run on Kubernetes", fix=fix)
    return spec.kube.image


def gib(count: int) -> int:
    """Bytes."""
    return count * GIB
