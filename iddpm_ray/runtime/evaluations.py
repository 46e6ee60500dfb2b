"""Evaluations beside training: one at a time, only in room that nobody has declared a need for, given up the moment training wants it."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._private.state import state
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from iddpm_ray import storage
from iddpm_ray.checkpoint.commit import Checkpoint, complete
from iddpm_ray.checkpoint.scores import read_scores, running, say_running
from iddpm_ray.errors import TrainError
from iddpm_ray.evaluate.due import next_due
from iddpm_ray.runtime import cluster
from iddpm_ray.runtime.original import original
from iddpm_ray.spec.spec import JobSpec

LOOK_SECONDS = 5.0  # between two looks at the run's checkpoints
SEAT_SECONDS = 20.0  # a process that has no seat by then has lost its room to another, and must not wait for a new machine
MOST_TRIES = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Need:
    """Logical CPUs and GPUs."""

    cpus: float
    gpus: float


@ray.remote(max_restarts=0, max_task_retries=0)
class _Evaluator:
    """The process of one evaluation."""

    def __init__(self, threads: int) -> None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # read when torch is first imported: later, for a seat is waited for
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self._threads = threads

    def ready(self) -> None:
        """Answers once the process has its seat."""

    def evaluate(self, spec: JobSpec, run_url: str, checkpoint_url: str) -> dict[str, float]:
        """The metrics of a checkpoint."""
        import torch

        torch.set_num_threads(self._threads)

        from iddpm_ray.evaluate.assessed_run import evaluate_checkpoint

        return evaluate_checkpoint(spec, run_url=run_url, checkpoint_url=checkpoint_url)


@dataclass
class _Running:
    """An evaluation under way.

    Attributes:
        seated: answered once the process runs; None from then on.
    """

    checkpoint: Checkpoint
    actor: Any
    seated: ray.ObjectRef | None
    metrics: ray.ObjectRef
    began: float


@dataclass
class Evaluations:
    """The evaluations of one run, driven by its driver; nothing here waits but `finish`.

    Attributes:
        every: samples between two evaluations; None for a run without.
        show: for lines.
    """

    spec: JobSpec
    run_url: str
    every: int | None
    show: Callable[[str], None]
    _done: set[str] = field(default_factory=set)
    _tries: dict[str, int] = field(default_factory=dict)
    _running: _Running | None = None
    _kept: str | None = None
    _looked: float = float("-inf")
    _known: bool = False

    @classmethod
    def of(cls, spec: JobSpec, *, run_url: str, rows_per_epoch: int, show: Callable[[str], None]) -> "Evaluations":
        """Those that a spec asks for."""
        wanted = spec.evaluate.every
        every = None if wanted is None else wanted.samples(spec.train.global_batch, rows_per_epoch)
        return cls(spec, run_url, every, show)

    def tick(self) -> None:
        """Takes in what is finished, and begins what is due where there is room; called often, returns at once."""
        if self.every is None or time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            self._settle()
            if self._running is None and (checkpoint := self._next(finished=False)) is not None:
                node = free_node(self._need(), declared=declared(self.spec))
                if node is not None:
                    self._begin(checkpoint, node)
        except Exception as error:  # the store or Ray may raise anything; training does not end of it
            _log.warning("evaluations: %s", storage.reason(error))

    def make_room(self) -> None:
        """Ends what is under way, for training needs the room; it goes on later from what it has done."""
        if self._running is not None:
            self._end(self._running)

    def finish(self, *, over: Callable[[], bool] = lambda: False) -> None:
        """After the last step: evaluates the newest due and the last checkpoint if that has not been done, and waits for it.

        Args:
            over: whether somebody wants the job to end at once.
        """
        if self.every is None:
            return
        patience = time.monotonic() + cluster.patience(self.spec)
        while not over():
            try:
                self._settle()
                if self._running is None:
                    checkpoint = self._next(finished=True)
                    if checkpoint is None:
                        return
                    node = free_node(self._need(), declared=Need(0, 0))
                    if node is not None:
                        self.show(f"evaluating {checkpoint.name}")
                        self._begin(checkpoint, node)
                    elif time.monotonic() > patience:
                        need = self._need()
                        self.show(f"{checkpoint.name} was not evaluated: no node has {need.cpus:g} CPUs and {need.gpus:g} GPUs free")
                        return
                elif self._running.seated is None:
                    patience = time.monotonic() + cluster.patience(self.spec)
            except Exception as error:  # as above
                self.show(f"warning: evaluations ended: {storage.reason(error)}")
                return
            time.sleep(0.3)
        self.make_room()

    def _need(self) -> Need:
        return Need(self.spec.evaluate.cpus, self.spec.evaluate.gpus)

    def _next(self, *, finished: bool) -> Checkpoint | None:
        assert self.every is not None
        if not self._known:
            self._done |= {score.checkpoint.name for score in read_scores(self.run_url)}
            self._kept = running(self.run_url)  # of a driver that died
            self._known = True
        there = complete(self.run_url)
        due = next_due(there, every=self.every, global_batch=self.spec.train.global_batch, done=self._done, finished=finished)
        if self._kept is not None and (due is None or due.name != self._kept):
            self._keep(None)  # superseded, or done
        return due

    def _keep(self, name: str | None) -> None:
        """Says which checkpoint no sweep may delete: the one that was begun, until it is done or another takes its place."""
        say_running(self.run_url, name)
        self._kept = name

    def _begin(self, checkpoint: Checkpoint, node: str) -> None:
        wanted = self.spec.evaluate
        self._keep(checkpoint.name)
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": wanted.cpus, "num_gpus": wanted.gpus, "scheduling_strategy": here}
        actor: Any = _Evaluator.options(**options).remote(wanted.threads)  # pyright: ignore[reportAttributeAccessIssue]
        seated = actor.ready.remote()  # before the work, which keeps the process busy
        metrics = actor.evaluate.remote(self.spec, self.run_url, checkpoint.url)
        self._running = _Running(checkpoint, actor, seated, metrics, time.monotonic())

    def _settle(self) -> None:
        one = self._running
        if one is None:
            return
        if one.seated is not None and ray.wait([one.seated], timeout=0)[0]:
            one.seated = None
        name = one.checkpoint.name
        if one.seated is not None and time.monotonic() - one.began > SEAT_SECONDS:
            self._end(one)
            self._failed(name, TrainError(f"its process had no seat within {SEAT_SECONDS:g} s, {MOST_TRIES} times"))
            return
        if not ray.wait([one.metrics], timeout=0)[0]:
            return
        try:
            metrics = ray.get(one.metrics)
        except RayTaskError as error:
            self._give_up(name, original(error))
        except RayError as error:  # its process died; what it has done stays
            self._failed(name, error)
        else:
            self._done.add(name)
            self._book(one.checkpoint, metrics)
        self._end(one)

    def _end(self, one: _Running) -> None:
        self._running = None
        ray.kill(one.actor)

    def _failed(self, name: str, error: Exception) -> None:
        """Counts a try that came to nothing."""
        self._tries[name] = self._tries.get(name, 0) + 1
        if self._tries[name] >= MOST_TRIES:
            self._give_up(name, error)

    def _give_up(self, name: str, error: BaseException) -> None:
        self._done.add(name)
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        self.show(f"warning: {name} was not evaluated: {storage.without_secrets(text)[:300]}")

    def _book(self, checkpoint: Checkpoint, metrics: dict[str, float]) -> None:
        from iddpm_ray.sinks.evaluations import keep_evaluation  # imports torch, for which an evaluator's process has no time yet

        spec = self.spec
        keep_evaluation(self.run_url, checkpoint, metrics, global_batch=spec.train.global_batch, tensorboard=spec.log.tensorboard)
        self.show(f"{checkpoint.name}: {', '.join(f'{name} {value:.4g}' for name, value in metrics.items())}")


def declared(spec: JobSpec) -> Need:
    """What training may need at its largest."""
    workers, data = spec.cluster.worker_range()[1], spec.data
    cpus = workers * spec.cluster.cpus_per_worker + max(data.tasks, workers) * data.cpus_per_task
    return Need(cpus, workers * spec.cluster.gpus_per_worker)


def free_node(need: Need, *, declared: Need) -> str | None:
    """A live node that has this free now, if the cluster has it beyond what is declared; None otherwise."""
    have = cluster.capacity()
    if have.cpus - declared.cpus < need.cpus or have.gpus - declared.gpus < need.gpus:
        return None
    leaving = cluster.leaving_nodes()
    free = state.available_resources_per_node()
    for node in ray.nodes():
        name = node["NodeID"]
        own = free.get(name, {})
        if node["Alive"] and name not in leaving and own.get("CPU", 0.0) >= need.cpus and own.get("GPU", 0.0) >= need.gpus:
            return name
    return None
