"""How an attempt ended, out of what Ray Train returns or raises: the original error, and whether another try could help."""

from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2.api.exceptions import ControllerError, PreemptionError, WorkerGroupError

from iddpm_ray import storage
from iddpm_ray.errors import TrainError, UserError
from iddpm_ray.runtime.budget import Why
from iddpm_ray.runtime.original import original

# What the ranks that are left say when one of them has gone: not the cause.
_ECHOES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting", "Gloo connectFullMesh")


@dataclass(frozen=True)
class Ending:
    """How an attempt, and with it perhaps the run, ended.

    Attributes:
        why: `finished`; `stopped` (somebody asked); `preempted`, `grown` or `lost` (machines went or came); `failed` or `hung` (another
            try may help); `refused` (the same error would come again).
        step: updates completed, where known.
        error: what went wrong, with the rank it came from; None where nothing did.
        cause: why it ended, in a sentence for people; empty where `why` says it all.
        crowded: whether the workers found no room in time, though the cluster is large enough.
        died: whether a process or its connection was lost, and not the program's own error: perhaps its machine has gone.
    """

    why: Why
    step: int | None = None
    error: UserError | None = None
    cause: str = ""
    died: bool = False
    crowded: bool = False

    def describe(self, url: str) -> str:
        """One line for the person who started the run."""
        at = "" if self.step is None else f" at step {self.step}"
        return f"{self.why}{at}: {storage.shown(url)}" + ("" if self.why == "finished" else "; the same command goes on from there")


def classify(outcome: Any, error: BaseException | None) -> Ending:
    """The ending of an attempt.

    Args:
        outcome: what rank 0 returned, if it returned.
        error: what `fit` raised, if it raised.
    """
    if error is None:
        return Ending(outcome.why, outcome.step)
    if isinstance(error, WorkerGroupError):
        return _of_workers(error.worker_failures)
    if isinstance(error, PreemptionError):
        return Ending("preempted", cause="the machines went before the workers had left")
    if isinstance(error, ControllerError) and isinstance(error.controller_failure, WorkerGroupStartupTimeoutError):
        reason = "the workers did not all start within cluster.start_timeout_s"
        return Ending(
            "lost", error=TrainError(reason, fix="raise it, or see what else the cluster is busy with"), cause=reason, crowded=True
        )
    if isinstance(error, ControllerError):
        cause = original(error.controller_failure)
        said = _first_line(cause) if cause is error.controller_failure else f"{type(cause).__name__}: {_first_line(cause)}"
        return Ending("failed", error=TrainError(f"Ray could not start the workers, or lost them: {said}"))
    if isinstance(error, Exception):
        return Ending("failed", error=TrainError(f"{type(error).__name__}: {_first_line(error)}"))
    raise error


def _of_workers(failures: dict[int, Exception]) -> Ending:
    originals = {rank: original(failure) for rank, failure in sorted(failures.items())}
    for rank, failure in originals.items():
        if isinstance(failure, UserError):
            return Ending("refused", error=type(failure)(f"rank {rank}: {failure.what}", value=failure.value, fix=failure.fix))
    rank = min(originals, key=lambda rank: (any(echo in str(originals[rank]) for echo in _ECHOES), rank))
    failure = originals[rank]
    if type(failure).__name__ == "WorkerHealthCheckFailedError":
        return Ending("failed", error=TrainError(f"rank {rank}: its process has died"), died=True)
    died = isinstance(failure, RayError) or any(echo in str(failure) for echo in _ECHOES)
    return Ending("failed", error=TrainError(f"rank {rank}: {type(failure).__name__}: {_first_line(failure)}"), died=died)


def _first_line(error: BaseException) -> str:
    return storage.without_secrets(next(iter(str(error).strip().splitlines()), type(error).__name__))[:300]
