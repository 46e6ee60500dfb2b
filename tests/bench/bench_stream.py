"""The data stream against torch's DataLoader: PNG files decoded by the same function, and prepared shards."""

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from our_step import bench_spec
from picture_files import write_pictures
from plain_loader import Files, Rows, endless_batches
from timing import Comparison, Effort, by_turns, timed
from torch import Tensor

from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.blocks import Share
from iddpm_ray.data.image import Decoding, decode
from iddpm_ray.data.local import local_stream
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.data.pack import Packing, pack
from iddpm_ray.runtime.cluster import connected
from iddpm_ray.runtime.stream import Tasks, open_stream, put_manifest

BATCH, SIDE, WORKERS, WARM = 64, 64, 2, 32
NOTE = (
    f"batches of {BATCH} at {SIDE} px, nobody computing; the first {WARM} batches, and so the start, are not counted; {WORKERS} decode "
    f"tasks of Ray (which gives them nice 15, as the DataLoader's processes get here) against {WORKERS} processes; without Ray {WORKERS} "
    "threads"
)


def results(effort: Effort) -> list[Comparison]:
    """Files and shards, through Ray and without it."""
    decoding = Decoding(SIDE, SIDE)
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        root = Path(name)
        folder = write_pictures(root / "png", count=effort.of(2000, quick=200), side=96, channels=3)
        files = manifests.build(folder)
        pack(Packing(files, "none", decoding, rows_per_shard=1000), str(root / "shards"))
        shards = manifests.build(str(root / "shards"))
        spec = bench_spec(size=SIDE, channels=3, batch=BATCH, sections={"cluster": {"workers": 1}})
        paths = sorted(Path(folder).rglob("*.png"))
        data: tuple[tuple[str, Manifest, Any, int], ...] = (
            ("PNG files", files, Files(paths, functools.partial(_decoded, decoding=decoding)), effort.of(192, quick=4)),
            ("prepared shards", shards, Rows(sorted((root / "shards").glob("*.u8")), decoding.shape), effort.of(512, quick=4)),
        )
        with connected(spec):
            for what, manifest, dataset, batches in data:
                warm = effort.of(WARM, quick=1)
                share = Share(seed=0, global_batch=BATCH, decoding=decoding)
                ways: dict[str, Callable[[], float]] = {
                    "through Ray": lambda share=share, manifest=manifest, batches=batches, warm=warm: _seconds(
                        _through_ray(manifest, share, warm + batches), warm=warm, batches=batches
                    ),
                    "without Ray": lambda share=share, manifest=manifest, batches=batches, warm=warm: _seconds(
                        _local(manifest, share, warm + batches), warm=warm, batches=batches
                    ),
                    "DataLoader": lambda dataset=dataset, batches=batches, warm=warm: _seconds(
                        endless_batches(dataset, batch=BATCH, workers=WORKERS, begin=_nice), warm=warm, batches=batches
                    ),
                }
                times = by_turns(ways, repeats=effort.of(5, quick=1))
                for way in ("through Ray", "without Ray"):
                    label, goal = f"our stream {way}, a picture", 1.0 if way == "through Ray" else None
                    found.append(
                        Comparison(
                            f"data stream, {what}, {way}", times[way], times["DataLoader"], label, "DataLoader", at_most=goal, note=NOTE
                        )
                    )
    return found


def _seconds(batches_of: Iterator[Tensor], *, warm: int, batches: int) -> float:
    """Seconds a picture, once the stream runs."""
    with closing(batches_of):  # type: ignore[type-var]  # all are generators
        for _ in range(warm):
            next(batches_of)
        return timed(lambda: next(batches_of), calls=batches) / BATCH


def _through_ray(manifest: Manifest, share: Share, steps: int) -> Iterator[Tensor]:
    stream = open_stream(put_manifest(manifest), share, stop_step=steps, tasks=Tasks(WORKERS, 0.5))
    with closing(stream):
        yield from (batch.pixels for batch in stream)


def _local(manifest: Manifest, share: Share, steps: int) -> Iterator[Tensor]:
    stream = local_stream(manifest, share, stop_step=steps, tasks=WORKERS)
    with closing(stream):
        yield from (batch.pixels for batch in stream)


def _decoded(data: bytes, *, decoding: Decoding) -> Tensor:
    return torch.from_numpy(decode(data, decoding))


def _nice(worker: int) -> None:
    os.nice(15)
