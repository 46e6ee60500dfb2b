"""Saves while training goes on: a short copy to host memory, then a thread that writes and commits over its own group."""

import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.checkpoint.commit import Checkpoint, checkpoint_at, delete_checkpoint
from iddpm_ray.checkpoint.dcp import Identity, LostContactError, save
from iddpm_ray.checkpoint.lease import FencedError
from iddpm_ray.checkpoint.shares import flatten, share
from iddpm_ray.checkpoint.snapshot import HostCopy, local_part
from iddpm_ray.errors import CheckpointError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SaveOutcome:
    """How a save ended; equal on all ranks, unless they lost contact.

    Attributes:
        step: updates completed in what was saved.
        committed: whether the checkpoint is there.
        name: of the checkpoint.
        seconds: from the start of the writing to the marker, on rank 0.
        bytes: of all its files.
        error: why it was not committed, in words; None if it was.
        lost_contact: the ranks could not agree, or one hangs: this saver and its group are of no more use.
        fenced: somebody else has taken the run, as `error` says: nothing of this attempt counts any more.
    """

    step: int
    committed: bool
    name: str
    seconds: float = 0.0
    bytes: int = 0
    error: str | None = None
    lost_contact: bool = False
    fenced: bool = False


@dataclass(frozen=True)
class _Job:
    checkpoint: Checkpoint
    tensors: Mapping[str, Tensor]
    host: Mapping[str, Tensor]
    identity: Identity
    extra_files: Mapping[str, bytes]
    outcome: "queue.SimpleQueue[SaveOutcome]" = field(default_factory=queue.SimpleQueue)


