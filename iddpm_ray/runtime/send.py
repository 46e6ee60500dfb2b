"""A run is sent, looked up and stopped: over the job API of a Ray whose address is known, else through kubectl."""

from collections.abc import Callable

from iddpm_ray import storage
from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.errors import UserError
from iddpm_ray.kube import kubectl
from iddpm_ray.runtime.submit import Remote, from_here
from iddpm_ray.spec.spec import JobSpec

Show = Callable[[str], None]


def submit(spec: JobSpec, *, address: str | None, working_dir: str | None, detach: bool, show: Show) -> int:
    """Starts the run, or finds it running, and follows its log; 0 if it finished, was stopped, or is left to itself, else 1.

    Args:
        address: of a job API; None for Kubernetes.
        working_dir: as `Remote.submit` has it; of no use on Kubernetes, whose image has the code.
        detach: not to wait for the end.

    Raises:
        UserError: it cannot be sent.
    """
    if address is None:
        kubectl.submit(spec, show=show)
        return 0 if detach else kubectl.follow(spec, show=show)
    remote = Remote.at(address)
    name = remote.submit(from_here(spec), working_dir=working_dir, show=show)
    return 0 if detach else remote.follow(name, show=show)


def status(spec: JobSpec, *, address: str | None, show: Show) -> int:
    """Shows where the run is: what the cluster says of it, and its newest checkpoint; 0.

    Raises:
        UserError: nobody answers.
    """
    if address is None:
        there = kubectl.state(spec)
        said = "the cluster does not know the run" if there is None else f"{there.describe()}\n{kubectl.pods(spec)}".strip()
    else:
        jobs = Remote.at(address).jobs(from_here(spec))
        said = "\n".join(f"job {job.submission_id}: {job.status.value}" for job in jobs) or "no job has had the run"
    url = storage.join(spec.run.output_dir, spec.run.name)
    newest = max(complete(url), key=lambda one: (one.attempt, one.step), default=None)
    kept = "no checkpoint yet" if newest is None else f"newest checkpoint {newest.name}"
    show(f"{said}\n{storage.shown(url)}: {kept}")
    return 0


def stop(spec: JobSpec, *, address: str | None, forget: bool, show: Show) -> int:
    """Asks the run to save and end, and waits for it; 0 if it did.

    Args:
        forget: whether its objects are then deleted from Kubernetes, also of a run that has ended; the run's directory stays.

    Raises:
        UserError: it does not run; or it is not on Kubernetes and has no objects there.
    """
    if address is not None:
        if forget:
            fix = "leave --forget out, or --address and RAY_API_SERVER_ADDRESS"
            raise UserError("--forget deletes objects of Kubernetes, and this run is on a Ray", value=address, fix=fix)
        return Remote.at(address).stop(from_here(spec), show=show)
    if not forget:
        return kubectl.stop(spec, show=show)
    there = kubectl.state(spec)
    code = 0 if there is None or there.ended else kubectl.stop(spec, show=show)
    show(kubectl.forget(spec))
    return code
