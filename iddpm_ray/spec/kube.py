"""Section `kube`: the machines and pods of a run on Kubernetes; read by `jobs/cluster.py`, by nothing else."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, StringConstraints

from iddpm_ray.spec.mark import AsTuple, Section, may_change

Machine = Literal[
    "e2-standard-4",
    "e2-standard-8",
    "g2-standard-4",
    "g2-standard-8",
    "g2-standard-12",
    "g2-standard-16",
    "g2-standard-24",
    "g2-standard-48",
    "g2-standard-96",
    "a2-highgpu-1g",
    "a2-highgpu-2g",
    "a2-highgpu-4g",
    "a2-highgpu-8g",
    "a2-ultragpu-1g",
    "a2-ultragpu-2g",
    "a2-ultragpu-4g",
    "a2-ultragpu-8g",
    "a3-highgpu-1g",
    "a3-highgpu-2g",
    "a3-highgpu-4g",
    "a3-highgpu-8g",
]

_TAG, _DIGEST = r":(?!latest(?:@|\Z))[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", "@sha256:[0-9a-f]{64}"
_IMAGE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*({_TAG}({_DIGEST})?|(:latest)?{_DIGEST})")


def _versioned(image: str) -> str:
    if not _IMAGE.fullmatch(image):
        raise ValueError("should be registry/name:tag, with a tag other than latest, or registry/name@sha256:digest")
    return image


ImageName = Annotated[str, AfterValidator(_versioned)]
SecretName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]


class KubeSpec(Section):
    """The machines and pods of a run on Kubernetes."""

    image: ImageName | None = may_change(None, "container image of every pod, by tag or digest; needed to render", unit="image")
    namespace: str = may_change(
        "iddpm", "namespace that the run's objects live in", unit="name", pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
    )
    machine: Machine = may_change("g2-standard-8", "type of the worker machines at Google; a pod takes a whole one", unit="machine type")
    capacity: Literal["spot", "spot-first", "on-demand"] = may_change(
        "spot", "spot machines, spot and on-demand ones where there are none, or on-demand alone", unit="choice"
    )
    reclaim_window_s: Literal[15, 105] = may_change(
        15, "what a pod has between notice and end of a spot machine: 105 in pools of 120 s of notice", unit="seconds"
    )
    preflight: bool = may_change(False, "check cluster, storage and data first, as part of the job", unit="yes or no")
    secrets: Annotated[tuple[SecretName, ...], AsTuple] = may_change(
        (), "Secrets of the namespace whose keys are environment variables of every pod: of a tracker, of S3", unit="names"
    )