class AsyncSaver:
    """Saves the checkpoints of one attempt. Every rank of the group makes one, and calls it for the same steps.

    A save that fails on any rank fails on all of them, leaves nothing that anybody would read, and does not end the run:
    its outcome says why, and the next save is a new try.

    Args:
        run_url: the run's directory.
        attempt: this attempt's number, part of every checkpoint's name.
        group: a CPU group of the ranks that save, used by nothing else; None for a single process.
        spec_digest: of the run's identity fields.
        asynchronous: False saves before `start` returns, and copies nothing that is in host memory already.
        fence: on rank 0, when all is written and again just before the marker; raises FencedError if the run is somebody else's.
        before_mark: on rank 0, before the marker; raises if it must not be written.
        after_commit: on rank 0, after the marker, before the next save can begin: rows, retention. What it raises is logged.
        patience_s: how long `start` and `wait` wait for a save under way before they give it up as hung; None for ever. Longer
            than the group's own timeout, which ends a wait for other ranks.
    """

    def __init__(
        self,
        run_url: str,
        *,
        attempt: int,
        group: dist.ProcessGroup | None,
        spec_digest: str,
        asynchronous: bool = True,
        fence: Callable[[], None] | None = None,
        before_mark: Callable[[], None] | None = None,
        after_commit: Callable[[Checkpoint], None] | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._run_url = run_url
        self._attempt = attempt
        self._group = group
        self._spec_digest = spec_digest
        self._asynchronous = asynchronous
        self._fence = fence
        self._before_mark = before_mark
        self._after_commit = after_commit
        self._rank = 0 if group is None else dist.get_rank(group)
        self._world_size = 1 if group is None else dist.get_world_size(group)
        self._copy = HostCopy()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._patience_s = patience_s
        self._under_way: _Job | None = None
        self._hung = False
        self._committed_step: int | None = None
        self._thread: threading.Thread | None = None

    def start(
        self, step: int, *, samples_seen: int, tensors: Mapping[str, Any], extra_files: Mapping[str, bytes] | None = None
    ) -> SaveOutcome | None:
        """Copy the state and begin to save it; waits first for a save under way.

        Args:
            step: updates completed.
            samples_seen: step x global_batch.
            tensors: nested dict, the same names and shapes on all ranks. Training may change them once this returns.
            extra_files: what else belongs into the checkpoint, by name; only rank 0's are written.

        Returns:
            The outcome of the save before, if `wait` has not given it yet.
        """
        before = self.wait()
        named = flatten(tensors)
        own = share(named, rank=self._rank, world_size=self._world_size)
        if self._hung:
            host = {}  # its copy is still being read
        elif self._asynchronous or any(tensor.device.type != "cpu" for tensor in own.values()):
            host = self._copy.take(own)
        else:
            host = {name: local_part(tensor).contiguous() for name, tensor in own.items()}
        checkpoint = checkpoint_at(self._run_url, step=step, attempt=self._attempt)
        job = _Job(checkpoint, named, host, Identity(samples_seen, self._spec_digest), dict(extra_files or {}))
        self._under_way = job
        if self._hung:
            job.outcome.put(SaveOutcome(step, False, checkpoint.name, error="an earlier save still hangs", lost_contact=True))
        elif self._asynchronous:
            self._begin_thread()
            self._jobs.put(job)
        else:
            job.outcome.put(self._save(job))
        return before

    def wait(self) -> SaveOutcome | None:
        """The outcome of the last save, once it is over; None if there is none or it was given before."""
        job, self._under_way = self._under_way, None
        if job is None:
            return None
        try:
            return job.outcome.get(timeout=self._patience_s)
        except queue.Empty:
            self._hung = True
            error = f"{job.checkpoint.name} is still being written after {self._patience_s:.0f} s; no more can be saved by this group"
            return SaveOutcome(job.checkpoint.step, False, job.checkpoint.name, error=error, lost_contact=True)

    def close(self) -> SaveOutcome | None:
        """Wait, and let the thread end (a hung one ends with the process)."""
        outcome = self.wait()
        if self._thread is not None:
            self._jobs.put(None)
            if not self._hung:
                self._thread.join()
            self._thread = None
        return outcome

    def _begin_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="checkpoint-saver", daemon=True)  # a hung store must not keep a process
            self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.outcome.put(self._save(job))

    def _save(self, job: _Job) -> SaveOutcome:
        name, step = job.checkpoint.name, job.checkpoint.step
        if step == self._committed_step:  # already there, and marked: its files are not to be touched
            return SaveOutcome(step, True, name)
        began = time.monotonic()
        try:
            saved = save(
                job.checkpoint,
                tensors=job.tensors,
                host=job.host,
                identity=job.identity,
                extra_files=job.extra_files,
                group=self._group,
                fence=self._fence,
                before_mark=self._before_mark,
            )
        except LostContactError as error:
            return SaveOutcome(step, False, name, time.monotonic() - began, error=str(error), lost_contact=True)
        except FencedError as error:  # what lies there is left to the sweeps of those who have the run now
            return SaveOutcome(step, False, name, time.monotonic() - began, error=str(error), fenced=True)
        except CheckpointError as error:
            self._clear(job.checkpoint)
            return SaveOutcome(step, False, name, time.monotonic() - began, error=str(error))
        except Exception as error:  # a mistake of ours on this rank; the others will lose contact, training need not end
            _log.error("saving %s failed\n%s", name, storage.without_secrets(traceback.format_exc()))
            return SaveOutcome(step, False, name, time.monotonic() - began, error=storage.reason(error), lost_contact=True)
        self._committed_step = step
        if self._rank == 0 and self._after_commit is not None:
            try:
                self._after_commit(job.checkpoint)
            except Exception:  # the checkpoint is there; rows and retention are made up for by the next one
                _log.error("after the commit of %s\n%s", name, storage.without_secrets(traceback.format_exc()))
        return SaveOutcome(step, True, name, saved.seconds, saved.bytes)

    def _clear(self, checkpoint: Checkpoint) -> None:
        """All ranks know that nothing was marked: give the space back, since a full disk may be why."""
        if self._rank == 0:
            try:
                delete_checkpoint(checkpoint)
            except Exception as error:  # the sweep after the next commit does it
                _log.warning("%s was not committed and could not be cleared away: %s", checkpoint.name, storage.reason(error))
