"""From the death of a worker to the next step done, by phase, against starting the program anew."""

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from runtime.started_job import Job
from timing import Comparison, Effort
from train.small_run import run_url, small_spec, write_pictures

from iddpm_ray.checkpoint.attempts import attempts
from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.report.accounts import run_account

PATIENCE_S = 300.0


def results(effort: Effort) -> list[Comparison]:
    """Kills a worker a few times, each time once a new attempt has saved."""
    kills = effort.of(5, quick=1)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        root = Path(name)
        write_pictures(root / "pictures")
        spec = small_spec(
            root,
            run={"name": "return"},
            data={"cpus_per_task": 0.5},
            train={"duration": "1000000 steps"},
            checkpoint={"every": "50 steps"},
            cluster={"workers": 2, "cpus_per_worker": 0.5, "max_failures": 100, "max_fruitless": 100},
        )
        began = time.time()
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 Ray spells it so
        with Job(spec, root) as job:
            for kill in range(1, kills + 1):
                _until_saved(job, run_url(spec), attempt=kill)
                job.workers()[0].kill()
            _until_saved(job, run_url(spec), attempt=kills + 1)
            job.terminate()
            job.ends()
        account = run_account(attempts(run_url(spec)))
        first = account.attempts[0]
        assert first.began is not None
        anew = first.began - began + sum(first.start.values())
        restarts = [one for one in account.restarts if one.stepped][:kills]
    return [
        Comparison(
            "time to return after the death of a worker, 2 workers, tiny network",
            tuple(one.seconds for one in restarts),
            (anew,) * len(restarts),
            ours_label="from its last sign of life to the next step done",
            peer_label="from typing the command to the first step done",
            note=f"mean seconds by phase: {_phases([one.phases for one in restarts])}; anew: {_phases([first.start])}; the goal is 15 s",
        )
    ]


def _phases(of: Sequence[Mapping[str, float]]) -> str:
    names = dict.fromkeys(name for one in of for name in one)
    return ", ".join(f"{name.replace('_', ' ')} {sum(one.get(name, 0.0) for one in of) / len(of):.1f}" for name in names)


def _until_saved(job: Job, url: str, *, attempt: int) -> None:
    """Waits for a checkpoint of an attempt not older than the given one."""
    deadline = time.monotonic() + PATIENCE_S
    while not _saved(url, attempt=attempt):
        assert job.process.poll() is None, job.text
        assert time.monotonic() < deadline, job.text
        time.sleep(0.1)


def _saved(url: str, *, attempt: int) -> bool:
    try:
        return any(one.attempt >= attempt for one in complete(url))
    except OSError:  # before the run's folder is there
        return False
