"""A run's objects for `kubectl apply`: the RayJob with its spec beside it, or the RayCluster alone. A pure function of the spec."""

import math
import re
from collections.abc import Iterable
from typing import Any

import yaml

from iddpm_ray import storage
from iddpm_ray.kube.names import RESTARTED_BY, annotations, labels, object_name
from iddpm_ray.kube.pods import SPEC_FOLDER, Data, cluster_spec
from iddpm_ray.spec.problems import Problem, refuse
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import dump_yaml

COLD_START_S = 1800  # a machine with a GPU may take so long to come
LATE_S = 600  # after `cluster.max_hours` the run still saves
TTL_S = 600
SPEC_FILE = "spec.yaml"
# What reads the same in YAML 1.1 and 1.2, and in kubectl's mixture of both: begins with a letter or a slash and is no word of theirs.
_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)\Z)[a-z/].*", re.IGNORECASE)


def job(spec: JobSpec) -> list[Data]:
    """ConfigMap and RayJob of the run.

    Raises:
        SpecError: the run cannot be on Kubernetes as it is.
    """
    _check(spec)
    name = object_name(spec.run.name)
    spec_map = f"{name}-spec"
    program = f"jobs/train.py {SPEC_FOLDER}/{SPEC_FILE}"
    entrypoint = f"exec python {program}"
    if spec.kube.preflight:
        entrypoint = f"python jobs/cluster.py preflight {SPEC_FOLDER}/{SPEC_FILE} && {entrypoint}"
    inner: Data = {
        "submissionMode": "HTTPMode",
        "entrypoint": entrypoint,
        "metadata": {"run": spec.run.name, RESTARTED_BY: "operator"},
        "backoffLimit": 3,
        "preRunningDeadlineSeconds": COLD_START_S,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": TTL_S,
        "rayClusterSpec": cluster_spec(spec, spec_map=spec_map),
    }
    if spec.cluster.max_hours is not None:
        before = COLD_START_S * (2 if spec.kube.preflight else 1)  # the head may come late, and then what preflight waits for
        inner["activeDeadlineSeconds"] = math.ceil(3600 * spec.cluster.max_hours) + before + LATE_S
    return [
        _object(spec, "v1", "ConfigMap", spec_map) | {"data": {SPEC_FILE: dump_yaml(for_pods(spec))}},
        _object(spec, "ray.io/v1", "RayJob", name) | {"spec": inner},
    ]


def cluster(spec: JobSpec) -> list[Data]:
    """The RayCluster alone, for `ray job submit`.

    Raises:
        SpecError: the run cannot be on Kubernetes as it is.
    """
    _check(spec)
    return [_object(spec, "ray.io/v1", "RayCluster", object_name(spec.run.name)) | {"spec": cluster_spec(spec)}]


def for_pods(spec: JobSpec) -> JobSpec:
    """The spec as the pods get it: machines that start cold are waited for."""
    patience = max(spec.cluster.start_timeout_s or 0, COLD_START_S)
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"start_timeout_s": patience})})


def to_yaml(objects: Iterable[Data]) -> str:
    """Documents of one YAML stream, keys in the order they were made."""
    return "---\n".join(yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True) for one in objects)


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block, and equal parts written out."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    style = "|" if "\n" in data else None if _PLAIN.fullmatch(data) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _text)


def _object(spec: JobSpec, version: str, kind: str, name: str) -> Data:
    metadata = {"name": name, "namespace": spec.kube.namespace, "labels": labels(spec), "annotations": annotations(spec)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _check(spec: JobSpec) -> None:
    """Refuses what is on one machine: no pod has it."""
    bucket = "use a bucket that every pod reaches, gs:// or s3://"
    problems: list[Problem] = []
    if storage.is_local(spec.run.output_dir):
        problems.append(_local("run.output_dir", spec.run.output_dir, f"is a path inside one pod, and would be lost with it: {bucket}"))
    for path, url in _read_by_pods(spec).items():
        if url is not None and storage.is_local(url):
            problems.append(_local(path, url, f"is a path of one machine, and no pod has it: {bucket}"))
    if "mlflow" in spec.log.sinks and spec.log.mlflow_url is not None and storage.is_local(spec.log.mlflow_url):
        problems.append(_local("log.mlflow_url", spec.log.mlflow_url, "is a directory of one machine, and no pod has it: use a server"))
    refuse(problems)


def _read_by_pods(spec: JobSpec) -> dict[str, str | None]:
    evaluate, optim = spec.evaluate, spec.optim
    judged = evaluate.every is not None
    return {
        "data.path": spec.data.path,
        "init.from": spec.init.from_,
        "optim.compile_cache": optim.compile_cache if optim.compile else None,
        "evaluate.inception": evaluate.inception if judged else None,
        "evaluate.reference": evaluate.reference if judged and evaluate.reference != "data" else None,
    }


def _local(path: str, url: str, fix: str) -> Problem:
    return Problem(path, storage.shown(url), fix)
