"""Real gloo ranks for tests: a function of a test module, run in N processes of one process group.

    def gathered(start: int) -> list[int]:            # at module level
        return all_gather_rows(torch.tensor(start + rank())).tolist()

    def test_rows_come_in_rank_order() -> None:
        assert run_ranks(gathered, 2, 10) == [[10, 11], [10, 11]]

The processes are forked from a server that has imported torch once, so a rank starts in a fraction of a second and
inherits no thread, lock or process group of the test itself. Arguments and results are pickled.
"""

import contextlib
import faulthandler
import importlib.util
import inspect
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from datetime import timedelta
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_GRACE_S = 5.0  # how long the others may go on after one rank has failed
_PRELOADED = ("torch", "torch.distributed.checkpoint", "torch.distributed.tensor", "torch._dynamo", "pytest", "fsspec")
_context: ForkServerContext | None = None


class RanksFailed(AssertionError):
    """A rank raised, died, or did not finish; the message carries every rank's traceback."""


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = 90.0,
    group_timeout_s: float = 30.0,
    may_die: Collection[int] = (),
    threads: int = 1,
) -> list[Any]:
    """Run `function(*args)` on every rank and return the results in rank order.

    Args:
        function: of module level, in any test file.
        world_size: how many processes; rank and world size are torch.distributed's.
        args: picklable; the same for all ranks.
        timeout_s: after this all are killed, with a traceback of where each stood.
        group_timeout_s: of the default process group's collectives.
        may_die: ranks that may end by a signal or os._exit; their result is None then.
        threads: torch's threads in each rank.

    Raises:
        RanksFailed: a rank outside `may_die` did not return.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        source = inspect.getsourcefile(function)
        assert source is not None
        assert "<locals>" not in function.__qualname__, "a function of module level"
        job = (source, function.__module__, function.__qualname__, pickle.dumps(args), os.environ.copy(), sys.path)
        limits = (timeout_s, group_timeout_s, threads)
        processes = [server().Process(target=_rank, args=(rank, world_size, folder, job, limits)) for rank in range(world_size)]
        for process in processes:
            process.start()
        _wait(processes, folder, timeout_s, may_die)
        reports = [_report(folder, rank, process) for rank, process in enumerate(processes)]
        failed = [rank for rank, report in enumerate(reports) if not report[0] and rank not in may_die]
        if failed:
            details = "\n".join(f"--- rank {rank} ---\n{reports[rank][1]}" for rank in range(world_size) if not reports[rank][0])
            raise RanksFailed(f"ranks {failed} of {world_size} failed\n{details}")
        return [report[1] if report[0] else None for report in reports]


def server() -> ForkServerContext:
    """Forks processes that have torch imported already: `server().Process(target=..., args=...)`."""
    global _context
    if _context is None:
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload(
            ["torch", "torch.distributed.checkpoint", "torch.distributed.tensor", "torch._dynamo", "pytest", "fsspec"]
        )
    return _context


def _wait(processes: list[ForkServerProcess], folder: Path, timeout_s: float, may_die: Collection[int]) -> None:
    deadline = time.monotonic() + timeout_s
    failed_at: float | None = None
    while any(process.is_alive() for process in processes):
        now = time.monotonic()
        for rank, process in enumerate(processes):
            if failed_at is None and not process.is_alive() and rank not in may_die and not _report(folder, rank, process)[0]:
                failed_at = now
        if now > deadline or (failed_at is not None and now > failed_at + _GRACE_S):
            break
        time.sleep(0.02)
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()


def _report(folder: Path, rank: int, process: ForkServerProcess) -> tuple[bool, Any]:
    """Whether the rank returned, and its result, or else the text of what happened."""
    result = folder / f"result-{rank}.pickle"
    if result.exists():
        return True, torch.load(result, weights_only=False)
    texts = [path.read_text() for path in (folder / f"error-{rank}.txt", folder / f"stacks-{rank}.txt") if path.exists()]
    return False, "\n".join([*texts, f"exit code {process.exitcode}"])


def _rank(rank: int, world_size: int, folder: Path, job: tuple[Any, ...], limits: tuple[float, float, int]) -> None:
    source, module_name, qualname, pickled_args, environment, path = job
    timeout_s, group_timeout_s, threads = limits
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    with open(folder / f"stacks-{rank}.txt", "w") as stacks:
        faulthandler.dump_traceback_later(max(timeout_s - 2.0, timeout_s * 0.8), file=stacks)
        try:
            torch.set_num_threads(threads)
            spec = importlib.util.spec_from_file_location(module_name, source)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[module_name] = module
            spec.loader.exec_module(module)
            function: Any = module
            for part in qualname.split("."):
                function = getattr(function, part)
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/rendezvous",
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=group_timeout_s),
            )
            result = function(*pickle.loads(pickled_args))
            partial = folder / f"result-{rank}.partial"
            torch.save(result, partial)
            partial.rename(folder / f"result-{rank}.pickle")
        except BaseException:
            (folder / f"error-{rank}.txt").write_text(traceback.format_exc())
            raise SystemExit(1) from None
        finally:
            faulthandler.cancel_dump_traceback_later()
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
