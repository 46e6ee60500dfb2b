"""A notice of preemption: what stays saves, at once; whoever goes, the run goes on from there bit for bit."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from train.small_run import _place, assert_same_run, run_url, small_spec, start, write_pictures

from iddpm_ray.checkpoint.commit import complete, verify
from iddpm_ray.parallel.collective import broadcast_bytes
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.directory import inspect_run, take_place, write_run
from iddpm_ray.train.loop import Outcome, train
from iddpm_ray.train.session import LocalSession, Notice, Wish
from iddpm_ray.train.sources import LocalSources

LONG = {"log": {"every": "1 steps"}, "checkpoint": {"every": "1000 steps"}, "train": {"global_batch": 7, "duration": "12 steps"}}


@dataclass
class NoticedSession(LocalSession):
    """Looks after a number of steps, and then hears of a preemption; a rank may die in the middle of the save that follows."""

    after: int = 5
    notice_is: Notice | None = None
    later: Notice | None = None
    dies: bool = False
    steps: int = 0
    warned: bool = False

    def wish(self) -> Wish:
        self.steps += 1
        looks = (self.after,) if self.later is None else (self.after, self.after + 3)
        return Wish.LOOK if self.rank == 0 and self.steps in looks else Wish.NONE

    def notice(self) -> Notice | None:
        first, self.warned = not self.warned, True
        return self.notice_is if first or self.later is None else self.later

    def phase(self, name: str) -> None:
        if self.dies and self.warned and name == "data":
            os.kill(os.getpid(), signal.SIGKILL)


def noticed(spec: JobSpec, notice: Notice, dying: tuple[int, ...] = (), later: Notice | None = None) -> tuple[Outcome, list[str], bool]:
    """One attempt with a notice after five steps, and perhaps another three steps later."""
    torch.set_num_threads(1)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    opening = inspect_run(spec) if rank == 0 else None
    number = b""
    if opening is not None:
        write_run(opening)
        number = str(take_place(opening, info={}).attempt).encode()
    number = broadcast_bytes(number)
    opening = opening or inspect_run(spec)
    session = NoticedSession(rank=rank, world_size=world_size, notice_is=notice, later=later, dies=rank in dying)
    sources = LocalSources.of(spec, opening.manifest, rank=rank, world_size=world_size)
    outcome = train(spec, session, sources=sources, place=_place(opening, int(number)))
    return outcome, session.messages, session.warned


def spec_of(root: Path, name: str, **sections: Any) -> JobSpec:
    return small_spec(root, run={"name": name}, resampler={"kind": "loss_second_moment", "history": 2}, **{**LONG, **sections})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evacuate")
    write_pictures(path / "pictures")
    run_ranks(start, 3, spec_of(path, "undisturbed"))
    return path


@pytest.mark.parametrize(
    "leaving",
    [(0,), *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in ((2,), (0, 1), (0, 1, 2)))],
    ids=lambda ranks: "ranks " + ",".join(map(str, ranks)) + " go",
)
def test_the_ranks_that_stay_save_at_once_and_the_run_goes_on_bitwise(root: Path, leaving: tuple[int, ...]) -> None:
    """No time for a further step: the deadline is a moment away."""
    spec = spec_of(root, f"gone-{len(leaving)}-{leaving[0]}")
    results = run_ranks(noticed, 3, spec, Notice(0.01, leaving))
    assert [(outcome, warned) for outcome, _, warned in results] == [(Outcome("preempted", 6), True)] * 3
    saved = complete(run_url(spec))
    assert [checkpoint.step for checkpoint in saved] == [6]
    writers = {int(name.split("-")[1]) for name in verify(saved[0]).files if name.startswith("data-")}
    stays = [rank for rank in range(3) if rank not in leaving] or [0, 1, 2]
    assert len(writers) == len(stays)  # files are numbered by the ranks that save
    said = results[stays[0]][1]
    assert any("preemption: leaving after step 6" in line and "step 6 is saved" in line for line in said), said
    run_ranks(start, 3, spec)
    assert_same_run(spec_of(root, "undisturbed"), spec)


@pytest.mark.slow
def test_with_time_left_training_goes_on_and_is_saved_again(root: Path) -> None:
    """Two minutes: the run is over before, so that its last step is saved by those that stay."""
    spec = spec_of(root, "time-left")
    results = run_ranks(noticed, 3, spec, Notice(120.0, (1,)))
    assert [outcome for outcome, _, _ in results] == [Outcome("preempted", 12)] * 3
    assert [checkpoint.step for checkpoint in complete(run_url(spec))] == [12, 6]
    run_ranks(start, 3, spec)
    assert_same_run(spec_of(root, "undisturbed"), spec)


@pytest.mark.slow
def test_a_second_notice_that_brings_the_saving_back_to_rank_0_loses_no_row(root: Path) -> None:
    spec = spec_of(root, "twice")
    results = run_ranks(noticed, 3, spec, Notice(120.0, (0,)), (), Notice(0.01, (0, 1, 2)))
    assert [outcome for outcome, _, _ in results] == [Outcome("preempted", 9)] * 3
    assert complete(run_url(spec))[0].step == 9
    run_ranks(start, 3, spec)
    assert_same_run(spec_of(root, "undisturbed"), spec)


@pytest.mark.slow
def test_a_machine_that_dies_after_the_emergency_save_costs_no_step(root: Path) -> None:
    spec = spec_of(root, "dies-early")
    with pytest.raises(AssertionError):  # its peers lose it in the next step
        run_ranks(noticed, 3, spec, Notice(120.0, (0,)), (0,), may_die=(0,), group_timeout_s=10)
    assert complete(run_url(spec))[0].step == 6
    run_ranks(start, 3, spec)
    assert_same_run(spec_of(root, "undisturbed"), spec)


def test_the_grid_of_the_step_at_which_a_notice_came_is_drawn_by_the_next_attempt(root: Path) -> None:
    sections = {"sample": {"every": "6 steps", "count": 4, "respacing": "2"}, "train": {"global_batch": 7, "duration": "8 steps"}}
    undisturbed, spec = (spec_of(root, name, **sections) for name in ("grids", "grid-owed"))
    run_ranks(start, 2, undisturbed)
    run_ranks(noticed, 2, spec, Notice(0.01, (0,)))
    assert [one.step for one in complete(run_url(spec))] == [6]
    run_ranks(start, 2, spec)
    (grid,), (owed,) = ([path.read_bytes() for path in Path(run_url(one), "samples").iterdir()] for one in (undisturbed, spec))
    assert grid == owed
