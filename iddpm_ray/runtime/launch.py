"""From a spec to a finished run: one worker group is one attempt, and the driver keeps count of them."""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError, WorkerGroupError

from iddpm_ray.errors import TrainError, UserError
from iddpm_ray.runtime import cluster, worker
from iddpm_ray.runtime.board import Board
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.directory import Opening, begin_attempt, end_attempt
from iddpm_ray.train.session import Wish


@dataclass(frozen=True)
class Ending:
    """How an attempt, and with it perhaps the run, ended.

    Attributes:
        why: `finished`, `stopped` (somebody asked), `failed` (try again) or `refused` (the same error would come again).
        step: updates completed, if known.
        error: what went wrong, with the rank it came from.
    """

    why: str
    step: int | None = None
    error: Exception | None = None


@dataclass
class Driver:
    """The driver's side of a run; `stop` may be called from a signal handler."""

    spec: JobSpec
    opening: Opening
    show: Callable[[str], None]
    show_row: Callable[[dict[str, Any]], None]
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Asks the run to finish its step, save and end."""
        self._stop.set()

    def run(self, have: cluster.Capacity) -> Ending:
        """Attempts until the run is finished, stopped, or has failed too often.

        Raises:
            UserError: the original error, once trying again is pointless.
        """
        failures = 0
        while True:
            ending = self._attempt(have)
            if ending.why in ("finished", "stopped"):
                return ending
            assert ending.error is not None
            failures += 1
            if ending.why == "refused":
                raise ending.error
            if failures > self.spec.cluster.max_failures:
                raise TrainError(f"the run failed {failures} times, the last time with: {ending.error}", fix="raise cluster.max_failures once the cause is mended")
            if self._stop.is_set():
                return Ending("stopped", ending.step)
            self.show(f"attempt failed ({failures} of {self.spec.cluster.max_failures} allowed): {ending.error}; starting again from the newest checkpoint")
            time.sleep(min(30.0, 0.5 * 2**failures))
            have = cluster.capacity()

    def _attempt(self, have: cluster.Capacity) -> Ending:
        workers = cluster.check_fits(self.spec, have=have)
        attempt = begin_attempt(self.opening, workers=workers)
        board = Board.remote()
        scratch = tempfile.mkdtemp(prefix="iddpm-")
        trainer = _trainer(self.spec, worker.Assignment(self.spec, self.opening, attempt, board), workers=workers, scratch=scratch)
        box: dict[str, Any] = {}
        thread = threading.Thread(target=_fit, args=(trainer, box), daemon=True)
        thread.start()
        asked = False
        try:
            while thread.is_alive():
                thread.join(timeout=0.3)
                if self._stop.is_set() and not asked:
                    asked = True
                    board.ask.remote(Wish.STOP)
                self._relay(board)
            self._relay(board)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        ending = _classify(box)
        end_attempt(self.opening, attempt, why=ending.why, step=ending.step, error=None if ending.error is None else str(ending.error))
        ray.kill(board)
        return ending

    def _relay(self, board: Any) -> None:
        try:
            news = ray.get(board.news.remote(), timeout=5)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
            return
        for line in news.lines:
            self.show(line)
        if news.row is not None:
            self.show_row(news.row)


def _trainer(spec: JobSpec, assignment: worker.Assignment, *, workers: int, scratch: str) -> TorchTrainer:
    """Everything Ray is told; it keeps no state of ours and restarts nothing by itself."""
    resources = {"CPU": spec.cluster.cpus_per_worker}
    if spec.cluster.gpus_per_worker:
        resources["GPU"] = spec.cluster.gpus_per_worker
    return TorchTrainer(
        worker.run,
        train_loop_config={"assignment": assignment},
        scaling_config=ScalingConfig(
            num_workers=workers,
            use_gpu=spec.cluster.gpus_per_worker > 0,
            resources_per_worker=resources,
            placement_strategy=spec.cluster.placement.upper(),
            accelerator_type=spec.cluster.accelerator_type,
        ),
        run_config=RunConfig(
            name=f"{spec.run.name}-{assignment.attempt:04d}",
            storage_path=scratch,
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
            worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": str(spec.cluster.threads_per_worker)}},
        ),
        torch_config=TorchConfig(timeout_s=int(spec.cluster.collective_timeout_s)),
    )


def _fit(trainer: TorchTrainer, box: dict[str, Any]) -> None:
    try:
        box["result"] = trainer.fit().return_value
    except BaseException as error:  # the thread's only way to hand it over
        box["error"] = error


def _classify(box: dict[str, Any]) -> Ending:
    error = box.get("error")
    if error is None:
        outcome = box["result"]
        return Ending(outcome.why, outcome.step)
    if isinstance(error, WorkerGroupError):
        for rank, failure in sorted(error.worker_failures.items()):
            original = original_error(failure)
            if isinstance(original, UserError):
                return Ending("refused", error=original)
        rank, failure = min(error.worker_failures.items(), key=lambda item: _is_echo(item[1]))
        original = original_error(failure)
        return Ending("failed", error=TrainError(f"rank {rank}: {type(original).__name__}: {original}"))
    if isinstance(error, ControllerError):
        return Ending("failed", error=TrainError(f"Ray could not start or keep the workers: {error.controller_failure}"))
    if isinstance(error, TrainingFailedError):
        return Ending("failed", error=TrainError(str(error).splitlines()[0]))
    raise error


def original_error(failure: BaseException) -> BaseException:
    """The exception that a person's own code raised, out of whatever Ray wrapped around it."""
    seen: BaseException = failure
    while True:
        inner = getattr(seen, "_base_exc", None) or getattr(seen, "cause", None)
        if not isinstance(inner, BaseException) or inner is seen:
            return seen
        seen = inner


def _is_echo(failure: BaseException) -> bool:
    """Whether a failure only says that another rank went away."""
    text = str(failure)
    return any(sign in text for sign in ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe"))
