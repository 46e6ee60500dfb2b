"""Kill a run anywhere and start it again: every tensor and every number is that of the undisturbed run."""

import random
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from train.small_run import assert_same_run, run_url, small_spec, start, write_pictures

from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.spec.spec import JobSpec

# What makes a resume hard: the loss history, masks drawn anew each step, half precision, unequal slices, several averages.
HARD: dict[str, dict[str, Any]] = {
    "resampler": {"kind": "loss_second_moment", "history": 2},
    "model": {"dropout": 0.2, "class_dropout": 0.1},
    "optim": {"precision": "bf16", "clip_norm": 1.0, "microbatch": 2, "warmup": "3 steps", "schedule": "linear", "anneal": "20 steps"},
    "data": {"flip": True},
}
PHASES = ("load", "first step", "data", "forward", "backward", "update", "row", "save", "stop")


def spec_named(root: Path, name: str, **sections: dict[str, Any]) -> JobSpec:
    merged = {key: {**HARD.get(key, {}), **sections.get(key, {})} for key in HARD.keys() | sections.keys()}
    return small_spec(root, **{**merged, "run": {"name": name}})


def attempt(spec: JobSpec, world_size: int, **death: Any) -> list[Any]:
    return run_ranks(start, world_size, spec, *death.values(), may_die=range(world_size) if death else (), timeout_s=120)


def kill_points(count: int, seed: int) -> list[tuple[str, int]]:
    chosen = random.Random(seed)
    often = {"data": 12, "forward": 20, "backward": 20, "update": 12, "row": 4, "save": 3}
    return [(phase, chosen.randint(1, often.get(phase, 1))) for phase in (chosen.choice(PHASES) for _ in range(count))]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("resume")
    write_pictures(root / "pictures")
    return root


def check(root: Path, world_size: int, points: list[tuple[str, int]]) -> None:
    undisturbed = spec_named(root, f"whole-{world_size}")
    if not complete(run_url(undisturbed)):
        attempt(undisturbed, world_size)
    for number, (phase, nth) in enumerate(points):
        spec = spec_named(root, f"killed-{world_size}-{number}-{phase.replace(' ', '-')}-{nth}")
        attempt(spec, world_size, dies_at=phase, countdown=nth)
        attempt(spec, world_size)
        assert_same_run(undisturbed, spec)


def test_resume_is_bitwise_with_two_ranks(pictures: Path) -> None:
    check(pictures, 2, [("backward", 9), ("save", 2)])


@pytest.mark.slow
def test_resume_is_bitwise_with_four_ranks(pictures: Path) -> None:
    check(pictures, 4, [("update", 6)])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_resume_is_bitwise_at_ten_random_kill_points(pictures: Path, world_size: int) -> None:
    check(pictures, world_size, kill_points(10, seed=world_size))


@pytest.mark.slow
def test_killed_twice_in_a_row_and_still_the_same(pictures: Path) -> None:
    undisturbed, spec = spec_named(pictures, "whole-once"), spec_named(pictures, "killed-twice")
    attempt(undisturbed, 1)
    attempt(spec, 1, dies_at="update", countdown=7)
    attempt(spec, 1, dies_at="load", countdown=1)
    [(outcome, messages)] = attempt(spec, 1)
    assert outcome.step == 12
    assert any("resuming step 4" in message and "attempt 3" in message for message in messages)
    assert_same_run(undisturbed, spec)


def test_a_finished_run_started_again_changes_nothing(pictures: Path) -> None:
    spec = spec_named(pictures, "finished")
    attempt(spec, 1)
    before = [point.name for point in complete(run_url(spec))]
    [(outcome, _)] = attempt(spec, 1)
    assert outcome.why == "finished"
    assert [point.name for point in complete(run_url(spec))] == before
