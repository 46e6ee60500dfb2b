"""One attempt: a worker group from its start to its end, watched meanwhile for hangs and told what the driver wishes."""

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from iddpm_ray import storage
from iddpm_ray.checkpoint.attempts import end_attempt
from iddpm_ray.errors import TrainError
from iddpm_ray.runtime import cluster, worker
from iddpm_ray.runtime.board import Board, News
from iddpm_ray.runtime.ending import Ending, classify
from iddpm_ray.runtime.kill import kill_ranks
from iddpm_ray.runtime.pulse import Hang, Heard, find_hang, furthest_behind, where
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.directory import Place
from iddpm_ray.train.session import Wish

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.3
# Ray kills the ranks that stay when the machines of the others are due; they may still be writing what they saved.
PREEMPTION_GRACE_S = 10.0
# The dead actor is sometimes known before its dead node.
_NODE_DEATH_S = 1.5


@dataclass(frozen=True)
class Watch:
    """What the driver lends to an attempt.

    Attributes:
        wishes: asked several times a second, given the attempt's age in seconds and what the ranks that have spoken said last.
        lost: the reason to end at once without saving, if there is one.
        show, show_row: for lines and rows that come up.
        heard: told what is known of the ranks, as often.
    """

    wishes: Callable[[float, Mapping[int, Heard]], Wish]
    lost: Callable[[], Exception | None]
    show: Callable[[str], None]
    show_row: Callable[[dict[str, Any]], None]
    heard: Callable[[Mapping[int, Heard]], None] = lambda heard: None


def run_attempt(spec: JobSpec, place: Place, *, workers: int, manifest: ray.ObjectRef, watch: Watch) -> Ending:
    """Runs a worker group to its end, and writes down how it ended.

    Raises:
        Exception: what `watch.lost` gave.
    """
    began = time.time()
    board = _board()
    scratch = tempfile.mkdtemp(prefix="iddpm-")
    assignment = worker.Assignment(spec, place, board, [manifest], may_be_preempted=not cluster.embedded(spec))
    trainer = make_trainer(spec, assignment, workers=workers, scratch=scratch)
    box: dict[str, Any] = {}
    thread = threading.Thread(target=_fit, args=(trainer, box), daemon=True)  # the main thread keeps the signals
    thread.start()
    hang, heard, lost = _follow(thread, board, spec, watch, workers=workers)
    noticed = time.time()
    shutil.rmtree(scratch, ignore_errors=True)
    ray.kill(board)
    ending = _explained(classify(box.get("outcome"), box.get("error")), hang, heard, lost)
    _write_down(place, ending, began=began, noticed=noticed, heard=heard)
    if lost is not None:
        raise lost
    return ending


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
            failure_config=FailureConfig(
                max_failures=0, controller_failure_limit=0, max_preemption_failures=0, preemption_grace_s=PREEMPTION_GRACE_S
            ),
        ),
        torch_config=TorchConfig(timeout_s=int(spec.cluster.collective_timeout_s)),
    )


