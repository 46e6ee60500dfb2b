"""Pictures of one rank decoded by Ray Data tasks anywhere in the cluster; the first ones and the held-out ones by the worker itself."""

from collections.abc import Generator
from dataclasses import dataclass, field, fields
from functools import partial

import ray
from ray.exceptions import RayError

from iddpm_ray.data.batch import Batch
from iddpm_ray.runtime.bridge import bridged
from iddpm_ray.runtime.stream import Tasks, open_stream
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.sources import LocalSources


@dataclass(frozen=True)
class RaySources(LocalSources):
    """As `LocalSources`, but the stream of training comes through the cluster.

    Attributes:
        reference: the manifest in the object store.
        cluster_tasks: what decode tasks may take.
    """

    reference: ray.ObjectRef | None = None
    cluster_tasks: Tasks = field(default_factory=Tasks)

    @classmethod
    def on(cls, spec: JobSpec, reference: ray.ObjectRef, local: LocalSources) -> "RaySources":
        """The sources that a spec describes, for the rank that `local` is made for."""
        tasks = Tasks(spec.data.tasks, spec.data.cpus_per_task, spec.data.prefetch_blocks)
        return cls(**{each.name: getattr(local, each.name) for each in fields(local)}, reference=reference, cluster_tasks=tasks)

    def batches(self, *, start_step: int, stop_step: int | None) -> Generator[Batch, None, None]:
        """This rank's slice of every step from `start_step` on."""
        assert self.reference is not None
        near = partial(super().batches, stop_step=stop_step)
        far = partial(open_stream, self.reference, self.share, stop_step=stop_step, tasks=self.cluster_tasks)
        broken = (RayError, RuntimeError, OSError)  # OSError: a task's own patience with the store was over; this worker has patience too
        return bridged(lambda step: near(start_step=step), lambda step: far(start_step=step), start_step=start_step, broken=broken)
