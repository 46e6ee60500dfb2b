"""Names and labels of a run's objects: short, valid for every kind, the same each time."""

import hashlib
import re

from iddpm_ray.spec.spec import JobSpec

PART_OF = "app.kubernetes.io/part-of"
RUN_LABEL, DIGEST_LABEL, CAPACITY_LABEL = "iddpm/run", "iddpm/spec", "iddpm/capacity"
RESTARTED_BY = "iddpm/restarted-by"  # in a job's metadata: who submits it again, under the same name, where its head was lost
NAME_ANNOTATION, PLACE_ANNOTATION = "iddpm/run-name", "iddpm/output-dir"
PROJECT = "iddpm"
LONGEST = 47  # of a RayJob, whose cluster and services get longer ones


def object_name(run_name: str) -> str:
    """The run's name as Kubernetes takes it: small letters, digits and dashes, beginning with a letter, at most 47 characters.

    A name that has to be changed gets a digest of the original, so that two runs never meet.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", run_name.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"run-{plain}".strip("-")
    if plain == run_name and len(plain) <= LONGEST:
        return plain
    digest = hashlib.sha256(run_name.encode()).hexdigest()[:8]
    return f"{plain[: LONGEST - 9].rstrip('-')}-{digest}"


def labels(spec: JobSpec) -> dict[str, str]:
    """Of every object of the run."""
    return {PART_OF: PROJECT, RUN_LABEL: object_name(spec.run.name), DIGEST_LABEL: spec.digest()[:16]}


def annotations(spec: JobSpec) -> dict[str, str]:
    """What a label is too short for."""
    return {NAME_ANNOTATION: spec.run.name, PLACE_ANNOTATION: spec.run.output_dir}
