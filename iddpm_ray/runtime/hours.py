"""The hours of a run: a driver that is started again in the same job, because its head was lost, counts from the job's first driver."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iddpm_ray.checkpoint.attempts import attempts
from iddpm_ray.kube.names import RESTARTED_BY

_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # by which Ray tells a job's driver its name and what was said with it
_NAME = "job_submission_id"


@dataclass(frozen=True)
class Job:
    """What a driver belongs to.

    Attributes:
        name: of the job, the same for each driver that is started in it; None: this driver is the only one.
        spent_s: since the job's first driver began, when this one did.
    """

    name: str | None = None
    spent_s: float = 0.0

    def record(self, age_s: float) -> dict[str, Any]:
        """What an attempt's record says of it.

        Args:
            age_s: of this driver.
        """
        return {} if self.name is None else {"job": {"name": self.name, "began": time.time() - self.spent_s - age_s}}


def job_of(run_url: str) -> Job:
    """The job of this driver, whose operator gives up `cluster.max_hours` after the first one and not after the last."""
    name = job_name()
    if name is None:
        return Job()
    said = [one.info.get("job") for one in attempts(run_url)]
    began = [job["began"] for job in said if isinstance(job, Mapping) and job.get("name") == name and isinstance(job.get("began"), float)]
    now = time.time()
    return Job(name, max(0.0, now - min(began, default=now)))


def job_name() -> str | None:
    """Of a job that somebody starts again after a lost head, as KubeRay does with that of a rendered RayJob; None for others."""
    try:
        said = json.loads(os.environ.get(_CONFIG, "{}"))["metadata"]
        return str(said[_NAME]) if RESTARTED_BY in said else None
    except (ValueError, KeyError, TypeError):
        return None
