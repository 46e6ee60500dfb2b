"""Drawing by one worker and by two, as chunks on Ray."""

import tempfile
from pathlib import Path

from bench_sample import network_of
from cases import DIGITS
from our_step import bench_spec
from timing import Comparison, Effort

from iddpm_ray.convert.write import write_model
from iddpm_ray.evaluate.chunks import Chunks
from iddpm_ray.evaluate.drawing import Arithmetic, make_drawing
from iddpm_ray.evaluate.generate import Job, Sampler, make_job
from iddpm_ray.evaluate.trained import find_source
from iddpm_ray.runtime import cluster
from iddpm_ray.runtime.chunks import Pool, run_chunks

BATCH = 32


def results(effort: Effort) -> list[Comparison]:
    """Seconds a picture between the chunks of the second half of each job, when every worker is at work; one and two workers by turns."""
    spec = bench_spec(size=16, channels=1, batch=BATCH, sections=DIGITS)
    repeats, chunks, steps = effort.of(3, quick=1), effort.of(40, quick=6), effort.of(20, quick=2)
    times: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="bench-") as name, cluster.joined(None, object_store_gib=0.1):
        write_model(network_of(spec), f"{name}/weights.safetensors", say=lambda line: None)
        drawing = make_drawing(find_source(f"{name}/weights.safetensors"), arithmetic=Arithmetic(), respacing=str(steps), ema=None)
        job = make_job(drawing, seed=0, count=BATCH * chunks, batch=BATCH, labels=None, base=None, threads=1)
        for repeat in range(repeats):
            for workers in (1, 2) if repeat % 2 else (2, 1):
                times[workers].append(_seconds(job, Path(name) / f"{repeat}-{workers}", workers=workers))
    return [
        Comparison(
            f"sampling by workers, a picture, digits, 16 px, 0.9 M parameters, batch {BATCH}, {steps} steps",
            tuple(times[2]),
            tuple(times[1]),
            ours_label="2 workers of one thread",
            peer_label="1 worker of one thread",
            note="the second half of each job, so without the start of the processes",
        )
    ]


def _seconds(job: Job, folder: Path, *, workers: int) -> float:
    chunks: Chunks = job.claim(str(folder))
    assert run_chunks(chunks, Sampler(job, chunks), pool=Pool(workers=workers, cpus=0.5), unit="pictures")
    done = sorted(path.stat().st_mtime for path in (folder / "chunks").iterdir())
    half = len(done) // 2
    return (done[-1] - done[half - 1]) / (BATCH * (len(done) - half))
