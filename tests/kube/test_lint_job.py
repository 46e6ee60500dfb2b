"""A job that is not what its spec makes of it is found, field by field; so is one that is handed to Ray in a way that does it harm."""

from pathlib import Path
from typing import Any

import pytest
from kube.test_lint import DRAIN, POLL, SPEC, Change, Objects, container, drop, job, of, pod, put, run_of, set_env
from kube.test_lint import _found as found

from iddpm_ray.cli import parse
from iddpm_ray.kube import render
from iddpm_ray.kube.lint import judge
from iddpm_ray.kube.rules_job import PROGRAMS, QUEUE
from iddpm_ray.presets import names

ROOT = Path(__file__).parents[2]
TRAIN = "exec python jobs/train.py /etc/iddpm/spec.yaml"


def group(o: Objects, index: int = 0) -> Any:
    return run_of(o)["rayClusterSpec"]["workerGroupSpecs"][index]


def head(o: Objects) -> Any:
    return run_of(o)["rayClusterSpec"]["headGroupSpec"]


def runs(text: str) -> Change:
    return lambda o: put(run_of(o), "entrypoint", text)


def field(name: str, value: Any) -> Change:
    return lambda o: put(run_of(o), name, value)


def says(before: str, after: str) -> Change:
    assert before in SPEC
    return lambda o: put(of(o, "ConfigMap")["data"], "spec.yaml", SPEC.replace(before, after))


def volume(o: Objects) -> Any:
    return next(one for one in pod(head(o))["volumes"] if "configMap" in one)["configMap"]


def metadata(o: Objects, kind: str, part: str) -> Any:
    return of(o, kind)["metadata"][part]


