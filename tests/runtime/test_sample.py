"""A thousand pictures by one, two and three workers, some of them killed: the same bytes."""

import threading
import time
from pathlib import Path

import psutil
import pytest
from evaluate.drawn_runs import trained
from processes import command_line

from iddpm_ray.evaluate import output
from iddpm_ray.evaluate.drawing import Arithmetic, make_drawing
from iddpm_ray.evaluate.generate import Job, Sampler, make_job
from iddpm_ray.evaluate.trained import find_source
from iddpm_ray.runtime import cluster
from iddpm_ray.runtime.chunks import Pool, run_chunks

COUNT = 1000


def make(run: str) -> Job:
    drawing = make_drawing(find_source(run), arithmetic=Arithmetic())
    return make_job(drawing, seed=0, count=COUNT, batch=8, labels=None, base=None, threads=1)


class Killer:
    """Kills a worker each time so many more chunks are there."""

    def __init__(self, folder: Path, *, times: int, every: int) -> None:
        self.killed: list[int] = []
        self._folder, self._times, self._every = folder, times, every
        self._thread = threading.Thread(target=self._kill, daemon=True)

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join(5)

    def _kill(self) -> None:
        for number in range(self._times):
            while len(list(self._folder.glob("chunks/chunk-*"))) < (number + 1) * self._every:
                time.sleep(0.05)
            while not (hands := self._hands()):
                time.sleep(0.05)
            hands[0].kill()
            self.killed.append(hands[0].pid)

    def _hands(self) -> list[psutil.Process]:
        """The processes at work."""
        return [process for process in psutil.Process().children(recursive=True) if "ray::_Hand" in command_line(process)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_digits_are_the_same_for_any_workers_and_kills(tmp_path: Path) -> None:
    _, run = trained(tmp_path)
    job, written = make(run), {}
    with cluster.joined(None, object_store_gib=0.1):
        for workers, kills in ((1, 0), (2, 0), (3, 2)):
            folder = tmp_path / f"by-{workers}"
            chunks = job.claim(str(folder))
            with Killer(folder, times=kills, every=30) as killer:
                pool = Pool(workers=workers, cpus=0.25)
                assert run_chunks(chunks, Sampler(job, chunks), pool=pool, unit="pictures")
            assert len(killer.killed) == kills
            url = output.write_output(job, chunks, form="npz")
            written[workers] = Path(url).read_bytes()
    assert written[1] == written[2] == written[3]
