import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from pictures import make_folder, make_parquet
from ray._private.state import actors
from ray.data.context import DataContext

from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.batch import Batch
from iddpm_ray.data.blocks import Share, load_block
from iddpm_ray.data.image import BadPicture, Decoding
from iddpm_ray.data.local import local_stream
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.data.pack import Packing, pack
from iddpm_ray.runtime import stream
from iddpm_ray.runtime.plan_source import from_table, open_manifest, to_table
from iddpm_ray.runtime.stream import Tasks, open_stream, put_manifest

pytestmark = pytest.mark.timeout(600)

SHARE = Share(seed=2, global_batch=7, decoding=Decoding(8, 10), steps_per_block=2, on_error="substitute")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A Ray of four CPUs, unless the session has one already."""
    if ray.is_initialized():
        yield
        return
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets need a short path
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=folder)
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class DataSet:
    """One data set in its three forms, one of its pictures bad; and its rows as they should stream."""

    folder: Manifest
    parquet: Manifest
    packed: Manifest
    bad: int


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    root = tmp_path_factory.mktemp("data")
    paths = make_folder(root / "folder", 21)
    (root / "folder" / paths[9]).write_bytes(b"no picture")
    make_parquet(root / "parquet", [(root / "folder" / path).read_bytes() for path in paths], [path.split("/")[0] for path in paths])
    labels = {"folder": "folder", "parquet": "column", "packed": "folder"}
    source = manifests.build(str(root / "folder"), labels="folder")
    pack(Packing(source, "folder", SHARE.decoding, rows_per_shard=8), str(root / "packed"), on_error="substitute")
    return DataSet(**{kind: manifests.build(str(root / kind), labels=rule) for kind, rule in labels.items()}, bad=9)


def same(a: Batch, b: Batch) -> bool:
    return (
        (a.step, a.rank, a.substituted) == (b.step, b.rank, b.substituted)
        and (a.rows == b.rows).all()
        and torch.equal(a.pixels, b.pixels)
        and torch.equal(a.labels, b.labels)
    )


@pytest.mark.parametrize(
    ("kind", "changes", "start", "stop"),
    [
        ("folder", {}, 0, 8),
        ("parquet", {"rank": 0, "world_size": 2}, 3, 9),
        ("packed", {"rank": 1, "world_size": 2, "steps_per_block": 3}, 3, 9),
        ("folder", {"rank": 1, "world_size": 3, "steps_per_block": None}, 1, 8),
        ("packed", {"rank": 3, "world_size": 4, "steps_per_block": 1}, 5, 9),
    ],
)
def test_ray_gives_the_batches_that_threads_give(data: DataSet, kind: str, changes: dict[str, int], start: int, stop: int) -> None:
    """At any world size, from any step, whatever the form of the data and the blocks; over the ends of epochs of three steps."""
    share = replace(SHARE, **changes)
    expected = list(local_stream(data.folder, share, start_step=start, stop_step=stop))
    got = list(open_stream(put_manifest(getattr(data, kind)), share, start_step=start, stop_step=stop, tasks=Tasks(2)))
    assert [batch.step for batch in got] == list(range(start, stop))
    assert all(same(a, b) for a, b in zip(got, expected, strict=True))
    assert all(batch.pixels.dtype == torch.uint8 and batch.labels.dtype == torch.int64 for batch in got)
    got[0].pixels.zero_()  # memory of its own, not the object store's


def test_segments_join_without_a_seam_and_a_closed_stream_frees_its_actors(data: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_FIRST_BLOCKS", 1)
    monkeypatch.setattr(stream, "_MOST_BLOCKS", 3)
    endless = open_stream(put_manifest(data.folder), SHARE, start_step=10**6, tasks=Tasks(1, prefetch_blocks=0))
    expected = local_stream(data.folder, SHARE, start_step=10**6)
    for _ in range(13):  # blocks of two steps: segments end after 2 and 8
        assert same(next(endless), next(expected))
    expected.close()
    endless.close()
    with pytest.raises(StopIteration):
        next(endless)
    deadline = time.monotonic() + 60
    while _coordinators() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not _coordinators()


def _coordinators() -> list[str]:
    """Executors of data sets that still live."""
    return [key for key, actor in actors().items() if actor["ActorClassName"] == "SplitCoordinator" and actor["State"] != "DEAD"]


def test_a_bad_picture_surfaces_as_itself(data: DataSet) -> None:
    bad = open_stream(put_manifest(data.folder), replace(SHARE, on_error="fail"), stop_step=9, tasks=Tasks(1))
    with pytest.raises(BadPicture, match=r"class\d/kind\d_\d+\.png \(row 9\) is not a picture") as caught:
        list(bad)
    assert str(caught.value).count("\n") == 0
    assert caught.value.__cause__ is None


def test_blocks_stay_whole_however_small_ray_would_cut_them(data: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataContext.get_current(), "target_max_block_size", 500)
    asked: list[dict[str, Any]] = []
    original = ray.data.read_datasource

    def spy(*arguments: Any, **options: Any) -> Any:
        asked.append(options)
        return original(*arguments, **options)

    monkeypatch.setattr(ray.data, "read_datasource", spy)
    share = replace(SHARE, steps_per_block=4)
    got = list(open_stream(put_manifest(data.packed), share, stop_step=8, tasks=Tasks(3, cpus=0.5, prefetch_blocks=1)))
    assert all(same(a, b) for a, b in zip(got, local_stream(data.folder, share, stop_step=8), strict=True))
    assert [(one["num_cpus"], one["concurrency"], one["override_num_blocks"]) for one in asked] == [(0.5, 3, 2)]


def test_an_empty_stream_asks_nothing_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.data, "read_datasource", lambda *args, **kwargs: pytest.fail("a data set was made"))
    nothing: Any = None
    assert list(open_stream(nothing, SHARE, start_step=4, stop_step=4, tasks=Tasks())) == []
    never_begun: Generator[Batch, None, None] = open_stream(nothing, SHARE, tasks=Tasks())
    never_begun.close()


@pytest.mark.parametrize(("count", "world_size", "each"), [(1, 1, [1]), (5, 2, [2, 3]), (4, 4, [1, 1, 1, 1]), (2, 4, [1, 1, 1, 1])])
def test_tasks_are_shared_out_and_every_rank_has_one(count: int, world_size: int, each: list[int]) -> None:
    assert [Tasks(count).of_rank(replace(SHARE, rank=rank, world_size=world_size)) for rank in range(world_size)] == each


def test_blocks_survive_the_way_through_arrow(data: DataSet) -> None:
    block = load_block(data.folder, SHARE, range(3, 6))
    table = to_table(block)
    again = from_table(table, SHARE)
    part = from_table(table.slice(7, 7), SHARE)
    for name in ("steps", "rows", "pixels", "labels", "substituted"):
        assert (getattr(again, name) == getattr(block, name)).all()
        assert (getattr(part, name) == getattr(block, name)[7:14]).all()


def test_the_manifest_lies_in_the_object_store_once(data: DataSet, tmp_path: Path) -> None:
    reference = put_manifest(data.folder)
    first = open_manifest(reference)
    assert open_manifest(reference) is first
    assert first.table.equals(data.folder.table)
    assert first.digest == data.folder.digest


def test_decoding_processes_import_no_torch() -> None:
    code = "import sys; import iddpm_ray.runtime.plan_source; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert shown.stdout.strip() == "False"