AGAINST_ITS_SPEC: dict[str, tuple[Change, str, str]] = {
    "another machine": (
        lambda o: put(pod(group(o))["nodeSelector"], "node.kubernetes.io/instance-type", "g2-standard-12"),
        "spec",
        "is g2-standard-12, and the spec it runs makes it g2-standard-8",
    ),
    "another image": (
        lambda o: [put(container(one), "image", "a/b:1") for one in (head(o), group(o), group(o, 1))],
        "spec",
        "is a/b:1, and the spec",
    ),
    "fewer CPUs": (
        lambda o: [put(container(group(o, n))["resources"]["requests"], "cpu", "1") for n in (0, 1)],
        "spec",
        "is 1, and the spec it runs makes it 7",
    ),
    "a window that the spec does not know": (
        lambda o: (put(pod(group(o)), "terminationGracePeriodSeconds", 105), set_env(group(o), DRAIN, "95")),
        "spec",
        "is 105, and the spec it runs makes it 15",
    ),
    "drain within the rules": (lambda o: set_env(group(o), DRAIN, "11"), "spec", "is 11, and the spec it runs makes it 12"),
    "no on-demand group": (lambda o: run_of(o)["rayClusterSpec"]["workerGroupSpecs"].pop(1), "spec", "is not there, and the spec"),
    "a group more": (
        lambda o: run_of(o)["rayClusterSpec"]["workerGroupSpecs"].append({**group(o, 1), "groupName": "more"}),
        "spec",
        "is more, and nothing of the kind",
    ),
    "workers from the start": (lambda o: put(group(o), "replicas", 4), "spec", "is 4, and the spec it runs makes it 0"),
    "patience cut": (says("start_timeout_s: 1800", "start_timeout_s: 60"), "spec", "is 60, and the spec it runs makes it 1800"),
    "a local directory": (says("output_dir: gs://my-bucket/runs", "output_dir: /tmp/runs"), "spec", "would be lost with it"),
    "another window": (says("reclaim_window_s: 15", "reclaim_window_s: 105"), "spec", "makes it 105"),
    "another capacity": (says("capacity: spot-first", "capacity: on-demand"), "spec", "nothing of the kind"),
    "another place": (
        says("output_dir: gs://my-bucket/runs", "output_dir: gs://your-bucket/runs"),
        "spec",
        "makes it gs://your-bucket/runs",
    ),
    "another run's label": (lambda o: put(metadata(o, "RayJob", "labels"), "iddpm/run", "dogs"), "spec", "is dogs"),
    "another run's label on the map": (lambda o: put(metadata(o, "ConfigMap", "labels"), "iddpm/run", "dogs"), "spec", "is dogs"),
    "another digest on the map": (lambda o: put(metadata(o, "ConfigMap", "labels"), "iddpm/spec", "0" * 16), "spec", "is 0000000000000000"),
    "another run's annotation": (
        lambda o: put(metadata(o, "RayJob", "annotations"), "iddpm/run-name", "dogs"),
        "spec",
        "is dogs, and the spec it runs makes it cats",
    ),
    "another place by annotation": (lambda o: put(metadata(o, "RayJob", "annotations"), "iddpm/output-dir", "gs://x"), "spec", "is gs://x"),
    "another run for Ray": (lambda o: put(run_of(o)["metadata"], "run", "dogs"), "spec", "is dogs"),
    "another name": (lambda o: put(of(o, "RayJob")["metadata"], "name", "dogs"), "spec", "is dogs"),
    "another namespace": (lambda o: [put(one["metadata"], "namespace", "default") for one in o], "spec", "makes it iddpm"),
    "misspelt account": (lambda o: put(pod(head(o)), "serviceAccountName", "iddpm-haed"), "spec", "makes it iddpm-head"),
    "misspelt class": (lambda o: put(pod(head(o)), "priorityClassName", "iddpm-haed"), "spec", "makes it iddpm-head"),
    "head without its role": (lambda o: drop(head(o)["template"]["metadata"]["labels"], "iddpm/role"), "spec", "is not there"),
    "worker that no policy covers": (
        lambda o: drop(group(o)["template"]["metadata"]["labels"], "app.kubernetes.io/part-of"),
        "spec",
        "is not there",
    ),
    "many retries": (field("backoffLimit", 100000), "spec", "makes it 3"),
    "gone at once": (field("ttlSecondsAfterFinished", 0), "spec", "makes it 600"),
    "no deadline": (lambda o: drop(run_of(o), "activeDeadlineSeconds"), "spec", "makes it 146400"),
    "a fixed id": (field("jobId", "cats"), "spec", "nothing of the kind is made"),
    "packages of its own": (field("runtimeEnvYAML", "pip: [torch]"), "spec", "nothing of the kind is made"),
    "no map": (lambda o: o.remove(of(o, "ConfigMap")), "references", "the head never starts"),
    "another key shown": (lambda o: put(volume(o), "items", [{"key": "other", "path": "other"}]), "spec", "no spec.yaml in what it mounts"),
    "misspelt program": (runs("exec python jobs/trian.py /etc/iddpm/spec.yaml"), "spec", "is exec python jobs/trian.py"),
    "no exec": (runs("python jobs/train.py /etc/iddpm/spec.yaml"), "spec", "makes it exec python"),
    "a relative path": (runs("exec python jobs/train.py spec.yaml"), "spec", "makes it exec python"),
    "words after the path": (runs(f"{TRAIN} cluster.workers=64"), "spec", "makes it exec python"),
    "many differences": (
        lambda o: (metadata(o, "RayJob", "labels").clear(), metadata(o, "RayJob", "labels").update({"iddpm/spec": "x"}), group(o).clear()),
        "schema",
        "is missing",
    ),
}

HANDED_OVER: dict[str, tuple[Change, str, str]] = {
    "program that is not there": (runs("exec python jobs/trian.py /etc/iddpm/spec.yaml"), "job", "jobs/trian.py, which is no program"),
    "in the background": (runs("python jobs/train.py /etc/iddpm/spec.yaml & wait"), "job", "goes on in the background"),
    "suspended for nobody": (field("suspend", True), "job", "nothing is ever started"),
    "driver that wants CPUs": (field("entrypointNumCpus", 4), "job", "needs a worker's machine"),
    "driver that wants a GPU": (field("entrypointNumGpus", 1), "job", "needs a worker's machine"),
    "driver that wants something": (field("entrypointResources", '{"x": 1}'), "job", "ask for what the head does not have"),
    "ends before its hours": (field("activeDeadlineSeconds", 3600), "job", "before cluster.max_hours, 40"),
    "ends while it waits": (field("activeDeadlineSeconds", 600), "job", "in which machines may come"),
    "poll by runtime environment": (field("runtimeEnvYAML", f"env_vars: {{{POLL}: '30'}}"), "poll", "30, whatever the head says"),
    "misspelt variable of the job": (
        field("runtimeEnvYAML", "env_vars: {RAY_JOB_STOP_WAIT_TIME: '30'}"),
        "names",
        "RAY_JOB_STOP_WAIT_TIME_S?",
    ),
    "runtime environment that is a list": (field("runtimeEnvYAML", "- a"), "job", "is no mapping"),
    "cluster chosen and described": (field("clusterSelector", {"ray.io/cluster": "iddpm"}), "job", "is never made"),
}

