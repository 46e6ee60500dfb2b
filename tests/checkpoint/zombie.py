"""One attempt as a process of its own, which stops itself in the middle of its save, like a machine that sleeps, and can be continued."""

import json
import os
import signal
import time
from pathlib import Path

import torch

from iddpm_ray import storage
from iddpm_ray.checkpoint import dcp, lease, writer
from iddpm_ray.checkpoint.attempts import begin_attempt, take_attempt
from iddpm_ray.checkpoint.commit import Checkpoint
from iddpm_ray.checkpoint.fence import check_fence
from iddpm_ray.checkpoint.restore import restore_newest
from iddpm_ray.checkpoint.retention import sweep
from iddpm_ray.checkpoint.saver import AsyncSaver

DIGEST = "d" * 64


def live(run_url: str, step: int, report: str, gate: str = "") -> None:
    """Takes the run over, begins from the newest checkpoint, saves one more and sweeps.

    Args:
        report: a file that gets, as JSON, how the save ended.
        gate: SIGSTOP to itself when it is about to write, or "delete", a path that contains this.
    """
    held = lease.take_lease(run_url, holder=f"process {os.getpid()}", stale_after_s=1.0)
    number = take_attempt(run_url, info={})
    restored = restore_newest(run_url, allocate=lambda _: {"a": torch.zeros(1000)}, spec_digest=DIGEST, group=None)
    begin_attempt(run_url, number, began_from=restored.checkpoint, info={})
    stopped = []

    def sleep_before(name: str) -> None:
        if gate and gate in name and not stopped:
            stopped.append(name)
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.5)  # a signal takes a moment, on a busy machine a long one, to stop the thread that sent it

    put, write_whole, write_checked, delete = writer._put, storage.write_whole, storage.write_checked, storage.delete

    def gated_put(url: str, views: list[memoryview]) -> object:
        sleep_before(url)
        return put(url, views)

    def gated_write(url: str, data: bytes) -> None:
        sleep_before(url)
        write_whole(url, data)

    def gated_check(url: str, data: bytes) -> None:
        sleep_before(url)
        write_checked(url, data)

    def gated_delete(url: str) -> None:
        sleep_before("delete")
        delete(url)

    writer._put = gated_put  # type: ignore[assignment]
    dcp.storage.write_whole = gated_write  # type: ignore[assignment]
    storage.write_checked = gated_check  # type: ignore[assignment]
    storage.delete = gated_delete  # type: ignore[assignment]

    def fence() -> None:
        check_fence(run_url, number, lease=held)

    def tidy(checkpoint: Checkpoint) -> None:
        sweep(run_url, attempt=number, keep_last=1, keep_every=None, global_batch=1, fence=fence)

    saver = AsyncSaver(run_url, attempt=number, group=None, spec_digest=DIGEST, fence=fence, after_commit=tidy)
    saver.start(step, samples_seen=step, tensors={"a": torch.arange(1000.0) + step}, extra_files={"state.json": b"{}"})
    outcome = saver.close()
    assert outcome is not None
    began = restored.checkpoint.name if restored.checkpoint else None
    said = {"began": began, "committed": outcome.committed, "fenced": outcome.fenced, "error": outcome.error, "attempt": number}
    lease.release(held)
    Path(report).write_text(json.dumps(said))
