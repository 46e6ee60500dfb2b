"""The ranks of a replay: this process where the run had one worker, as many processes of this machine where it had more."""

import multiprocessing
import pickle
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from iddpm_ray.errors import TrainError, UserError
from iddpm_ray.evaluate.replay import Plan, Replayed, replay_rank


def replay_all(plan: Plan) -> list[Replayed]:
    """What every rank saw, in rank order.

    Raises:
        UserError: what a rank met.
        TrainError: a rank died.
    """
    size = plan.world_size
    gpus = torch.cuda.device_count() if plan.spec.cluster.gpus_per_worker else 0
    if size == 1:
        return [replay_rank(plan, rank=0, world_size=1, device=torch.device("cuda" if gpus else "cpu"))]
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        context = multiprocessing.get_context("spawn")
        # A daemon dies with this process, whatever ends it.
        ranks = [context.Process(target=_rank, args=(plan, rank, folder, gpus >= size), daemon=True) for rank in range(size)]
        for process in ranks:
            process.start()
        try:
            _wait(ranks, Path(folder))
            return [_read(Path(folder), rank, process) for rank, process in enumerate(ranks)]
        finally:
            for process in ranks:
                if process.is_alive():
                    process.kill()
                process.join(10)


def _wait(ranks: Sequence[BaseProcess], folder: Path) -> None:
    """Until all have ended, or one has failed: the others would wait for it."""
    while any(process.is_alive() for process in ranks):
        for rank, process in enumerate(ranks):
            if process.exitcode not in (None, 0):
                _read(folder, rank, process)
        time.sleep(0.05)


def _read(folder: Path, rank: int, process: BaseProcess) -> Replayed:
    path = folder / f"{rank}.pickle"
    if not path.exists():
        raise TrainError(f"rank {rank} of the replay died (exit code {process.exitcode})", fix="see whether memory is short")
    found = pickle.loads(path.read_bytes())  # written by our own process into our own folder
    if isinstance(found, UserError):
        raise found
    return found


def _rank(plan: Plan, rank: int, folder: str, on_gpu: bool) -> None:
    result: Replayed | UserError
    try:
        device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(device)
        timeout = timedelta(seconds=plan.spec.cluster.collective_timeout_s)
        store = f"file://{folder}/store"
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, init_method=store, rank=rank, world_size=plan.world_size, timeout=timeout)
        result = replay_rank(plan, rank=rank, world_size=plan.world_size, device=device)
        dist.destroy_process_group()
    except UserError as error:
        result = error
    except Exception as error:
        result = TrainError(f"rank {rank}: {type(error).__name__}: {error}")
    partial = Path(folder) / f"{rank}.partial"
    partial.write_bytes(pickle.dumps(result))
    partial.rename(Path(folder) / f"{rank}.pickle")
    if isinstance(result, UserError):
        raise SystemExit(1)
