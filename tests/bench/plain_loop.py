"""The peer of the loop on Ray: the same loop in plain processes, `python tests/bench/plain_loop.py SPEC`."""

import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parents[2]))

from iddpm_ray import storage
from iddpm_ray.data import manifest as manifests
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text
from iddpm_ray.train.directory import MANIFEST_FILE, Place, inspect_run, take_place, write_run
from iddpm_ray.train.loop import train
from iddpm_ray.train.session import LocalSession
from iddpm_ray.train.sources import LocalSources

RAYS_NICENESS = 15


def main(path: str) -> None:
    """One attempt, a process a worker, as nice as Ray makes its own."""
    spec = load_text(Path(path).read_text())
    opening = inspect_run(spec)
    write_run(opening)
    world_size, _ = spec.cluster.worker_range()
    place = take_place(opening, info={"workers": world_size})
    os.environ["OMP_NUM_THREADS"] = str(spec.cluster.threads_per_worker)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        mp.spawn(_rank, args=(world_size, folder, spec, place), nprocs=world_size)


def _rank(rank: int, world_size: int, folder: str, spec: JobSpec, place: Place) -> None:
    os.nice(RAYS_NICENESS)
    torch.set_num_threads(spec.cluster.threads_per_worker)
    timeout = timedelta(seconds=spec.cluster.collective_timeout_s)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size, timeout=timeout)
    manifest = manifests.read(storage.join(place.url, MANIFEST_FILE))
    sources = LocalSources.of(spec, manifest, rank=rank, world_size=world_size)
    train(spec, LocalSession(rank=rank, world_size=world_size), sources=sources, place=place)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
