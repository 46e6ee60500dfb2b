"""Chunked work on Ray: actors that each take chunks in turn, are replaced when they die, and commit what they have done themselves."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from iddpm_ray import storage
from iddpm_ray.errors import SpecError, TrainError, UserError
from iddpm_ray.evaluate.chunks import Chunks, Work, Worker, work_here
from iddpm_ray.runtime import cluster
from iddpm_ray.runtime.original import original
from iddpm_ray.runtime.progress import signals_to
from iddpm_ray.sinks.bar import Bar

POLL_SECONDS = 0.5
OBJECT_STORE_GIB = 0.1  # only chunks' numbers travel


@dataclass(frozen=True)
class Pool:
    """The processes that do the work.

    Attributes:
        workers: how many; 0 for none but this process, without Ray.
        cpus, gpus: what Ray sets aside for each.
        threads: of torch in each; they decide how sums are rounded, so they belong to the settings of a job whose bytes count.
        max_failures: how often one worker in a row, or one chunk, may end its process before the job ends.
        address: of a Ray cluster; None for that of the environment, else an embedded one.
    """

    workers: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    threads: int = 1
    max_failures: int = 3
    address: str | None = None


def run_chunks(chunks: Chunks, worker: Worker, *, pool: Pool, unit: str) -> bool:
    """Does what is missing of a job and shows how far it is; SIGINT and SIGTERM end it, and the same call goes on.

    Args:
        unit: what the items are, for the progress bar: `pictures`.

    Returns:
        whether everything is done; False if somebody stopped it.

    Raises:
        UserError: the original error of a worker, or workers that die again and again.
        SpecError: the embedded Ray cannot seat the workers.
    """
    bar = Bar(unit)
    missing = chunks.missing()
    if not missing:
        return True
    if pool.workers == 0:
        return _here(chunks, worker, threads=pool.threads, bar=bar)
    with cluster.joined(pool.address, object_store_gib=OBJECT_STORE_GIB) as have:
        _check_fits(pool, have=have, embedded=cluster.address_of(pool.address) is None)
        cluster.check_shared(chunks.url, field="the output")
        crew = _Crew(chunks, worker, pool, missing=deque(missing), bar=bar)
        with signals_to(crew.stop, _say, first=_leaving(chunks)):
            try:
                crew.run()
            finally:
                crew.dismiss()
    return not chunks.missing()


def _here(chunks: Chunks, worker: Worker, *, threads: int, bar: Bar) -> bool:
    import torch

    def stop() -> None:
        raise KeyboardInterrupt

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with signals_to(stop, _say, first=_leaving(chunks)):
            work_here(chunks, worker, progress=bar)
    except KeyboardInterrupt:
        return False
    finally:
        torch.set_num_threads(before)
    return True


@ray.remote(max_restarts=0, max_task_retries=0)
class _Hand:
    """One process at work."""

    def __init__(self, threads: int) -> None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # read when torch is first imported
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        import torch

        torch.set_num_threads(threads)
        self._work: Work | None = None

    def open(self, worker: Worker) -> None:
        """Loads what the work needs."""
        self._work = worker.open()

    def do(self, chunks: Chunks, chunk: int) -> None:
        """Does a chunk and commits it."""
        assert self._work is not None
        chunks.commit(chunk, self._work(chunk))


@dataclass
class _Seat:
    """A place for a process, and who sits there.

    Attributes:
        chunk: in hand; None while the process starts.
        deaths: in a row, since a chunk was last done here.
        not_before: when the next process may be started, by the monotonic clock.
    """

    number: int
    actor: Any = None
    pending: ray.ObjectRef | None = None
    chunk: int | None = None
    deaths: int = 0
    not_before: float = 0.0


@dataclass
class _Crew:
    """Hands chunks to processes until none is left; `stop` may be called from a signal handler."""

    chunks: Chunks
    worker: Worker
    pool: Pool
    missing: deque[int]
    bar: Callable[[int, int], None]
    _seats: list[_Seat] = field(default_factory=list)
    _deaths: dict[int, int] = field(default_factory=dict)
    _stop: bool = False

    def stop(self) -> None:
        """Ends the work; what is in hand is lost."""
        self._stop = True

    def run(self) -> None:
        """Works until everything is done or somebody stops it.

        Raises:
            UserError: as `run_chunks`.
        """
        worker = ray.put(self.worker)
        self._seats = [_Seat(number) for number in range(min(self.pool.workers, len(self.missing)))]
        self._show()
        while not self._stop and (self.missing or any(seat.chunk is not None for seat in self._seats)):
            for seat in self._seats:
                self._occupy(seat, worker)
            waiting = {seat.pending: seat for seat in self._seats if seat.pending is not None}
            if not waiting:
                time.sleep(POLL_SECONDS)  # every process has died, and the next may not start yet
                continue
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS)
            for reference in ready:
                self._settle(waiting[reference])

    def dismiss(self) -> None:
        """Ends the processes."""
        for seat in self._seats:
            if seat.actor is not None:
                ray.kill(seat.actor)

    def _occupy(self, seat: _Seat, worker: ray.ObjectRef) -> None:
        """Starts a process where there is none, and gives a chunk to one that waits."""
        if seat.actor is None:
            if self.missing and time.monotonic() >= seat.not_before:
                seat.actor = _Hand.options(num_cpus=self.pool.cpus, num_gpus=self.pool.gpus).remote(self.pool.threads)  # pyright: ignore[reportAttributeAccessIssue]
                seat.pending = seat.actor.open.remote(worker)
        elif seat.pending is None and self.missing:
            seat.chunk = self.missing.popleft()
            seat.pending = seat.actor.do.remote(self.chunks, seat.chunk)

    def _settle(self, seat: _Seat) -> None:
        """Takes note of what a process has done, or how it ended."""
        reference, chunk = seat.pending, seat.chunk
        seat.pending = seat.chunk = None
        assert reference is not None
        try:
            ray.get(reference)
        except RayTaskError as error:
            raise _of_worker(original(error)) from None
        except RayError as error:
            self._replace(seat, chunk, error)
            return
        if chunk is not None:
            seat.deaths = 0
            self._show()

    def _replace(self, seat: _Seat, chunk: int | None, error: RayError) -> None:
        seat.actor = None
        if chunk is not None:
            self.missing.appendleft(chunk)
        if isinstance(error, RayActorError) and error.preempted:
            _say(f"worker {seat.number} went with its machine; going on")
            return
        seat.deaths += 1
        often = seat.deaths
        if chunk is not None:
            self._deaths[chunk] = self._deaths.get(chunk, 0) + 1
            often = max(often, self._deaths[chunk])
        at = "as it started" if chunk is None else f"at chunk {chunk}"
        if often > self.pool.max_failures:
            raise TrainError(
                f"worker {seat.number} died {at}, {often} times in a row",
                fix="see whether memory is short (fewer workers, a smaller --batch); what is done stays done",
            )
        pause_s = min(30.0, 2.0 ** (seat.deaths - 1))
        seat.not_before = time.monotonic() + pause_s
        _say(f"worker {seat.number} died {at}; starting another in {pause_s:g} s ({often} of {self.pool.max_failures} failures allowed)")

    def _show(self) -> None:
        left = [*self.missing, *(seat.chunk for seat in self._seats if seat.chunk is not None)]
        self.bar(self.chunks.count - sum(len(self.chunks.items(chunk)) for chunk in left), self.chunks.count)


def _of_worker(failure: BaseException) -> UserError:
    if isinstance(failure, UserError):
        return failure
    text = next(iter(str(failure).strip().splitlines()), "")
    return TrainError(f"a worker failed: {type(failure).__name__}: {storage.without_secrets(text)[:300]}")


def _check_fits(pool: Pool, *, have: cluster.Capacity, embedded: bool) -> None:
    if embedded and have.seats(cpus=pool.cpus, gpus=pool.gpus) < pool.workers:
        raise SpecError(
            f"{pool.workers} workers of {pool.cpus:g} CPUs and {pool.gpus:g} GPUs do not fit on this machine",
            value=f"{have.cpus:g} CPUs, {have.gpus:g} GPUs",
            fix="ask for fewer workers, or for less for each",
        )


def _leaving(chunks: Chunks) -> str:
    return f"leaving; what is done stays in {storage.shown(chunks.url)}, and the same command goes on from there"


def _say(text: str) -> None:
    print(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)