def _board() -> Any:
    """Beside the driver, so that it lives as long; pyright knows no methods of a handle."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Board.options(scheduling_strategy=here).remote()  # pyright: ignore[reportAttributeAccessIssue]


def _fit(trainer: TorchTrainer, box: dict[str, Any]) -> None:
    try:
        box["outcome"] = trainer.fit().return_value
    except BaseException as error:  # a thread has no other way to hand it over
        box["error"] = error


def _follow(
    thread: threading.Thread, board: Any, spec: JobSpec, watch: Watch, *, workers: int
) -> tuple[Hang | None, dict[int, Heard], Exception | None]:
    """Until the group has ended: hands wishes down and news up, and kills a group that hangs or has lost the run."""
    hang: Hang | None = None
    lost: Exception | None = None
    heard: dict[int, Heard] = {}
    asked, began, kill_again = Wish.NONE, time.monotonic(), 0.0
    spoken: float | None = None
    while thread.is_alive():
        thread.join(timeout=POLL_SECONDS)
        news = _news(board)
        heard = news.heard or heard
        spoken = time.monotonic() if spoken is None and heard else spoken
        since_s = 0.0 if spoken is None else time.monotonic() - spoken
        watch.heard(heard)
        _show(news, watch)
        wish = watch.wishes(time.monotonic() - began, heard) & ~asked
        if wish:
            asked |= wish
            board.ask.remote(wish)
        if hang is None and thread.is_alive():
            hang = find_hang(news.heard, timeout_s=spec.cluster.hang_timeout_s, workers=workers, since_s=since_s)
            if hang is not None:
                watch.show(f"hang: {hang.sentence}; ending this attempt")
        lost = lost or watch.lost()
        if (lost or hang) and heard and thread.is_alive() and time.monotonic() >= kill_again:
            kill_ranks(heard)
            kill_again = time.monotonic() + 10
    news = _news(board)
    _show(news, watch)
    return hang, news.heard or heard, lost


def _news(board: Any) -> News:
    try:
        return ray.get(board.news.remote(), timeout=5)
    except (GetTimeoutError, RayActorError):
        return News()


def _show(news: News, watch: Watch) -> None:
    for line in news.lines:
        watch.show(line)
    if news.row is not None:
        watch.show_row(news.row)


def _explained(ending: Ending, hang: Hang | None, heard: Mapping[int, Heard], lost: Exception | None) -> Ending:
    """The ending with what only the watcher knows: a hang it ended, machines that went, where the ranks were."""
    if lost is not None:
        return replace(ending, why="refused", cause="another driver has taken the run")
    if ending.why in ("finished", "stopped", "grown"):
        return ending
    if ending.why == "refused":
        return ending
    nodes = {rank: one.pulse.node for rank, one in heard.items()}
    gone = _gone(nodes) if ending.died or hang is not None or ending.why == "preempted" else {}
    if hang is not None and hang.rank not in gone:
        return Ending("hung", ending.step, TrainError(hang.sentence), cause=hang.sentence)
    if ending.why == "preempted" or (gone and any(one.pulse.notice is not None for one in heard.values())):
        who = [rank for rank, one in heard.items() if one.pulse.notice is not None and rank in (gone or nodes)]
        return Ending("preempted", ending.step, None, cause=ending.cause or f"the machines of ranks {_names(gone or who)} were taken away")
    if gone:
        return Ending("lost", ending.step, ending.error, cause=f"the machines of ranks {_names(gone)} died without notice")
    behind = furthest_behind(heard) if heard else None
    place = "" if behind is None else f"; rank {behind.rank} was {where(behind)}"
    error = ending.error and type(ending.error)(ending.error.what + place, value=ending.error.value, fix=ending.error.fix)
    return replace(ending, error=error, cause=str(error))


def _names(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _gone(nodes: Mapping[int, str]) -> dict[int, str]:
    """Ranks whose machines are dead or being drained; waits a little for Ray to learn of it."""
    until = time.monotonic() + _NODE_DEATH_S
    while True:
        gone = cluster.gone_nodes(nodes.values())
        if gone or time.monotonic() > until:
            return {rank: node for rank, node in nodes.items() if node in gone}
        time.sleep(POLL_SECONDS)


def _write_down(place: Place, ending: Ending, *, began: float, noticed: float, heard: Mapping[int, Heard]) -> None:
    steps = [one.pulse.report.get("step") for one in heard.values()]
    known = [step for step in steps if step is not None]
    info = {
        "why": ending.why,
        "cause": ending.cause,
        "error": None if ending.error is None else str(ending.error),
        "step": ending.step,
        "reached": max(known, default=ending.step),
        "began": began,
        "noticed": noticed,
        "ended": time.time(),
        "ranks": {str(rank): one.pulse.record() for rank, one in heard.items()},
    }
    try:
        end_attempt(place.url, place.attempt, info=info)
    except Exception as error:  # the run goes on without this record; the report says that it is missing
        _log.warning("how attempt %d ended could not be written down: %s", place.attempt, storage.reason(error))
