"""The whole loop on Ray against the same loop without it: two workers, the demo's network, steady state."""

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cases import DIGITS
from our_step import bench_spec
from picture_files import write_pictures
from timing import Comparison, Effort

from iddpm_ray.sinks.jsonl import read_rows
from iddpm_ray.spec.text import dump_yaml

REPOSITORY = Path(__file__).parents[2]
BATCH, EVERY = 64, 20
NOTE = (
    "2 workers of one thread on one machine; Ray makes its workers nice (15), and the plain processes are as nice. On Ray other processes "
    "decode the pictures, without it a thread of each worker; both rows and statistics, no saves, the first half of each run not counted"
)


def results(effort: Effort) -> list[Comparison]:
    """Seconds a step of each row in the second half of the runs, which come by turns: Ray, plain, plain, Ray."""
    steps = effort.of(400, quick=80)
    programs = {"Ray": [str(REPOSITORY / "jobs/train.py")], "plain": [str(Path(__file__).with_name("plain_loop.py"))]}
    times: dict[str, list[float]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        root = Path(name)
        pictures = write_pictures(root / "pictures", count=1797, side=16, channels=1)
        for number, which in enumerate(["Ray", "plain"] if effort.quick else ["Ray", "plain", "plain", "Ray"]):
            times[which] += _seconds(programs[which], root, pictures, run=f"{which.lower()}-{number}", steps=steps)
    return [
        Comparison(
            "loop, a step, digits, 16 px, 0.9 M parameters, batch 64",
            tuple(times["Ray"]),
            tuple(times["plain"]),
            ours_label="jobs/train.py on Ray",
            peer_label="the same loop in plain processes",
            at_most=1.02,
            note=NOTE,
        )
    ]


def _seconds(program: list[str], root: Path, pictures: str, *, run: str, steps: int) -> list[float]:
    """Runs it to its end and reads the clock of its rows."""
    sections: dict[str, dict[str, Any]] = {
        **DIGITS,
        "run": {"name": run, "output_dir": str(root / "runs")},
        "data": {"path": pictures, "tasks": 2, "cpus_per_task": 0.5},
        "train": {"global_batch": BATCH, "duration": f"{steps} steps"},
        "checkpoint": {"every": f"{10 * steps} steps"},
        "log": {"every": f"{EVERY} steps", "tensorboard": False, "progress": False},
        "cluster": {"workers": 2, "cpus_per_worker": 0.5},
    }
    spec = root / f"{run}.yaml"
    spec.write_text(dump_yaml(bench_spec(size=16, channels=1, batch=BATCH, sections=sections)))
    done = subprocess.run(
        [sys.executable, *program, str(spec)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{run} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    rows = read_rows(str(root / "runs" / run / "metrics" / "train.jsonl"))
    clock = [float(row["time"]) for row in rows if int(row["step"]) >= steps // 2]
    return [(after - before) / EVERY for before, after in itertools.pairwise(clock)]
