"""Room for workers that a run may have and the cluster has not: the demand that an autoscaler sees, and the sign that room has come."""

import time
from typing import Any

from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from iddpm_ray.spec.spec import JobSpec


class Demand:
    """One pending placement group for each missing worker and the data task beside it; whatever comes is kept until `release`."""

    def __init__(self, spec: JobSpec, *, missing: int) -> None:
        self._spec, self._missing = spec, missing
        self._not_before = 0.0
        self._groups: list[Any] = []

    def make(self) -> None:
        """Asks for the room, once; not while it rests."""
        if time.monotonic() < self._not_before:
            return
        self._groups += [placement_group([bundle(self._spec)], strategy="PACK") for _ in range(self._missing - len(self._groups))]

    def ask(self, missing: int) -> None:
        """Asks for room for so many in all."""
        self._missing = max(self._missing, missing)
        self.make()

    def came(self) -> int:
        """For how many of them there is room now."""
        return sum(placement_group_table(group)["state"] == "CREATED" for group in self._groups)

    def release(self) -> None:
        """Lets go of the room, for the attempt that is to use it."""
        groups, self._groups = self._groups, []
        for group in groups:
            remove_placement_group(group)

    def rest(self, seconds: float) -> None:
        """Lets go of the room and asks again no sooner than that: what came was not what is missing."""
        self.release()
        self._not_before = time.monotonic() + seconds


def bundle(spec: JobSpec) -> dict[str, float]:
    """What a worker and a data task need on one node."""
    cluster = spec.cluster
    resources = {"CPU": cluster.cpus_per_worker + spec.data.cpus_per_task}
    if cluster.gpus_per_worker:
        resources["GPU"] = cluster.gpus_per_worker
    if cluster.accelerator_type is not None:
        resources[f"accelerator_type:{cluster.accelerator_type}"] = 0.001
    return resources
