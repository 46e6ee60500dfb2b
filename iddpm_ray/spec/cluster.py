"""Section `cluster`: how many workers, what each one gets, and what happens when they fail."""

from typing import Annotated, Literal

from pydantic import Field

from iddpm_ray.spec.mark import AsTuple, Section, may_change

Workers = Annotated[int, Field(ge=1)]


class MeshSpec(Section):
    """How the workers are arranged: data parallel x sharded x tensor parallel."""

    data: int = may_change(-1, "workers that hold a replica each; -1: all of them", unit="workers", ge=-1)
    fsdp: int = may_change(1, "workers that share the shards of one replica; only 1 so far", unit="workers", ge=1)
    tensor: int = may_change(1, "workers that split each layer; only 1 so far", unit="workers", ge=1)


class ClusterSpec(Section):
    """How many workers, what each one gets, and what happens when they fail."""

    address: str | None = may_change(None, "Ray cluster to join; null: the job's own, else an embedded Ray", unit="address", min_length=1)
    workers: Annotated[Workers | tuple[Workers, Workers], AsTuple] = may_change(
        1, "workers, or [min, max] between which a restart may choose", unit="workers"
    )
    cpus_per_worker: float = may_change(1.0, "logical CPUs that Ray reserves for each worker", unit="CPUs", gt=0)
    gpus_per_worker: float = may_change(0.0, "GPUs of each worker: 0 or 1, or a share for a worker that is alone", unit="GPUs", ge=0)
    threads_per_worker: int = may_change(1, "threads that torch uses in each worker", unit="threads", ge=1)
    accelerator_type: str | None = may_change(None, "only GPUs of this type, as Ray names them (H100, L4)", unit="text", min_length=1)
    placement: Literal["pack", "spread"] = may_change("pack", "workers on few nodes or on many", unit="choice")
    mesh: MeshSpec = Field(default_factory=MeshSpec, description="how the workers are arranged")
    max_failures: int = may_change(
        20, "failed attempts that one start of the run tries to mend; lost and preempted machines do not count", unit="failures", ge=0
    )
    max_fruitless: int = may_change(
        3, "attempts in a row that failed, or lost a machine, without a new checkpoint, before the run gives up", unit="attempts", ge=0
    )
    max_hours: float | None = may_change(
        None, "the run saves and stops this long after its start; a lost head is no new start; null: no limit", unit="hours", gt=0
    )
    collective_timeout_s: float = may_change(120.0, "a worker that waits this long for the others counts as failed", unit="seconds", ge=1)
    hang_timeout_s: float = may_change(
        300.0,
        "a worker silent or stuck for this long has hung: its group is restarted (four times as long before the first step)",
        unit="seconds",
        ge=5,
    )
    grow_every_s: float = may_change(
        300.0, "an attempt with fewer workers than it may have lasts at least this long before a larger one follows", unit="seconds", ge=0
    )
    start_timeout_s: int | None = may_change(
        None,
        "how long to wait for room for the workers; null: 60, or 1800 where KubeRay's autoscaler makes machines",
        unit="seconds",
        ge=1,
    )
    object_store_gib: float | None = may_change(None, "object store of an embedded Ray; null: Ray's own choice", unit="GiB", ge=0.1)
    price_per_worker_hour: float | None = may_change(
        None, "price of a worker for an hour, in any currency; null: no cost is worked out", unit="money an hour", ge=0
    )

    def worker_range(self) -> tuple[int, int]:
        """Fewest and most workers an attempt may have."""
        return (self.workers, self.workers) if isinstance(self.workers, int) else self.workers