BROKEN = {**AGAINST_ITS_SPEC, **{f"{name} (handed over)": one for name, one in HANDED_OVER.items()}}

VALID: dict[str, Change] = {
    "in a queue": lambda o: (put(run_of(o), "suspend", True), put(metadata(o, "RayJob", "labels"), QUEUE, "gpus")),
    "labels and annotations of one's own": lambda o: [
        one["metadata"][part].update({"team": "a"}) for one in o for part in ("labels", "annotations")
    ],
    "variables of one's own": lambda o: [set_env(one, "NCCL_DEBUG", "INFO") for one in (head(o), group(o))],
    "a volume of one's own": lambda o: (
        pod(group(o))["volumes"].append({"name": "scratch", "emptyDir": {}}),
        container(group(o))["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"}),
    ),
    "amounts in other words": lambda o: [
        put(container(group(o))["resources"][kind], "memory", "28991029248") for kind in ("requests", "limits")
    ],
    "the spec in other words": lambda o: put(of(o, "ConfigMap")["data"], "spec.yaml", SPEC.replace("seed: 0\n", "seed: 0  # same\n\n")),
    "variables in another order": lambda o: container(head(o))["env"].reverse(),
    "groups in another order": lambda o: run_of(o)["rayClusterSpec"]["workerGroupSpecs"].reverse(),
}


@pytest.mark.parametrize("name", BROKEN)
def test_mistake_in_a_job_is_found(name: str) -> None:
    found(job(), *BROKEN[name])


@pytest.mark.parametrize("name", VALID)
def test_jobs_that_do_the_same_are_without_findings(name: str) -> None:
    objects = job()
    VALID[name](objects)
    assert [str(one) for one in judge(objects, where="here")] == []


@pytest.mark.parametrize("preset", names())
@pytest.mark.parametrize(
    "overrides",
    [
        ["kube.capacity=spot"],
        ["kube.capacity=spot-first", "kube.reclaim_window_s=105", "kube.preflight=true"],
        ["kube.capacity=on-demand", "kube.secrets=[wandb]", "kube.namespace=team-b", "cluster.workers=[1,4]", "cluster.max_hours=0.5"],
    ],
    ids=["spot", "spot-first", "on-demand"],
)
def test_what_is_rendered_of_any_preset_is_without_findings(preset: str, overrides: list[str]) -> None:
    data = ["data.path=gs://b/d", "run.output_dir=gs://b/runs", "run.name=some_Run"]
    machine = ["kube.image=r/i:1", "kube.machine=g2-standard-48", "cluster.gpus_per_worker=1", "cluster.workers=4", "data.tasks=4"]
    spec = parse(["--preset", preset, *data, *machine, *overrides]).spec
    assert spec is not None
    for objects in (render.job(spec), render.cluster(spec)):
        assert [str(one) for one in judge(objects, where=preset)] == []


def test_differences_beyond_the_first_are_counted() -> None:
    objects = job()
    for index in (0, 1):
        for kind in ("requests", "limits"):
            container(group(objects, index))["resources"][kind]["memory"] = "20Gi"
        put(container(group(objects, index))["resources"]["requests"], "cpu", "5")
    put(run_of(objects), "backoffLimit", 1)
    shown = [one for one in judge(objects, where="here") if one.rule == "spec"]
    assert len(shown) == 5
    assert shown[-1].reason.endswith("(and 2 more differences)")


def test_a_job_of_ones_own_may_run_what_it_likes() -> None:
    """Without the label of a rendered job nothing is held against a spec that is not here."""
    objects = job()
    objects.remove(of(objects, "ConfigMap"))
    drop(metadata(objects, "RayJob", "labels"), "iddpm/spec")
    put(run_of(objects), "entrypoint", "set -e; python jobs/sample.py gs://b/runs/cats 2>&1 | tee log && echo 'a & b'")
    assert [str(one) for one in judge(objects, where="here")] == []


def test_the_programs_are_those_of_the_repository() -> None:
    assert sorted(path.stem for path in (ROOT / "jobs").glob("*.py")) == sorted(PROGRAMS)
