"""From a spec to a finished run: one worker group is one attempt, and the driver keeps count of them."""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from iddpm_ray import storage
from iddpm_ray.checkpoint.attempts import end_attempt
from iddpm_ray.errors import TrainError
from iddpm_ray.runtime import cluster, worker
from iddpm_ray.runtime.board import Board, News
from iddpm_ray.runtime.ending import Ending, classify
from iddpm_ray.runtime.progress import Display, signals_to
from iddpm_ray.runtime.stream import put_manifest
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.directory import Opening, take_place, write_run
from iddpm_ray.train.session import Wish

POLL_SECONDS = 0.3


def run(opening: Opening) -> Ending:
    """Trains on the job's cluster or an embedded Ray until finished or stopped, showing how it goes.

    Raises:
        UserError: what a person has to mend; the original error of a worker, with its rank.
    """
    spec = opening.spec
    storage.check_writable(opening.url)
    batch, rows = spec.train.global_batch, len(opening.manifest.training_rows)
    timed = spec.train.duration.unit == "minutes"
    display = Display(None if timed else spec.train.duration.samples(batch, rows), enabled=spec.log.progress)
    with cluster.connected(spec) as have:
        cluster.check_fits(spec, have=have)
        cluster.check_shared(opening.url)
        write_run(opening)
        driver = Driver(spec, opening, show=display.line, show_row=display.row)
        with signals_to(driver.stop, display.line):
            return driver.run()


@dataclass
class Driver:
    """The driver's side of a run; `stop` may be called from a signal handler."""

    spec: JobSpec
    opening: Opening
    show: Callable[[str], None]
    show_row: Callable[[dict[str, Any]], None]
    _stop: bool = False  # no Event: its lock may be held by the very thread that the signal interrupts

    def stop(self) -> None:
        """Asks the run to finish its step, save and end."""
        self._stop = True

    def run(self) -> Ending:
        """Attempts until the run is finished, stopped, or has failed too often.

        Raises:
            UserError: the original error, once trying again is pointless.
        """
        manifest = put_manifest(self.opening.manifest)
        failures = 0
        while True:
            ending = self._attempt(manifest)
            if ending.error is None:
                return ending
            if ending.why == "refused" or self._stop:
                raise ending.error
            failures += 1
            most = self.spec.cluster.max_failures
            if failures > most:
                raise TrainError(
                    f"{ending.error}; attempts that failed: {failures}",
                    fix="mend the cause, or raise cluster.max_failures; then start again",
                )
            self.show(f"attempt failed: {ending.error}; going on from the newest checkpoint ({failures} of {most} failures allowed)")
            self._pause(min(30.0, 0.5 * 2**failures))
            if self._stop:
                return Ending("stopped", ending.step)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stop and time.monotonic() < until:
            time.sleep(POLL_SECONDS)

    def _attempt(self, manifest: ray.ObjectRef) -> Ending:
        workers = cluster.check_fits(self.spec, have=cluster.capacity())
        place = take_place(self.opening, info={"workers": workers, "began": time.time()})
        board: Any = Board.remote()  # pyright knows no methods of a handle
        scratch = tempfile.mkdtemp(prefix="iddpm-")
        assignment = worker.Assignment(self.spec, place, board, [manifest])
        trainer = make_trainer(self.spec, assignment, workers=workers, scratch=scratch)
        box: dict[str, Any] = {}
        thread = threading.Thread(target=_fit, args=(trainer, box), daemon=True)  # the main thread keeps the signals
        thread.start()
        asked = False
        while thread.is_alive():
            thread.join(timeout=POLL_SECONDS)
            if self._stop and not asked:
                asked = True
                board.ask.remote(Wish.STOP)
            self._relay(board)
        self._relay(board)
        shutil.rmtree(scratch, ignore_errors=True)
        ray.kill(board)
        ending = classify(box.get("outcome"), box.get("error"))
        error = None if ending.error is None else str(ending.error)
        end_attempt(self.opening.url, place.attempt, info={"why": ending.why, "step": ending.step, "error": error, "ended": time.time()})
        return ending

    def _relay(self, board: Any) -> None:
        try:
            news: News = ray.get(board.news.remote(), timeout=5)
        except (GetTimeoutError, RayActorError):
            return
        for line in news.lines:
            self.show(line)
        if news.row is not None:
            self.show_row(news.row)


def make_trainer(spec: JobSpec, assignment: worker.Assignment, *, workers: int, scratch: str) -> TorchTrainer:
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
            name=f"{spec.run.name}-{assignment.place.attempt:04d}",
            storage_path=scratch,
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
            worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": str(spec.cluster.threads_per_worker)}},
        ),
        torch_config=TorchConfig(timeout_s=int(spec.cluster.collective_timeout_s)),
    )


def _fit(trainer: TorchTrainer, box: dict[str, Any]) -> None:
    try:
        box["outcome"] = trainer.fit().return_value
    except BaseException as error:  # a thread has no other way to hand it over
        box["error"] = error
