"""Chunked work on an embedded Ray: any number of workers, killed ones replaced within bounds, errors in one line, the same files."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray

from iddpm_ray.errors import DataError, SpecError, TrainError
from iddpm_ray.evaluate.chunks import Chunks, Work, claim
from iddpm_ray.runtime import cluster
from iddpm_ray.runtime.chunks import Pool, run_chunks

POOL = Pool(workers=2, cpus=0.25)


@dataclass(frozen=True)
class Doubles:
    """Doubles of the items; one chunk kills its process, as often as asked, or fails."""

    chunks: Chunks
    notes: Path
    kills_at: int = -1
    kills: int = 0
    fails_at: int = -1

    def open(self) -> Work:
        import torch

        def work(chunk: int) -> bytes:
            if chunk == self.fails_at:
                raise DataError("the picture", value=chunk, fix="mend it")
            if chunk == self.kills_at:
                deaths = len(list(self.notes.glob("death-*")))
                if deaths < self.kills:
                    (self.notes / f"death-{deaths}").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            (self.notes / f"pid-{os.getpid()}").touch()
            return f"{[2 * item for item in self.chunks.items(chunk)]} {torch.get_num_threads()}".encode()

        return work


@pytest.fixture(scope="module")
def embedded_ray() -> Iterator[None]:
    with cluster.joined(None, object_store_gib=0.1):
        yield


def job(root: Path, *, count: int = 40) -> Chunks:
    root.mkdir()
    (root / "notes").mkdir()
    return claim(str(root / "job"), {"kind": "doubles"}, count=count, size=4, extension="txt")


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("embedded_ray")
def test_killed_workers_are_replaced_and_the_files_are_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one, many, here = (job(tmp_path / name) for name in ("one", "many", "here"))
    assert run_chunks(one, Doubles(one, tmp_path / "one" / "notes"), pool=Pool(workers=1, cpus=0.25, threads=2), unit="items")
    killed = Doubles(many, tmp_path / "many" / "notes", kills_at=5, kills=2)
    assert run_chunks(many, killed, pool=Pool(workers=3, cpus=0.25, threads=2), unit="items")
    assert run_chunks(here, Doubles(here, tmp_path / "here" / "notes"), pool=Pool(workers=0, threads=2), unit="items")
    assert list(one.read_all()) == list(many.read_all()) == list(here.read_all())
    assert list(one.read_all())[9] == b"[72, 74, 76, 78] 2"
    assert len(list((tmp_path / "many" / "notes").glob("pid-*"))) > 1
    told = capfd.readouterr().err
    assert told.count("died at chunk 5; starting another in ") == 2, told
    assert "40 of 40 items (100 %)" in told


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("embedded_ray")
def test_a_chunk_that_kills_its_worker_every_time_ends_the_job(tmp_path: Path) -> None:
    chunks = job(tmp_path / "poison")
    worker = Doubles(chunks, tmp_path / "poison" / "notes", kills_at=2, kills=100)
    with pytest.raises(TrainError, match=r"worker \d died at chunk 2, 2 times in a row"):
        run_chunks(chunks, worker, pool=Pool(workers=2, cpus=0.25, max_failures=1), unit="items")
    assert len(list((tmp_path / "poison" / "notes").glob("death-*"))) == 2
    mended = Doubles(chunks, tmp_path / "poison" / "notes")
    assert run_chunks(chunks, mended, pool=POOL, unit="items")
    assert chunks.missing() == []


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("embedded_ray")
def test_the_programs_own_error_is_raised_as_it_is(tmp_path: Path) -> None:
    chunks = job(tmp_path / "error")
    with pytest.raises(DataError, match=r"^the picture \(got 3\): mend it$"):
        run_chunks(chunks, Doubles(chunks, tmp_path / "error" / "notes", fails_at=3), pool=POOL, unit="items")
    with pytest.raises(SpecError, match=r"1000 workers of 1 CPUs and 0 GPUs do not fit on this machine"):
        run_chunks(chunks, Doubles(chunks, tmp_path / "error" / "notes"), pool=Pool(workers=1000), unit="items")
    assert ray.is_initialized()
