"""How an attempt ended, out of what Ray Train returns or raises: the original error, and whether another try could help."""

from dataclasses import dataclass
from typing import Any

from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from iddpm_ray import storage
from iddpm_ray.errors import TrainError, UserError

# What the ranks that are left say when one of them has gone: not the cause.
_ECHOES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting", "Gloo connectFullMesh")


@dataclass(frozen=True)
class Ending:
    """How an attempt, and with it perhaps the run, ended.

    Attributes:
        why: `finished`, `stopped` (somebody asked), `failed` (another try may help) or `refused` (the same error would come again).
        step: updates completed, where known.
        error: what went wrong, with the rank it came from; None for the first two.
    """

    why: str
    step: int | None = None
    error: UserError | None = None

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
    if isinstance(error, ControllerError):
        return Ending("failed", error=TrainError(f"Ray could not start the workers, or lost them: {_first_line(error.controller_failure)}"))
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
        return Ending("failed", error=TrainError(f"rank {rank}: its process has died"))
    return Ending("failed", error=TrainError(f"rank {rank}: {type(failure).__name__}: {_first_line(failure)}"))


def original(failure: BaseException) -> BaseException:
    """The exception that the train function raised, out of what Ray wrapped around it."""
    while True:
        inner = getattr(failure, "_base_exc", None) or getattr(failure, "cause", None)
        if not isinstance(inner, BaseException) or inner is failure:
            return failure
        failure = inner


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
