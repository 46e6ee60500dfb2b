"""From a spec to a finished run: one worker group is one attempt, and the driver keeps count of them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from iddpm_ray import signals, storage
from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.errors import SpecError, TrainError, UserError
from iddpm_ray.runtime import cluster
from iddpm_ray.runtime.attempt import POLL_SECONDS, Watch, run_attempt
from iddpm_ray.runtime.budget import Budget
from iddpm_ray.runtime.ending import Ending
from iddpm_ray.runtime.evaluations import Evaluations
from iddpm_ray.runtime.growth import Demand
from iddpm_ray.runtime.hold import Hold, take_hold
from iddpm_ray.runtime.hours import Job, job_of
from iddpm_ray.runtime.metrics import RunMetrics, published
from iddpm_ray.runtime.progress import Display, signals_to
from iddpm_ray.runtime.pulse import Heard
from iddpm_ray.runtime.stream import keep_ray_data_here, put_manifest
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.storage.transient import is_transient
from iddpm_ray.train.directory import Opening, asked, take_place, write_run
from iddpm_ray.train.session import Wish

T = TypeVar("T")

FIRST_WAIT_S = 5.0
LONGEST_WAIT_S = 60.0
_SHORTEST_REST_S = 30.0


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
        if cluster.embedded(spec):
            cluster.check_fits(spec, have=have)  # it will never be larger
        else:
            keep_ray_data_here()  # so that idle machines of workers are given back after the run
        asked(opening.url, lambda: _check_shared(opening.url), doing="written")
        driver = Driver(spec, opening, show=display.line, show_row=display.row)
        with signals_to(driver.stop, display.line):  # from before the lease is taken: an interrupt would leave it behind
            try:
                return _drive(driver, rows=rows)
            except UserError as error:
                signals.ended(f"error: {error}", code=2)
                raise


def _check_shared(url: str) -> None:
    """As `cluster.check_shared`.

    Raises:
        SpecError: also where a node does not answer.
    """
    try:
        cluster.check_shared(url)
    except RayError as error:
        what = f"a machine of the cluster could not look at {storage.shown(url)} ({type(error).__name__})"
        raise SpecError(what, fix="see that every machine of `ray status` starts tasks, then start again") from error


@dataclass
class Driver:
    """The driver's side of a run; `stop` may be called from a signal handler."""

    spec: JobSpec
    opening: Opening
    show: Callable[[str], None]
    show_row: Callable[[dict[str, Any]], None]
    hold: Hold | None = None
    evaluations: Evaluations | None = None
    metrics: RunMetrics | None = None
    job: Job = field(default_factory=Job)
    _stop: bool = False  # no Event: its lock may be held by the very thread that the signal interrupts
    _began: float = field(default_factory=time.monotonic)
    _begun: bool = False

    def stop(self) -> None:
        """Asks the run to finish its step, save and end."""
        self._stop = True

    def begins(self) -> None:
        """Its hours count from here."""
        self._began = time.monotonic()

    def stopped(self) -> bool:
        """Whether somebody asked for the end."""
        return self._stop

    def run(self) -> Ending:
        """Attempts until the run is finished, stopped, or has failed too often.

        Raises:
            UserError: the original error, once trying again is pointless.
        """
        manifest = put_manifest(self.opening.manifest)
        budget = Budget(self.spec.cluster.max_failures, self.spec.cluster.max_fruitless)
        while True:
            before = self._newest()
            ending = self._attempt(manifest)
            if ending.why in ("finished", "stopped"):
                return ending
            if ending.why in ("preempted", "grown", "lost") and self._over():
                return Ending("stopped", self._newest()[1])
            if ending.error is not None and (ending.why == "refused" or self._over()):
                raise ending.error
            crowded = ending.crowded and before > (0, 0)
            verdict = budget.after(ending.why, progressed=self._newest() > before, crowded=crowded)
            if not verdict.again:
                raise TrainError(
                    f"{ending.error or ending.cause}; {verdict.account}", fix="mend the cause, or raise that limit; then start again"
                )
            self.show(f"{_told(ending)}; going on from the newest checkpoint" + (f" ({verdict.account})" if verdict.account else ""))
            self._pause(verdict.pause_s)
            if self._over():
                return Ending("stopped", self._newest()[1])

    def _over(self) -> bool:
        """Whether the run is to end: somebody asked, or its hours are up."""
        hours = self.spec.cluster.max_hours
        return self._stop or (hours is not None and self.job.spent_s + self._age_s() >= 3600 * hours)

    def _age_s(self) -> float:
        return time.monotonic() - self._began

    def _newest(self) -> tuple[int, int]:
        """Attempt and step of the last complete checkpoint; not the highest step, which may be damaged and behind us."""
        kept = self._insist(lambda: complete(self.opening.url))
        return max(((checkpoint.attempt, checkpoint.step) for checkpoint in kept), default=(0, 0))

    def _insist(self, ask: Callable[[], T]) -> T:
        """What the storage answers; a run that has begun waits for its storage as it waits for its machines.

        Raises:
            TrainError: the storage fails, and the run has not begun or is to end.
        """
        wait_s = FIRST_WAIT_S
        while True:
            try:
                return ask()
            except Exception as error:  # tried again for half a minute by now
                if not isinstance(error, OSError) and not is_transient(error):
                    raise
                why = f"the storage of the run fails: {storage.reason(error)}"
                if not self._begun or self._over():
                    fix = "mend it and start again: the run goes on from its newest checkpoint"
                    raise TrainError(why, value=self.opening.url, fix=fix) from error
                self.show(f"{why}; trying again in {wait_s:.0f} s")
            self._pause(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._over() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)

    def _attempt(self, manifest: ray.ObjectRef) -> Ending:
        if self.evaluations is not None:
            self.evaluations.make_room()
        workers = self._room()
        if workers == 0:
            return Ending("stopped", self._newest()[1])
        lease = None if self.hold is None else self.hold.lease
        info = {"workers": workers, "began": time.time(), "driver": None if lease is None else lease.term}
        info |= self.job.record(self._age_s())
        place = self._insist(lambda: take_place(self.opening, info=info, lease=lease))
        self._begun = True
        missing = 0 if cluster.embedded(self.spec) else self.spec.cluster.worker_range()[1] - workers
        demand, replacement = Demand(self.spec, missing=missing), Demand(self.spec, missing=0)

        def wishes(age_s: float, heard: Mapping[int, Heard]) -> Wish:
            replacement.ask(_leaving(heard))  # while the old machines still live
            return self._wishes(demand, age_s=age_s, seated=len(heard) == workers, workers=workers)

        watch = Watch(
            wishes=wishes,
            lost=lambda: None if self.hold is None else self.hold.lost,
            show=self.show,
            show_row=self._row,
            heard=(lambda heard: None) if self.metrics is None else self.metrics.heard,
        )
        if self.metrics is not None:
            self.metrics.begins(place.attempt)
        try:
            return run_attempt(self.spec, place, workers=workers, manifest=manifest, watch=watch)
        finally:
            demand.release()
            replacement.release()
            if self.metrics is not None:
                self.metrics.ended()

    def _row(self, row: dict[str, Any]) -> None:
        self.show_row(row)
        if self.metrics is not None:
            self.metrics.row(row)

    def _wishes(self, demand: Demand, *, age_s: float, seated: bool, workers: int) -> Wish:
        wish = Wish.STOP if self._over() else Wish.NONE
        if seated and self.evaluations is not None:
            self.evaluations.tick()
        if seated:
            demand.make()  # sooner it would take the seats of this attempt's own workers
        if age_s >= self.spec.cluster.grow_every_s and demand.came():
            if self._seats() > workers:
                wish |= Wish.LEAVE
            else:
                # What came is no room for a worker, but may be what the decoding of pictures needs.
                demand.rest(max(self.spec.cluster.grow_every_s, _SHORTEST_REST_S))
        return wish

    def _seats(self) -> int:
        """How many workers the cluster could seat now; 0 where not even the smallest number."""
        try:
            return self._workers_now()
        except SpecError:
            return 0

    def _workers_now(self) -> int:
        return cluster.check_fits(self.spec, have=cluster.capacity(self.spec.cluster.accelerator_type))

    def _room(self) -> int:
        """Workers for the next attempt; waits for machines where the cluster may get some. 0: the run is to end instead.

        Raises:
            SpecError: there is no room, and none came in `cluster.start_timeout_s`; only before the first attempt.
        """
        try:
            return self._workers_now()
        except SpecError as error:
            if cluster.embedded(self.spec):
                raise
            refusal = error
        patience = cluster.patience(self.spec)
        limit = "" if self._begun else f" up to {patience} s (cluster.start_timeout_s)"
        self.show(f"waiting{limit} for room: {refusal.what}")
        demand = Demand(self.spec, missing=self.spec.cluster.worker_range()[1])
        demand.make()
        try:
            until = time.monotonic() + patience
            while (self._begun or time.monotonic() < until) and not self._over():  # a run that has begun waits for its machines
                time.sleep(POLL_SECONDS)
                try:
                    return self._workers_now()
                except SpecError as error:
                    refusal = error
        finally:
            demand.release()
        if self._over():
            return 0
        raise SpecError(
            f"no room came in {patience} s (cluster.start_timeout_s): {refusal.what}",
            fix="see why machines do not come (none to be had, a quota, a group's maxReplicas; `kubectl describe pod` tells of a pod that "
            "is Pending), or ask for less: cluster.workers, cluster.cpus_per_worker, data.tasks or data.cpus_per_task",
        )


