"""Sends a run to Kubernetes and looks after it there, with kubectl."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from iddpm_ray.errors import UserError
from iddpm_ray.kube import render
from iddpm_ray.kube.names import DIGEST_LABEL, RUN_LABEL, object_name
from iddpm_ray.kube.objects import get
from iddpm_ray.spec.spec import JobSpec

POLL_S = 2.0
ENDED = ("Complete", "Failed", "ValidationFailed")
_SECONDS = 120


@dataclass(frozen=True)
class State:
    """What the cluster says of a run.

    Attributes:
        deployment: KubeRay's word for the RayJob: Initializing, Running, Complete, Failed and others.
        job: Ray's word for the job: PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED.
        message: what either has to say.
        job_id, cluster: their names, once there are any.
    """

    name: str
    digest: str
    deployment: str
    job: str
    message: str
    job_id: str
    cluster: str

    @property
    def ended(self) -> bool:
        """Whether nothing will happen any more."""
        return self.deployment in ENDED

    @property
    def over(self) -> bool:
        """Whether its job has ended; KubeRay may be about to start another."""
        return self.ended or self.deployment == "Retrying"

    def describe(self) -> str:
        """In a line."""
        words = [self.deployment or "not looked at yet", self.job, self.message]
        return f"{self.name}: {', '.join(word for word in words if word)}"


def submit(spec: JobSpec, *, show: Callable[[str], None]) -> None:
    """Starts the run, or finds it running; one that has ended is started again and goes on from its newest checkpoint.

    Raises:
        UserError: another spec runs under that name, or the cluster refuses it.
    """
    objects = render.job(spec)
    there = state(spec)
    if there is not None and not there.ended:
        if there.digest != spec.digest()[:16]:
            fix = "stop it first (jobs/cluster.py stop), or give this run another run.name"
            raise UserError(f"{there.describe()}; it runs with another spec", value=there.digest, fix=fix)
        show(f"{there.describe()}; already there")
        return
    if there is not None:
        show(f"{there.describe()}; starting it again")
        kubectl("delete", "rayjob", there.name, "--namespace", spec.kube.namespace, "--wait=true")
    show(kubectl("apply", "--filename", "-", given=render.to_yaml(objects)).strip())


def state(spec: JobSpec) -> State | None:
    """What is known of the run; None if the cluster does not know it."""
    name = object_name(spec.run.name)
    text = kubectl("get", "rayjob", name, "--namespace", spec.kube.namespace, "--ignore-not-found", "--output", "json")
    if not text.strip():
        return None
    one: Any = json.loads(text)
    return State(
        name=name,
        digest=str(get(one, "metadata", "labels", DIGEST_LABEL) or ""),
        deployment=str(get(one, "status", "jobDeploymentStatus") or ""),
        job=str(get(one, "status", "jobStatus") or ""),
        message=" ".join(str(get(one, "status", "message") or get(one, "status", "reason") or "").split())[:300],
        job_id=str(get(one, "status", "jobId") or ""),
        cluster=str(get(one, "status", "rayClusterName") or ""),
    )


def pods(spec: JobSpec) -> str:
    """The run's pods, as kubectl shows them."""
    there = state(spec)
    if there is None or not there.cluster:
        return ""
    return kubectl("get", "pods", "--namespace", spec.kube.namespace, "--selector", f"ray.io/cluster={there.cluster}").rstrip()


def follow(spec: JobSpec, *, show: Callable[[str], None]) -> int:
    """Shows states and the log until the run has ended; 0 if it finished or was stopped, else 1."""
    said, seen, job = "", 0, ""
    while True:
        there = state(spec)
        if there is None:
            show("the run is no longer there")
            return 1
        if there.job_id != job:
            job, seen = there.job_id, 0
        if there.over and job:
            seen = _log(spec, there, seen=seen, show=show)  # its last lines came after the last look
        if there.describe() != said:
            said = there.describe()
            show(said)
        if there.ended:
            return 0 if there.job in ("SUCCEEDED", "STOPPED") else 1
        if there.deployment == "Running" and job:
            seen = _log(spec, there, seen=seen, show=show)
        time.sleep(POLL_S)


def stop(spec: JobSpec, *, show: Callable[[str], None]) -> int:
    """Asks the run to save and end, and waits for it; deleting the RayJob instead would leave it the seconds of a pod's grace.

    KubeRay names job and cluster before there is a pod: only a job that has a status is there to be asked.

    Raises:
        UserError: there is no such run.
    """
    there = state(spec)
    if there is None or there.ended:
        raise UserError(f"no run {object_name(spec.run.name)} is under way", fix="see jobs/cluster.py status")
    if there.deployment == "Running" and there.job:
        show(_in_head(spec, there, "ray", "job", "stop", "--no-wait", there.job_id).strip())
        return follow(spec, show=show)
    show(kubectl("delete", "rayjob", there.name, "--namespace", spec.kube.namespace).strip())  # it has not begun
    return 0


def forget(spec: JobSpec) -> str:
    """Deletes every object of the run; its directory stays."""
    selector = f"{RUN_LABEL}={object_name(spec.run.name)}"
    return kubectl("delete", "rayjob,configmap", "--namespace", spec.kube.namespace, "--selector", selector).strip()


def _log(spec: JobSpec, there: State, *, seen: int, show: Callable[[str], None]) -> int:
    """Shows what the log has beyond the lines already seen; how many there are now."""
    try:
        text = _in_head(spec, there, "ray", "job", "logs", there.job_id)
    except UserError:  # the head is on its way, or on its way out: the state says so
        return seen
    lines = (text if there.over else text[: text.rfind("\n") + 1]).splitlines()  # the rest of a line that is being written comes later
    if len(lines) < seen:
        seen = 0  # another head, another log
    for line in lines[seen:]:
        show(line)
    return len(lines)


def _in_head(spec: JobSpec, there: State, *words: str) -> str:
    namespace = ["--namespace", spec.kube.namespace]
    selector = f"ray.io/cluster={there.cluster},ray.io/node-type=head"
    head = kubectl("get", "pods", *namespace, "--selector", selector, "--output", "jsonpath={.items[0].metadata.name}").strip()
    return kubectl("exec", head, *namespace, "--container", "ray-head", "--", *words)


def kubectl(*words: str, given: str | None = None) -> str:
    """What one kubectl command prints.

    Raises:
        UserError: there is no kubectl, or it fails.
    """
    if shutil.which("kubectl") is None:
        raise UserError("kubectl is not installed", fix="install it, or submit to a Ray address with --address")
    command: Sequence[str] = ["kubectl", *words]
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"kubectl {words[0]} did not answer in {_SECONDS} s", fix="see kubectl cluster-info") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[-400:]
        raise UserError(f"kubectl {' '.join(words[:3])} fails", value=said, fix="see kubectl config current-context, and k8s/README.md")
    return done.stdout
