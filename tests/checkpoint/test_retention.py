"""What is kept, and that nothing else is ever deleted."""

import random
from pathlib import Path

import faulty
import pytest
from states import save_alone

from iddpm_ray.checkpoint.attempts import begin_attempt, take_attempt
from iddpm_ray.checkpoint.commit import Checkpoint, checkpoint_at, complete, survey
from iddpm_ray.checkpoint.marker import MARKER
from iddpm_ray.checkpoint.retention import leftovers, plan, sweep
from iddpm_ray.checkpoint.scores import write_score


def made(*steps: int, attempt: int = 1) -> list[Checkpoint]:
    return [checkpoint_at("gs://b/r", step=step, attempt=attempt) for step in steps]


def steps(checkpoints: list[Checkpoint]) -> list[int]:
    return [checkpoint.step for checkpoint in checkpoints]


def test_the_newest_stay_and_the_oldest_go_first() -> None:
    assert steps(plan(made(300, 100, 500, 200, 400), keep_last=2, keep_every=None, global_batch=8)) == [100, 200, 300]
    assert plan(made(100, 200), keep_last=3, keep_every=None, global_batch=8) == []
    assert plan([], keep_last=3, keep_every=None, global_batch=8) == []


@pytest.mark.parametrize("keep_last", [0, 1, -5])
def test_the_newest_complete_one_stays_whatever_the_rule(keep_last: int) -> None:
    assert steps(plan(made(100, 200), keep_last=keep_last, keep_every=None, global_batch=8)) == [100]


def test_the_first_one_after_each_multiple_stays_for_ever() -> None:
    doomed = plan(made(*range(1000, 10001, 1000)), keep_last=1, keep_every=2500 * 8, global_batch=8)
    assert steps(doomed) == [1000, 2000, 4000, 6000, 7000, 9000]


def test_what_is_kept_does_not_depend_on_how_often_one_sweeps() -> None:
    everything = made(*range(70, 5000, 70))
    rules = {"keep_last": 2, "keep_every": 600 * 4, "global_batch": 4}
    held: list[Checkpoint] = []
    for checkpoint in everything:
        held.append(checkpoint)
        doomed = plan(held, **rules)
        held = [kept for kept in held if kept not in doomed]
    doomed = plan(everything, **rules)
    assert held == [checkpoint for checkpoint in everything if checkpoint not in doomed]


def test_protected_names_and_the_newest_are_never_in_a_plan() -> None:
    generator = random.Random(0)
    for _ in range(300):
        checkpoints = made(*generator.sample(range(1, 400), generator.randint(1, 12)))
        protected = {checkpoint.name for checkpoint in checkpoints if generator.random() < 0.3}
        every = generator.choice([None, generator.randint(1, 2000)])
        doomed = plan(checkpoints, keep_last=generator.randint(0, 4), keep_every=every, global_batch=3, protected=protected)
        assert not protected & {checkpoint.name for checkpoint in doomed}
        assert max(steps(checkpoints)) not in steps(doomed)
        assert steps(doomed) == sorted(steps(doomed))


def begin(run: str, began_from: Checkpoint | None) -> int:
    number = take_attempt(run, info={})
    begin_attempt(run, number, began_from=began_from, info={})
    return number


def unmark(checkpoint: Checkpoint) -> None:
    (Path(checkpoint.url) / MARKER).unlink()


def sweep_all(run: str, attempt: int, keep_last: int = 1) -> tuple[str, ...]:
    return sweep(run, attempt=attempt, keep_last=keep_last, keep_every=None, global_batch=10).deleted


def test_leftovers_of_earlier_attempts_go_and_later_ones_stay(tmp_path: Path) -> None:
    run = str(tmp_path)
    for step, attempt in [(10, 1), (20, 2), (30, 2), (40, 2), (5, 3)]:
        save_alone(run, step, attempt=attempt)
    for step, attempt in [(10, 1), (20, 2), (40, 2), (5, 3)]:
        unmark(checkpoint_at(run, step=step, attempt=attempt))
    doomed = leftovers(survey(run), attempt=2)
    assert [(checkpoint.step, checkpoint.attempt) for checkpoint in doomed] == [(10, 1), (20, 2)]


