"""Sends a run to a Ray that is there, over its job API; the same run is found again by its directory."""

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from iddpm_ray import storage
from iddpm_ray.cli import parse
from iddpm_ray.errors import SpecError, UserError
from iddpm_ray.kube.names import object_name
from iddpm_ray.spec.fields import as_plain, fields_of, value_of
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping

POLL_S = 1.0
PLACE, DIGEST = "iddpm/place", "iddpm/spec"
ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)
STOPPED_S = 330
# A head that has just started takes jobs a little later than it answers.
NO_AGENT, AGENT_S = "No available agent to submit job", 60


@dataclass(frozen=True)
class Remote:
    """The job API of a Ray: `http://HOST:8265`. A token is read from the environment, as Ray has it (RAY_AUTH_MODE, RAY_AUTH_TOKEN)."""

    client: JobSubmissionClient

    @classmethod
    def at(cls, address: str) -> "Remote":
        """Connects.

        Raises:
            UserError: nobody answers, or not to us.
        """
        try:
            return cls(JobSubmissionClient(address))
        except Exception as error:  # requests, gRPC and Ray each have kinds of their own
            if "authenti" in str(error).lower():
                fix = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's own (k8s/README.md says which Secret holds it)"
                raise UserError(f"the job API at {address} wants another token", value=_line(error), fix=fix) from None
            fix = "give the address of the dashboard, such as http://127.0.0.1:8265"
            raise UserError(f"no job API answers at {address}", value=_line(error), fix=fix) from None

    def jobs(self, spec: JobSpec) -> list[JobDetails]:
        """The jobs of the run, oldest first."""
        place = storage.join(spec.run.output_dir, spec.run.name)
        mine = [job for job in self.client.list_jobs() if (job.metadata or {}).get(PLACE) == place and job.submission_id]
        return sorted(mine, key=lambda job: job.start_time or 0)

    def running(self, spec: JobSpec) -> JobDetails | None:
        """The job that has the run now."""
        return next((job for job in reversed(self.jobs(spec)) if job.status not in ENDED), None)

    def submit(self, spec: JobSpec, *, working_dir: str | None, show: Callable[[str], None]) -> str:
        """Starts the run, or finds it running; the job's name.

        Args:
            working_dir: a directory with `jobs/` and `iddpm_ray/` to send along; None where the machines have them.

        Raises:
            UserError: another spec runs in that directory, or Ray refuses the job.
        """
        there, digest = self.running(spec), spec.digest()
        if there is not None:
            if (there.metadata or {}).get(DIGEST) != digest:
                fix = "stop it first (jobs/cluster.py stop), or give this run another run.name"
                raise UserError(f"job {there.submission_id} has this run with another spec", fix=fix)
            show(f"job {there.submission_id} has the run already")
            return str(there.submission_id)
        command = shlex.join(["python", "jobs/train.py", *as_overrides(spec)])
        number = len(self.jobs(spec)) + 1
        until = time.monotonic() + AGENT_S
        while True:
            try:
                name = self.client.submit_job(
                    entrypoint=f"exec {command}",
                    submission_id=f"{object_name(spec.run.name)}-{digest[:6]}-{number}",
                    metadata={PLACE: storage.join(spec.run.output_dir, spec.run.name), DIGEST: digest},
                    runtime_env={} if working_dir is None else {"working_dir": working_dir, "excludes": [".venv", ".git", "demo", "tests"]},
                )
                break
            except Exception as error:
                if NO_AGENT not in str(error) or time.monotonic() > until:
                    raise UserError("Ray does not take the job", value=_line(error), fix="see the address and its token") from None
            time.sleep(POLL_S)
        show(f"submitted as job {name}")
        return name

    def follow(self, name: str, *, show: Callable[[str], None]) -> int:
        """Shows the job's log until it has ended; 0 if it finished or was stopped, else 1."""
        seen, said = 0, ""
        while True:
            status = self.client.get_job_status(name)
            log = self.client.get_job_logs(name) if status != JobStatus.PENDING else ""
            whole = log if status in ENDED else log[: log.rfind("\n") + 1]
            for line in whole[seen:].splitlines():
                show(line)
            seen = max(seen, len(whole))
            if status != said:
                said = status
                show(f"job {name}: {status.value}")
            if status in ENDED:
                return 1 if status == JobStatus.FAILED else 0
            time.sleep(POLL_S)

    def stop(self, spec: JobSpec, *, show: Callable[[str], None]) -> int:
        """Asks the run to save and end, and waits for it.

        Raises:
            UserError: there is no such run.
        """
        there = self.running(spec)
        if there is None:
            raise UserError(f"no job has the run {spec.run.name}", fix="see jobs/cluster.py status")
        self.client.stop_job(str(there.submission_id))
        until = time.monotonic() + STOPPED_S
        while time.monotonic() < until:
            status = self.client.get_job_status(str(there.submission_id))
            if status in ENDED:
                show(f"job {there.submission_id}: {status.value}")
                return 0
            time.sleep(POLL_S)
        raise UserError(f"job {there.submission_id} did not end in {STOPPED_S} s", fix="see its log; it may still be saving")


def from_here(spec: JobSpec) -> JobSpec:
    """The spec with absolute local paths of its run and data: a job begins in another directory than the one it is sent from."""
    run = spec.run.model_copy(update={"output_dir": storage.absolute(spec.run.output_dir)})
    data = spec.data.model_copy(update={"path": storage.absolute(spec.data.path)})
    return spec.model_copy(update={"run": run, "data": data})


def as_overrides(spec: JobSpec) -> list[str]:
    """The spec as words of a command line: every field that has not its default, so that the job says itself what it runs.

    Raises:
        SpecError: a value cannot be written so.
    """
    required = {field.path: as_plain(value_of(spec, field)) for field in fields_of(JobSpec) if field.required}
    nested: dict[str, dict[str, Any]] = {}
    for path, value in required.items():
        section, _, name = path.partition(".")
        nested.setdefault(section, {})[name] = value
    usual = load_mapping(nested)
    words = [
        f"{field.path}={_word(as_plain(value_of(spec, field)))}"
        for field in fields_of(JobSpec)
        if field.required or as_plain(value_of(spec, field)) != as_plain(value_of(usual, field))
    ]
    again = parse(words).spec
    if again != spec:
        raise SpecError("a value of this spec cannot be sent as a word", fix="put the spec at a URL, and submit that with `ray job submit`")
    return words


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_word(one) for one in value)}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return storage.without_secrets(lines[0][:300]) if lines else type(error).__name__