def _drive(driver: Driver, *, rows: int) -> Ending:
    """Takes the run, and trains until it ends.

    Raises:
        KeyboardInterrupt: it is to end, and no attempt was begun.
    """
    if signals.seen():
        raise KeyboardInterrupt
    spec, opening, show = driver.spec, driver.opening, driver.show
    driver.hold = asked(opening.url, lambda: take_hold(opening.url, say=show, stopped=driver.stopped), doing="taken")
    try:
        driver.begins()
        asked(opening.url, lambda: write_run(opening), doing="written")
        for line in opening.adopted:
            show(line)
        evaluations = driver.evaluations = Evaluations.of(spec, run_url=opening.url, rows_per_epoch=rows, show=show)
        driver.job = asked(opening.url, lambda: job_of(opening.url))
        if driver.stopped() or signals.seen():
            raise KeyboardInterrupt
        with published(spec, run_url=opening.url, rows_per_epoch=rows) as driver.metrics:
            ending = driver.run()
        if ending.why == "finished":
            evaluations.finish(over=driver._over)
        signals.ended(ending.describe(opening.url), code=0)
        return ending
    finally:
        driver.hold.release()


def _leaving(heard: Mapping[int, Heard]) -> int:
    """How many ranks sit on machines that are being taken away; nobody is asked before a rank has had notice."""
    if all(one.pulse.notice is None for one in heard.values()):
        return 0
    gone = cluster.leaving_nodes()
    return sum(one.pulse.node in gone for one in heard.values())


def _told(ending: Ending) -> str:
    """An ending that is not the run's, for the person watching."""
    match ending.why:
        case "grown":
            return f"room for more workers: saved step {ending.step}"
        case "preempted":
            return f"preempted: {ending.cause}"
        case "lost" if ending.crowded:
            return f"no room: {ending.cause}"
        case "lost":
            return f"machine lost: {ending.cause}"
        case _:
            return f"attempt failed: {ending.error}"
