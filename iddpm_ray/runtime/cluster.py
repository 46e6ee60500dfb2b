"""Joins the job's cluster or starts an embedded one, and counts what it has against what the run asks for."""

import logging
import math
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.state import state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from iddpm_ray import signals, storage
from iddpm_ray.errors import SpecError, UserError
from iddpm_ray.kube.render import COLD_START_S
from iddpm_ray.spec.spec import JobSpec

# Ray reads these in the driver; they are Ray's knobs, set here so that a person need not know them.
RAY_SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon a death or the end is noticed
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # otherwise every print comes twice
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in a spec mean the same in driver and workers
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "5",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_maximum_startup_concurrency": "16",  # an embedded Ray warns of a few times as many processes; its default is the CPUs
}

AUTOSCALED = "RAY_enable_autoscaler_v2"  # KubeRay tells a head so, and its jobs, that machines are made on demand

_FIXED_START_S = 60
_ELASTIC_START_S = 20
_ANSWER_S = 2.0


@dataclass(frozen=True)
class Capacity:
    """What the live nodes of a cluster that are not being drained have: logical CPUs and GPUs, in all and of each node."""

    cpus: float
    gpus: float
    nodes: int
    each: tuple[tuple[float, float], ...] = ()

    def seats(self, *, cpus: float, gpus: float) -> float:
        """How many workers that need so much on one node can sit; without knowledge of nodes, any number."""
        if not self.each:
            return math.inf
        return sum(min(have_cpus // cpus, have_gpus // gpus if gpus else math.inf) for have_cpus, have_gpus in self.each)


@contextmanager
def connected(spec: JobSpec) -> Iterator[Capacity]:
    """A Ray to train on: the job's own cluster when there is one, else an embedded one that ends with the block."""
    if spec.cluster.object_store_gib is not None and not embedded(spec):
        raise SpecError("cluster.object_store_gib has no effect on a cluster that is joined", fix="leave it or RAY_ADDRESS out")
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(group_patience(spec))
    with joined(spec.cluster.address, object_store_gib=spec.cluster.object_store_gib):
        yield capacity(spec.cluster.accelerator_type)


@contextmanager
def joined(address: str | None, *, object_store_gib: float | None) -> Iterator[Capacity]:
    """A Ray to run on: that of the address or of the environment, else an embedded one that ends with the block.

    Args:
        object_store_gib: of an embedded Ray; None for Ray's own choice.
    """
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    address = address_of(address)
    if address is None:
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # nobody drains the one node of an embedded Ray
    if ray.is_initialized():
        yield capacity()
        return
    if address is None:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        store = None if object_store_gib is None else int(object_store_gib * 2**30)
        _start(lambda: _embed(store))
    else:
        _start(lambda: _join(address))
    try:
        yield capacity()
    finally:
        with signals.kept("Ray has ended"):
            ray.shutdown()


def _start(ray_init: Callable[[], None]) -> None:
    """Starts or joins Ray; at a signal it leaves no Ray behind.

    Raises:
        KeyboardInterrupt: a signal came before or meanwhile.
    """
    if signals.seen():
        raise KeyboardInterrupt
    with signals.kept("Ray has started") as came:
        try:
            ray_init()
        finally:
            if came():
                ray.shutdown()


def _embed(object_store_bytes: int | None) -> None:
    try:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=object_store_bytes,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray gives its own processes half a minute
        ray.shutdown()
        fix = "start again when it has less to do; logs lie below the newest session of /tmp/ray (or RAY_TMPDIR)"
        raise UserError(f"Ray did not start on this machine ({storage.reason(error)})", fix=fix) from error


def _join(address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # a wrong name, nobody there, another version, no token: each of another kind
        said = next(iter(storage.reason(error).splitlines()), "")
        fix = "cluster.address, or RAY_ADDRESS of the environment, names a running head, of this version of Ray and with its token"
        raise SpecError(f"no Ray could be joined at {address} ({said})", fix=fix) from error


def patience(spec: JobSpec) -> int:
    """Seconds to wait for room: as the spec says, else as long as machines of this cluster may take to come."""
    if spec.cluster.start_timeout_s is not None:
        return spec.cluster.start_timeout_s
    return _FIXED_START_S if embedded(spec) or os.environ.get(AUTOSCALED) not in ("1", "true") else COLD_START_S


def group_patience(spec: JobSpec) -> int:
    """Seconds that a group which had room may take to get its seats: where fewer workers would do, a lost machine is not waited for."""
    seconds = patience(spec)
    return seconds if isinstance(spec.cluster.workers, int) else min(seconds, _ELASTIC_START_S)


def embedded(spec: JobSpec) -> bool:
    """Whether the run brings its own Ray, which is one node for good."""
    return address_of(spec.cluster.address) is None


def address_of(address: str | None) -> str | None:
    """Where the cluster is: as given, or as the environment says; None if there is none."""
    return address or os.environ.get("RAY_ADDRESS") or None


def capacity(accelerator_type: str | None = None) -> Capacity:
    """What there is now.

    Args:
        accelerator_type: GPUs of other types, or of none known, do not count.
    """
    gone = leaving_nodes()
    usable = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in gone]
    each = tuple((node.get("CPU", 0.0), _gpus(node, accelerator_type)) for node in usable)
    return Capacity(sum(cpus for cpus, _ in each), sum(gpus for _, gpus in each), len(each), each)


def _gpus(resources: Mapping[str, float], accelerator_type: str | None) -> float:
    wanted = accelerator_type is None or f"accelerator_type:{accelerator_type}" in resources
    return resources.get("GPU", 0.0) if wanted else 0.0


def leaving_nodes() -> set[str]:
    """Nodes that are being drained."""
    return set(state.get_draining_nodes())


def gone_nodes(nodes: Iterable[str]) -> set[str]:
    """Those of the nodes that are dead, being drained, or do not answer: Ray takes half a minute to call a silent machine dead."""
    wanted = set(nodes)
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"] and (node["NodeID"] not in wanted or _answers(node))}
    return (wanted - alive) | (wanted & leaving_nodes())


def _answers(node: Mapping[str, Any]) -> bool:
    """Whether the node's raylet takes a connection."""
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=_ANSWER_S).close()
    except OSError:
        return False
    return True


def check_shared(url: str, *, field: str = "run.output_dir") -> None:
    """Refuses a local directory that not every node of the cluster sees.

    Raises:
        SpecError: names the nodes that do not.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if not storage.is_local(url) or len(nodes) < 2:
        return
    token = storage.join(url, f".seen-by-all-{secrets.token_hex(8)}")
    storage.write_whole(token, b"x")
    try:
        blind = [node["NodeManagerHostname"] for node in nodes if not _sees(token, node_id=node["NodeID"])]
    finally:
        storage.delete(token)
    if blind:
        raise SpecError(
            f"{field} is a local path that {len(blind)} of {len(nodes)} nodes do not share: {', '.join(sorted(blind)[:4])}",
            value=storage.shown(url),
            fix="use gs://, s3:// or a path on a shared disk",
        )


def _sees(url: str, *, node_id: str) -> bool:
    there = ray.remote(storage.exists).options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False))
    return ray.get(there.remote(url), timeout=60)


def here(spec: JobSpec) -> str:
    """Whether an embedded Ray on this machine could hold the run, in words; empty where it could, or where a cluster is to be joined."""
    if not embedded(spec):
        return ""
    import torch  # seconds that a driver does without

    try:
        check_fits(spec, have=Capacity(os.cpu_count() or 1, torch.cuda.device_count(), 1))
    except SpecError as error:
        return f"not on this machine by itself: {error}"
    return ""


def check_fits(spec: JobSpec, *, have: Capacity) -> int:
    """How many workers an attempt may ask for now: all that the spec allows and the cluster can seat beside the data tasks.

    Raises:
        SpecError: if not even the smallest number fits; names what is asked and what there is.
    """
    cluster, data = spec.cluster, spec.data
    low, high = cluster.worker_range()
    for workers in range(high, low - 1, -1):
        cpus = workers * cluster.cpus_per_worker + max(data.tasks, workers) * data.cpus_per_task
        seats = have.seats(cpus=cluster.cpus_per_worker, gpus=cluster.gpus_per_worker)
        if cpus <= have.cpus and workers * cluster.gpus_per_worker <= have.gpus and workers <= seats:
            return workers
    tasks = max(data.tasks, low)
    cpus, gpus = low * cluster.cpus_per_worker + tasks * data.cpus_per_task, low * cluster.gpus_per_worker
    kind = "" if cluster.accelerator_type is None else f"{cluster.accelerator_type} "
    asked = f"{low} workers x cluster.cpus_per_worker {cluster.cpus_per_worker:g}"
    asked += f" + {tasks} data tasks x data.cpus_per_task {data.cpus_per_task:g}"
    raise SpecError(
        f"the run asks for {cpus:g} CPUs ({asked}) and {gpus:g} {kind}GPUs, "
        f"the cluster has {have.cpus:g} CPUs and {have.gpus:g} {kind}GPUs",
        fix="lower cluster.workers, cluster.cpus_per_worker, data.tasks or data.cpus_per_task, or use a larger cluster",
    )
