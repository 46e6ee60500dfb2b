"""House rules about a RayJob: how it is handed to Ray, where its driver runs, and what ends it."""

import re
from collections.abc import Iterator

import yaml

from iddpm_ray.kube.objects import Data, Flaw, get, items, mapping, quantity
from iddpm_ray.kube.rules_time import POLL, SOON_S
from iddpm_ray.kube.spelling import VARIABLES, meant

COLD_S = 600
PROGRAMS = ("checkpoint", "cluster", "convert", "demo", "evaluate", "nll", "prepare", "replay", "report", "sample", "train")
QUEUE = "kueue.x-k8s.io/queue-name"


def check_job(job: Data, at: str, labels: Data) -> Iterator[Flaw]:
    """What is wrong with how a RayJob is submitted and ended.

    Args:
        job: the spec of a RayJob.
        at: its path.
        labels: of the object.
    """
    yield from _driver(job, at)
    yield from _words(str(get(job, "entrypoint") or ""), at, own_code=bool(get(job, "runtimeEnvYAML")))
    yield from _variables(job, at)
    yield from check_suspended(job, at, labels)
    if get(job, "clusterSelector") and get(job, "rayClusterSpec") is not None:
        yield Flaw(f"{at}.clusterSelector", "job", "chooses a cluster that is there: the one described here is never made, nor its limits")
    deadline, start = get(job, "activeDeadlineSeconds"), get(job, "preRunningDeadlineSeconds")
    if deadline is not None and start is not None and deadline <= start:
        reason = f"{deadline} s, counted from the beginning, are over before the {start} s in which machines may come"
        yield Flaw(f"{at}.activeDeadlineSeconds", "job", reason)
    mode = get(job, "submissionMode")
    if mode != "HTTPMode":
        known = ("K8sJobMode", "SidecarMode", "InteractiveMode", None)
        reason = (
            "is no mode, though nobody refuses it"
            if mode not in known
            else "is not HTTPMode: a lost submitter or log stream ends a healthy run"
        )
        yield Flaw(f"{at}.submissionMode", "job", f"{mode} {reason}; by HTTPMode a lost head gets the job again, and it resumes")
    if (
        get(job, "shutdownAfterJobFinishes") is not True
        and not items(job, "deletionStrategy", "deletionRules")
        and not get(job, "clusterSelector")
    ):
        yield Flaw(f"{at}.shutdownAfterJobFinishes", "job", "is not true: the head is paid for until somebody remembers it")
    ttl = get(job, "ttlSecondsAfterFinished")
    if get(job, "shutdownAfterJobFinishes") is True and (ttl is None or ttl > 86400):
        yield Flaw(f"{at}.ttlSecondsAfterFinished", "job", "should be given, and at most a day: the ended run's cluster stays that long")
    if not get(job, "backoffLimit"):
        yield Flaw(f"{at}.backoffLimit", "job", "is 0: the first failure of cluster or submission ends the run, which could resume")
    deadline = get(job, "preRunningDeadlineSeconds")
    if deadline is None or deadline < COLD_S:
        reason = (
            "should be given, or a job without machines waits for ever" if deadline is None else "is shorter than machines take to come"
        )
        yield Flaw(f"{at}.preRunningDeadlineSeconds", "job", reason)
    if not str(get(job, "entrypoint") or "").strip():
        yield Flaw(f"{at}.entrypoint", "job", "is empty: there is nothing to run")


def check_suspended(spec: Data, at: str, labels: Data) -> Iterator[Flaw]:
    """What is suspended is resumed by a queue, or by nobody."""
    if get(spec, "suspend") is True and not labels.get(QUEUE):
        yield Flaw(f"{at}.suspend", "job", f"is true, and no label {QUEUE} says whose queue ends that: nothing is ever started")


def _driver(job: Data, at: str) -> Iterator[Flaw]:
    """The driver runs on the head, which offers Ray no CPU: whatever it asks for puts it onto a worker, or nowhere."""
    for name in ("entrypointNumCpus", "entrypointNumGpus"):
        if get(job, name):
            reason = f"is {get(job, name)}: the driver then needs a worker's machine, is reclaimed with it, and keeps a rank out"
            yield Flaw(f"{at}.{name}", "job", reason)
    if str(get(job, "entrypointResources") or "").strip() not in ("", "{}"):
        yield Flaw(f"{at}.entrypointResources", "job", "ask for what the head does not have: the driver runs elsewhere, or never")


def _words(entrypoint: str, at: str, *, own_code: bool) -> Iterator[Flaw]:
    """What the shell makes of the entrypoint.

    Args:
        own_code: the job may bring programs of its own.
    """
    plain = re.sub(r"'[^']*'|\"[^\"]*\"", "", entrypoint)
    if re.search(r"(?<![&>])&(?![&>])", plain):
        reason = "goes on in the background: a stop ends the shell at once, and the job with it, while the run still saves"
        yield Flaw(f"{at}.entrypoint", "job", reason)
    for name in re.findall(r"\bjobs/([\w-]+)\.py\b", entrypoint):
        if name not in PROGRAMS and not own_code:
            yield Flaw(f"{at}.entrypoint", "job", f"runs jobs/{name}.py, which is no program of the image ({', '.join(PROGRAMS)})")


def _variables(job: Data, at: str) -> Iterator[Flaw]:
    """Variables of the job's runtime environment: they stand above those of the head."""
    path = f"{at}.runtimeEnvYAML"
    try:
        made = yaml.safe_load(str(get(job, "runtimeEnvYAML") or ""))
    except yaml.YAMLError:
        return  # the operator's rule says so
    if made is not None and not isinstance(made, dict):
        yield Flaw(path, "job", "is no mapping: the operator cannot read it, and no job starts")
    for name, value in mapping(made, "env_vars").items():
        right = meant(str(name), VARIABLES)
        if right is not None:
            yield Flaw(f"{path} {name}", "names", f"is read by nobody ({right}?)")
        poll = quantity(value)
        if name == POLL and (poll is None or not 0 < poll <= SOON_S):
            yield Flaw(
                f"{path} {name}", "poll", f"{value}, whatever the head says: much of a reclaim's window is then over before anybody looks"
            )
