"""Everything that would end a run early or make it slow, tried on the very cluster before it starts: one table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from iddpm_ray import storage
from iddpm_ray.errors import SpecError, UserError
from iddpm_ray.kube.shape import drain_seconds
from iddpm_ray.plan import Plan, make_plan
from iddpm_ray.runtime import cluster, look
from iddpm_ray.runtime.growth import bundle
from iddpm_ray.runtime.seat import REDUCED_BYTES, Seat
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.directory import Opening, inspect_run
from iddpm_ray.train.sources import decoding_of

Verdict = Literal["ok", "warning", "FAILED"]

ANSWER_S = 180
NEWS_S = 1.2  # from the notice until every rank knows
SHM_SPARE, DISK_SPARE = 256 * 2**20, 5 * 2**30
UPLOAD_BYTES = 64 * 2**20
PICTURES = 64
PACE_SAMPLES = 4


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class _Stand:
    """The places of the ranks, reserved; `place` also has the room of a decode task beside each."""

    seats: list[Any]
    place: PlacementGroupSchedulingStrategy


def preflight(spec: JobSpec, *, show: Callable[[str], None]) -> list[Check]:
    """Every check, in the order of what depends on what.

    Raises:
        UserError: there is no cluster, or never room for the workers.
    """
    with cluster.connected(spec) as have:
        checks = [_room(spec, have)]
        with _stand(spec, show=show) as stand:
            seats = stand.seats
            nodes = _nodes()
            checks += machines(_everywhere(look.look, nodes), embedded=cluster.embedded(spec))
            checks += [_devices(spec, seats), _link(seats)]
            url = storage.join(storage.absolute(spec.run.output_dir), spec.run.name)  # tasks begin in other directories
            used = _everywhere(look.use_storage, nodes, url)
            checks.append(_storage(url, used))
            opening, data = _data_set(spec)
            checks.append(data)
            if opening is not None:
                checks += _of_the_run(spec, opening, stand, writable=checks[-2].verdict == "ok")
        return checks


def report(spec: JobSpec, *, show: Callable[[str], None]) -> int:
    """Makes every check and shows the table; exit code by the worst.

    Raises:
        UserError: there is no cluster, or never room for the workers.
    """
    checks = preflight(spec, show=show)
    show(table(checks))
    return worst(checks)


def table(checks: Sequence[Check]) -> str:
    """The checks for a person."""
    width = max(len(check.name) for check in checks)
    return "\n".join(f"{check.name:<{width}}  {check.verdict:<7}  {check.text}" for check in checks)


def worst(checks: Sequence[Check]) -> int:
    """Exit code: 1 if a check failed; a warning lets the run begin."""
    return int(any(check.verdict == "FAILED" for check in checks))


def _of_the_run(spec: JobSpec, opening: Opening, stand: _Stand, *, writable: bool) -> Iterator[Check]:
    seats = stand.seats
    plan = make_plan(spec, opening.manifest, begins=opening.describe())
    num_classes = (spec.model.num_classes or len(opening.manifest.classes)) if spec.model.class_cond else None
    step_s: float | None = None
    try:
        samples = min(PACE_SAMPLES, plan.samples_a_worker)
        paces = _answers([seat.pace.remote(num_classes=num_classes, samples=samples) for seat in seats])
        step_s = max(paces) * plan.samples_a_worker
        text = f"{1e3 * max(paces):.3g} ms a picture, so {step_s:.3g} s for the {plan.samples_a_worker} of a step on a worker"
        yield Check("step", "ok", f"{text} (slowest of {len(seats)})")
    except Exception as error:
        yield Check("step", "FAILED", f"a forward and backward pass fails: {_reason(error)}")
    try:
        task = _remote(look.read_pictures).options(num_cpus=spec.data.cpus_per_task, scheduling_strategy=stand.place)
        waiting = task.remote(opening.manifest, decoding_of(spec), count=PICTURES, threads=8)
        yield reading(spec, ray.get(waiting, timeout=ANSWER_S), step_s=step_s)
    except Exception as error:
        yield Check("pictures", "FAILED", _reason(error))
    if writable:
        yield _saving(spec, plan, seats, opening.url)


def machines(rooms: Mapping[str, Any], *, embedded: bool) -> list[Check]:
    """What the machines say of themselves, compared."""
    failed = {name: room for name, room in rooms.items() if isinstance(room, Exception)}
    good = [room for room in rooms.values() if not isinstance(room, Exception)]
    if failed or not good:
        name, error = next(iter(failed.items()))
        return [Check("machines", "FAILED", f"{len(failed)} of {len(rooms)} do not answer; {name[:12]}: {_reason(error)}")]
    first = good[0]
    other = [(room, name) for room in good for name in first.versions if room.versions[name] != first.versions[name]]
    if other:
        room, name = other[0]
        text = f"{name} is {first.versions[name]} on {first.host} and {room.versions[name]} on {room.host}: use one image for all"
        versions = Check("versions", "FAILED", text)
    else:
        said = ", ".join(f"{name} {number}" for name, number in first.versions.items())
        versions = Check("versions", "ok", f"equal on {len(good)} machine{'s' * (len(good) > 1)}: {said}")
    shm, disk = min(room.shm_free for room in good), min(room.disk_free for room in good)
    small = [f"{what} {_gib(free)}" for what, free, need in (("/dev/shm", shm, SHM_SPARE), ("disk", disk, DISK_SPARE)) if free < need]
    text = f"least free: /dev/shm {_gib(shm)} beside the object store, disk {_gib(disk)}"
    if not small:
        return [versions, Check("room", "ok", text)]
    fix = "Ray spills, or stops taking work at 95 % of the disk" if embedded else "larger shm or ephemeral storage in the pods"
    return [versions, Check("room", "warning", f"{text}; {', '.join(small)} is little: {fix}")]


def _room(spec: JobSpec, have: cluster.Capacity) -> Check:
    text = f"{have.nodes} machine{'s' * (have.nodes != 1)}, {have.cpus:g} CPUs, {have.gpus:g} GPUs"
    try:
        return Check("cluster", "ok", f"{text}: room for {cluster.check_fits(spec, have=have)} workers now")
    except SpecError as error:
        if cluster.embedded(spec):
            raise
        return Check("cluster", "warning", f"{text}: {error.what}; asked for more")


@contextmanager
def _stand(spec: JobSpec, *, show: Callable[[str], None]) -> Iterator[_Stand]:
    """An actor for each of the fewest workers, as a run would place them; machines that have to come are waited for."""
    count, patience = spec.cluster.worker_range()[0], cluster.patience(spec)
    group = placement_group([bundle(spec)] * count, strategy=spec.cluster.placement.upper())
    try:
        if not group.wait(5):
            show(f"waiting up to {patience} s (cluster.start_timeout_s) for room for {count} workers")
            if not group.wait(patience):
                asked = ", ".join(f"{amount:g} {name}" for name, amount in bundle(spec).items())
                raise SpecError(
                    f"no room for {count} workers ({asked} each) came in {patience} s", fix="see why pods or machines do not come"
                )
        place = PlacementGroupSchedulingStrategy(group)
        seat = _remote(Seat).options(
            num_cpus=spec.cluster.cpus_per_worker,
            num_gpus=spec.cluster.gpus_per_worker,
            scheduling_strategy=place,
        )
        seats = [seat.remote(spec) for _ in range(count)]
        _answers([one.node.remote() for one in seats])
        yield _Stand(seats, place)
        for one in seats:
            ray.kill(one)
    finally:
        remove_placement_group(group)


def _devices(spec: JobSpec, seats: Sequence[Any]) -> Check:
    names = _answers([seat.gpu.remote() for seat in seats])
    if not spec.cluster.gpus_per_worker:
        return Check("devices", "ok", f"{len(seats)} workers on CPUs, as the spec says")
    blind = names.count(None)
    if blind:
        return Check(
            "devices", "FAILED", f"{blind} of {len(seats)} workers see no GPU: driver missing, or a torch without CUDA in the image"
        )
    kinds = sorted(set(names))
    if len(kinds) > 1:
        return Check("devices", "warning", f"different GPUs ({', '.join(kinds)}): the slowest sets the pace")
    return Check("devices", "ok", f"{len(seats)} x {kinds[0]}")


def _link(seats: Sequence[Any]) -> Check:
    world = len(seats)
    if world == 1:
        return Check("link", "ok", "one worker: no gradients travel")
    try:
        address = _answers([seats[0].address.remote()])[0]
        took = max(_answers([seat.reduce.remote(rank=rank, world_size=world, address=address) for rank, seat in enumerate(seats)]))
    except Exception as error:
        return Check("link", "FAILED", f"an all-reduce between {world} workers fails: {_reason(error)}")
    rate = 2 * (world - 1) / world * REDUCED_BYTES / took
    return Check("link", "ok", f"all-reduce of 64 MB between {world} workers in {took:.3g} s: {rate / 1e9:.3g} GB/s a worker")


def _storage(url: str, used: Mapping[str, Any]) -> Check:
    wrong = [(name, answer) for name, answer in used.items() if answer is not None]
    if wrong:
        name, answer = wrong[0]
        text = _reason(answer) if isinstance(answer, Exception) else answer
        return Check("storage", "FAILED", f"{storage.shown(url)} from {len(wrong)} of {len(used)} machines ({name[:12]}): {text}")
    return Check("storage", "ok", f"{storage.shown(url)}: write, read, list, conditional create, delete from {len(used)} machines")


def _data_set(spec: JobSpec) -> tuple[Opening | None, Check]:
    try:
        opening = inspect_run(spec)
    except UserError as error:
        return None, Check("data", "FAILED", str(error).splitlines()[0])
    rows = len(opening.manifest.training_rows)
    return opening, Check(
        "data", "ok", f"{rows:,} training rows at {storage.shown(spec.data.path)}; {opening.describe().partition(';')[0]}"
    )


def reading(spec: JobSpec, read: look.Reading, *, step_s: float | None) -> Check:
    """What the decode tasks deliver against what steps take."""
    tasks = max(spec.data.tasks, spec.cluster.worker_range()[0])
    rate = tasks * read.pictures_a_second
    text = f"{_few(read.pictures_a_second)} pictures/s a task x {tasks} tasks"
    if read.bad and spec.data.on_error == "fail":
        return Check("pictures", "FAILED", f"{len(read.bad)} of {PICTURES} cannot be shown: {read.bad[0]}; or data.on_error=substitute")
    if step_s is None:
        return Check("pictures", "warning", f"{text}; what a step needs is not known")
    need = spec.train.global_batch / step_s
    text = f"{text} = {_few(rate)}/s, steps take {_few(need)}/s"
    if rate < need:
        return Check("pictures", "warning", f"{text}: workers would wait; raise data.tasks, or pack the data with jobs/prepare.py")
    if read.bad:
        return Check("pictures", "warning", f"{text}; {len(read.bad)} of {PICTURES} are replaced: {read.bad[0]}")
    return Check("pictures", "ok", text)


def _saving(spec: JobSpec, plan: Plan, seats: Sequence[Any], url: str) -> Check:
    total = plan.cost.checkpoint_bytes
    share = max(1, total // len(seats))
    tried = min(share, UPLOAD_BYTES)
    try:
        took = max(_answers([seat.upload.remote(url, num_bytes=tried) for seat in seats]))
    except Exception as error:
        return Check("saving", "FAILED", _reason(error))
    return saving(spec, total=total, share=share, rate=tried / took)


def saving(spec: JobSpec, *, total: int, share: int, rate: float) -> Check:
    """A checkpoint's upload against what a reclaim leaves.

    Args:
        total, share: bytes of a checkpoint, and of it those that one worker writes.
        rate: bytes a second of one worker while all write.
    """
    seconds = share / rate
    text = f"{_mib(total)} at {_mib(rate)}/s a worker"
    if spec.kube.capacity == "on-demand":
        return Check("saving", "ok", f"{text}: {seconds:.1f} s")
    window = drain_seconds(spec.kube.reclaim_window_s) - NEWS_S
    text = f"saving takes {seconds:.1f} s of {window:.1f} s ({text})"
    if seconds > window:
        fix = (
            "each reclaim goes back to the last checkpoint: save more often, or use pools with a longer notice (kube.reclaim_window_s: 105)"
        )
        return Check("saving", "FAILED" if spec.kube.capacity == "spot" else "warning", f"{text}: {fix}")
    if seconds > window / 2:
        return Check("saving", "warning", f"{text}: it fits once, with little to spare")
    return Check("saving", "ok", text)


def _remote(what: Any) -> Any:
    """Ray's decorator, whose types know no keyword arguments."""
    return ray.remote(what)


def _nodes() -> list[str]:
    gone = cluster.leaving_nodes()
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in gone]


def _everywhere(function: Callable[..., Any], nodes: Sequence[str], *given: Any) -> dict[str, Any]:
    """The answer of every node, or what went wrong there."""
    task = _remote(function)
    waiting = {
        node: task.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False), max_retries=0).remote(*given)
        for node in nodes
    }
    return {node: _one(answer) for node, answer in waiting.items()}


def _one(answer: Any) -> Any:
    try:
        return ray.get(answer, timeout=ANSWER_S)
    except Exception as error:  # becomes a line of the table
        return error


def _answers(waiting: Sequence[Any]) -> list[Any]:
    return ray.get(list(waiting), timeout=ANSWER_S)


def _reason(error: Exception) -> str:
    """The last line of what a task of Ray raised, without its path through Ray."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return storage.without_secrets(lines[-1][:300]) if lines else type(error).__name__


def _few(number: float) -> str:
    """Three figures, more before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _gib(count: float) -> str:
    return f"{count / 2**30:.3g} GiB"


def _mib(count: float) -> str:
    return f"{count / 2**20:.3g} MiB"
