"""Runs the benchmarks of this directory and writes their table: `python tests/bench/bench.py --write docs/benchmarks.md`."""

import argparse
import importlib
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from timing import Comparison, Effort, NotRun, spread  # noqa: E402 found by the line before

Result = Comparison | NotRun
PACKAGES = ("torch", "ray", "numpy", "pillow", "pyarrow")
ORDER = (
    "step",
    "shares",
    "ledger",
    "replicas",
    "checkpoint",
    "return",
    "stream",
    "loop",
    "sample",
    "nll",
    "quality",
    "convert",
    "workers",
    "gpu",
)


def main(argv: Sequence[str]) -> int:
    """Each `bench_*.py` has a function `results(effort)` that gives each Comparison or NotRun."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=ORDER, help="this benchmark alone (default: all)")
    parser.add_argument("--quick", action="store_true", help="only see that everything runs; the numbers say nothing")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args(argv)
    load = os.getloadavg()[0]
    if arguments.quick:
        torch.set_num_threads(1)  # it may share its cores with anybody
    began = time.monotonic()
    results: list[Result] = []
    for name in [arguments.only] if arguments.only else ORDER:
        print(f"{name} ...", flush=True)
        for result in importlib.import_module(f"bench_{name}").results(Effort(quick=arguments.quick)):
            results.append(result)
            print(f"  {describe(result)}", flush=True)
    print(f"{time.monotonic() - began:.0f} s")
    if arguments.write is not None:
        text = document(results, command=f"python tests/bench/bench.py {' '.join(argv)}", load=load, quick=arguments.quick)
        arguments.write.write_text(text)
        print(f"wrote {arguments.write}")
    return 0


def describe(result: Result) -> str:
    """One line for the terminal."""
    if isinstance(result, NotRun):
        return f"{result.name}: not run, {result.why}"
    ratio, ours, peer = (spread(values) for values in (result.ratios(), result.ours, result.peer))
    sides = f"{result.ours_label} {amount(ours.median, result.unit)} / {result.peer_label} {amount(peer.median, result.unit)}"
    return f"{result.name}: {sides} = {share(ratio.median)} ({share(ratio.low)} to {share(ratio.high)}) {result.verdict()}".rstrip()


def document(results: Sequence[Result], *, command: str, load: float, quick: bool) -> str:
    """The table with all that a number needs: hardware, versions, date, command."""
    packages = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    lines = [
        "# Benchmarks",
        "",
        "Each line compares two programs timed by turns in one run: our time over the peer's, so below 1 ours is faster. It is the",
        "median of the pairs, with the first and third quartile. The peers are plain programs in `tests/bench`; `make bench` writes this.",
        "",
        f"{time.strftime('%Y-%m-%d')}, {hardware()}, load {load:.1f} at the start, Python {platform.python_version()}, {packages}. "
        f"Command: `{command}`.",
        "",
    ]
    if quick:
        lines += ["**A quick look with hardly a repeat: these numbers say nothing.**", ""]
    compared = [result for result in results if isinstance(result, Comparison)]
    if compared:
        lines += ["| what | ours | peer | ours / peer | quartiles | ours | peer | goal |", "|---|---|---|---|---|---|---|---|"]
    for result in compared:
        ratio, ours, peer = (spread(values) for values in (result.ratios(), result.ours, result.peer))
        lines.append(
            f"| {result.name} | {result.ours_label} | {result.peer_label} | **{share(ratio.median)}** "
            f"| {share(ratio.low)} to {share(ratio.high)} | {amount(ours.median, result.unit)} | {amount(peer.median, result.unit)} "
            f"| {result.verdict()} |"
        )
    notes = dict.fromkeys(f"- {result.name}: {result.note}" for result in compared if result.note)
    lines += ["", *notes] if notes else []
    skipped = [f"- {result.name}: not run, {result.why}" for result in results if isinstance(result, NotRun)]
    lines += ["", "Not run:", "", *skipped] if skipped else []
    return "\n".join(lines) + "\n"


def amount(value: float, unit: Literal["s", "bytes"]) -> str:
    """Four figures, in milliseconds or MiB."""
    return f"{1e3 * value:.4g} ms" if unit == "s" else f"{value / 2**20:.4g} MiB"


def share(ratio: float) -> str:
    """A ratio with as many figures as it deserves: two places, or below a tenth as a percentage."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{100 * ratio:.2g} %"


def hardware() -> str:
    """The processor, how many of its cores we may use, and the GPU if there is one."""
    path = Path("/proc/cpuinfo")
    told = path.read_text().splitlines() if path.exists() else []
    words = [line.split(":", 1)[1].strip() for line in told if line.startswith("model name")]
    text = f"{len(os.sched_getaffinity(0))} cores of {words[0] if words else platform.machine()}"
    return f"{text}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else f"{text}, no GPU"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
