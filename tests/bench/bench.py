"""Runs every benchmark of this directory and writes the table: `python tests/bench/bench.py --write docs/benchmarks.md`."""

import argparse
import importlib
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from timing import Comparison, Measurement, spread

Result = Comparison | Measurement
PACKAGES = ("torch", "ray", "numpy", "pillow", "pyarrow")


def main(argv: Sequence[str]) -> int:
    """Each `bench_*.py` has a function `results() -> list[Comparison | Measurement]`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run, as in bench_NAME.py (default: all)")
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args(argv)
    found = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    unknown = sorted(set(arguments.names) - set(found))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(found)}")
    results: list[Result] = []
    for name in arguments.names or found:
        print(f"{name} ...", flush=True)
        for result in importlib.import_module(f"bench_{name}").results():
            results.append(result)
            print(f"  {describe(result)}", flush=True)
    if arguments.write is not None:
        command = f"python tests/bench/bench.py {' '.join(arguments.names)}".strip()
        arguments.write.write_text(document(results, command=command))
        print(f"wrote {arguments.write}")
    return 0


def describe(result: Result) -> str:
    """One line for the terminal."""
    if isinstance(result, Measurement):
        return f"{result.name}: {result.value:.4g} {result.unit} ({result.low:.4g} to {result.high:.4g}) {result.note}".rstrip()
    ratio = spread(result.ratios())
    return f"{result.name}: {ratio.median:.3f} times as fast as {result.peer_label} ({ratio.low:.3f} to {ratio.high:.3f})"


def document(results: Sequence[Result], *, command: str) -> str:
    """The tables with all that a number needs: hardware, versions, date, command."""
    lines = [
        "# Benchmarks",
        "",
        "Ratios of timings taken by turns in one run: the peer's time over ours, so above 1 ours is faster. Each is the median",
        "of the pairs, with the first and third quartile. The peers are plain-torch programs in `tests/bench`.",
        "",
        f"{time.strftime('%Y-%m-%d')}, {hardware()}, Python {platform.python_version()}, "
        + ", ".join(f"{package} {version(package)}" for package in PACKAGES)
        + f". Command: `{command}`.",
        "",
    ]
    comparisons = [result for result in results if isinstance(result, Comparison)]
    if comparisons:
        lines += ["| what | ours | peer | ratio | quartiles | ours, ms | peer, ms | goal |", "|---|---|---|---|---|---|---|---|"]
        for result in comparisons:
            ratio = spread(result.ratios())
            ours, peer = 1e3 * spread(result.ours).median, 1e3 * spread(result.peer).median
            lines.append(
                f"| {result.name} | {result.ours_label} | {result.peer_label} | **{ratio.median:.2f}** "
                f"| {ratio.low:.2f} to {ratio.high:.2f} | {ours:.4g} | {peer:.4g} | {result.goal} |"
            )
        lines.append("")
    measurements = [result for result in results if isinstance(result, Measurement)]
    if measurements:
        lines += ["| what | value | quartiles | note |", "|---|---|---|---|"]
        lines += [f"| {m.name} | {m.value:.4g} {m.unit} | {m.low:.4g} to {m.high:.4g} | {m.note} |" for m in measurements]
        lines.append("")
    return "\n".join(lines)


def hardware() -> str:
    """The processor, how many of its cores we may use, and the GPU if there is one."""
    words = [line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    text = f"{len(os.sched_getaffinity(0))} cores of {words[0] if words else platform.machine()}"
    return f"{text}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else f"{text}, no GPU"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
