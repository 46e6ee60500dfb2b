"""What Ray runs on every rank: from an assignment to the loop."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.actor import ActorHandle

from iddpm_ray.data import manifest as manifests
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.directory import Place

if TYPE_CHECKING:
    from iddpm_ray.train.loop import Outcome


@dataclass(frozen=True)
class Assignment:
    """What the driver hands to the ranks of one attempt.

    Attributes:
        manifest: in the object store, one copy a node; in a list, so that Ray hands on the reference and not the value.
        may_be_preempted: whether machines of this cluster can be drained.
    """

    spec: JobSpec
    place: Place
    board: ActorHandle
    manifest: list[ray.ObjectRef]
    may_be_preempted: bool = False


def run(config: dict[str, Any]) -> "Outcome":
    """The train function of an attempt; returns rank 0's outcome to the driver."""
    # The driver hands this function over and does without the seconds that these imports take.
    from iddpm_ray.runtime.session import RaySession
    from iddpm_ray.runtime.sources import RaySources
    from iddpm_ray.train.loop import train
    from iddpm_ray.train.sources import LocalSources

    assignment: Assignment = config["assignment"]
    # cuBLAS reads this when its first handle is made; without it torch refuses to be deterministic on a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    timeout_s = assignment.spec.cluster.collective_timeout_s
    session = RaySession.here(assignment.board, may_be_preempted=assignment.may_be_preempted, timeout_s=timeout_s)
    reference = assignment.manifest[0]
    manifest = manifests.from_bytes(ray.get(reference))
    local = LocalSources.of(assignment.spec, manifest, rank=session.rank, world_size=session.world_size)
    return train(assignment.spec, session, sources=RaySources.on(assignment.spec, reference, local), place=assignment.place)