def test_a_sweep_deletes_by_the_rule_and_keeps_what_is_outside_the_lineage(tmp_path: Path) -> None:
    run = str(tmp_path)
    first = begin(run, None)
    for step in (10, 20, 30):
        save_alone(run, step, attempt=first)
    second = begin(run, checkpoint_at(run, step=20, attempt=first))  # 30 could not be read, say
    save_alone(run, 40, attempt=second)
    assert sweep_all(run, second) == ("step-00000010.a0001", "step-00000020.a0001")
    assert [checkpoint.name for checkpoint in complete(run)] == ["step-00000040.a0002", "step-00000030.a0001"]


def test_nothing_is_deleted_once_a_later_attempt_has_taken_its_number(tmp_path: Path) -> None:
    run = str(tmp_path)
    first = begin(run, None)
    for step in (10, 20, 30):
        save_alone(run, step, attempt=first)
    begin(run, checkpoint_at(run, step=20, attempt=first))
    assert sweep_all(run, first) == ()
    assert len(complete(run)) == 3


def test_a_later_attempt_that_comes_in_the_middle_of_a_sweep_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from iddpm_ray.checkpoint import retention

    run = str(tmp_path)
    first = begin(run, None)
    for step in (10, 20, 30):
        save_alone(run, step, attempt=first)
    real = retention.delete_checkpoint

    def delete_and_be_superseded(checkpoint: Checkpoint) -> None:
        real(checkpoint)
        begin(run, checkpoint_at(run, step=30, attempt=first))

    monkeypatch.setattr(retention, "delete_checkpoint", delete_and_be_superseded)
    assert sweep_all(run, first) == ("step-00000010.a0001",)
    assert steps(complete(run)) == [30, 20]


def test_a_deletion_that_fails_is_reported_and_made_up_for_later(tmp_path: Path) -> None:
    faulty.register()
    run = f"faulty://{tmp_path}"
    first = begin(run, None)
    for step in (10, 20, 30):
        save_alone(run, step, attempt=first)
    rules = {"attempt": first, "keep_last": 1, "keep_every": None, "global_batch": 10}
    with faulty.faults(faulty.Fault("rm_file", at=2, kind="refuse", path="step-00000010")):
        swept = sweep(run, **rules)
    assert swept.deleted == ("step-00000020.a0001",)
    assert len(swept.failed) == 1
    assert "step-00000010.a0001 could not be deleted" in swept.failed[0]
    assert steps(complete(run)) == [30]  # unmarked first, so half a checkpoint is none
    assert sweep(run, **rules).deleted == ("step-00000010.a0001",)
    assert [stored.checkpoint.step for stored in survey(run)] == [30]


def test_the_best_are_kept_of_those_that_are_there_and_in_the_lineage(tmp_path: Path) -> None:
    run = str(tmp_path)
    first = begin(run, None)
    for step in (10, 20, 30, 40):
        save_alone(run, step, attempt=first)
    second = begin(run, checkpoint_at(run, step=30, attempt=first))
    save_alone(run, 50, attempt=second)
    for step, fid in ((5, 1.0), (10, 4.0), (20, 3.0), (30, 5.0), (40, 2.0)):
        write_score(run, checkpoint_at(run, step=step, attempt=first).name, {"fid": fid})
    swept = sweep(run, attempt=second, keep_last=1, keep_every=None, global_batch=10, keep_best=1)
    assert swept.deleted == ("step-00000010.a0001", "step-00000030.a0001")
    assert steps(complete(run)) == [50, 40, 20], "20 is the best of the run; 5 is gone, and 40 is no part of it"
