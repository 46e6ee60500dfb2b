"""What Ray runs on every rank: from an assignment to the loop."""

import os
from dataclasses import dataclass
from typing import Any

from ray.actor import ActorHandle

from iddpm_ray.runtime.session import RaySession
from iddpm_ray.runtime.sources import RaySources
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.directory import Opening, Place
from iddpm_ray.train.loop import Outcome, train


@dataclass(frozen=True)
class Assignment:
    """What the driver hands to the ranks of one attempt."""

    spec: JobSpec
    opening: Opening
    attempt: int
    board: ActorHandle


def run(config: dict[str, Any]) -> Outcome:
    """The train function of an attempt; returns rank 0's outcome to the driver."""
    assignment: Assignment = config["assignment"]
    # cuBLAS reads this when its first handle is made; without it `deterministic` is refused by torch on a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    session = RaySession.here(assignment.board)
    sources = RaySources.of(assignment.spec, assignment.opening, session)
    place = Place(assignment.opening, assignment.attempt)
    return train(assignment.spec, session, sources=sources, place=place)
