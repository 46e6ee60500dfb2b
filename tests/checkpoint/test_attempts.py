"""Attempts: numbers that nobody else has, and the chain that a run consists of."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import run_ranks
from states import save_alone

from iddpm_ray import storage
from iddpm_ray.checkpoint import attempts as module
from iddpm_ray.checkpoint import choose
from iddpm_ray.checkpoint.attempts import (
    Link,
    attempts,
    begin_attempt,
    end_attempt,
    in_lineage,
    lineage,
    refuse_if_superseded,
    take_attempt,
)
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.commit import Checkpoint, checkpoint_at, survey
from iddpm_ray.errors import CheckpointError


def begin(run: str, *, began_from: tuple[int, int] | None) -> int:
    number = take_attempt(run, info={"driver": "test"})
    start = None if began_from is None else checkpoint_at(run, step=began_from[0], attempt=began_from[1])
    begin_attempt(run, number, began_from=start, info={"world": 2})
    return number


def test_numbers_go_up_from_one_and_records_are_kept(tmp_path: Path) -> None:
    run = str(tmp_path)
    assert begin(run, began_from=None) == 1
    end_attempt(run, 1, info={"why": "preempted"})
    assert begin(run, began_from=(100, 1)) == 2
    first, second = attempts(run)
    assert (first.began, first.from_step, first.from_attempt, first.end) == (True, 0, None, {"why": "preempted", "attempt": 1})
    assert (second.from_step, second.from_attempt, second.info["world"], second.end) == (100, 1, 2, None)
    assert sorted(path.name for path in (tmp_path / "attempts").iterdir()) == ["0001.end.json", "0001.json", "0002.json"]


def take_five(run: str) -> list[int]:
    dist.barrier()
    return [take_attempt(run, info={"rank": dist.get_rank()}) for _ in range(5)]


def test_drivers_that_race_never_get_the_same_number(tmp_path: Path) -> None:
    taken = run_ranks(take_five, 4, str(tmp_path))
    assert sorted(number for numbers in taken for number in numbers) == list(range(1, 21))


def test_a_number_that_was_written_though_the_store_said_exists_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written_but_denied(url: str, data: bytes) -> bool:
        storage.write_whole(url, data)
        return False

    monkeypatch.setattr(module.storage, "create", written_but_denied)
    assert take_attempt(str(tmp_path), info={}) == 1


def test_a_number_whose_checkpoints_exist_is_never_given_again(tmp_path: Path) -> None:
    save_alone(str(tmp_path), 100, attempt=7)
    assert take_attempt(str(tmp_path), info={}) == 8


def test_the_lineage_is_the_chain_of_what_each_attempt_began_from(tmp_path: Path) -> None:
    run = str(tmp_path)
    begin(run, began_from=None)
    begin(run, began_from=(300, 1))
    begin(run, began_from=(300, 1))  # the second made no checkpoint
    take_attempt(run, info={})  # the fourth never began
    begin(run, began_from=(500, 3))
    chain = lineage(attempts(run))
    assert chain == [Link(1, 0, None, 300), Link(3, 300, 1, 500), Link(5, 500, 3, None)]
    assert lineage(attempts(run), head=2) == [Link(1, 0, None, 300), Link(2, 300, 1, None)]
    counted = {(step, attempt) for attempt in range(1, 6) for step in range(100, 800, 100) if in_lineage(chain, step=step, attempt=attempt)}
    assert counted == {(100, 1), (200, 1), (300, 1), (400, 3), (500, 3), (600, 5), (700, 5)}


def test_every_row_of_the_run_is_counted_once(tmp_path: Path) -> None:
    run = str(tmp_path)
    for began_from in (None, (30, 1), (20, 1), (45, 3)):
        begin(run, began_from=began_from)
    chain = lineage(attempts(run))
    for step in range(1, 60):
        assert sum(in_lineage(chain, step=step, attempt=attempt) for attempt in (1, 2, 3, 4)) == 1


def test_what_a_zombie_marks_after_its_successor_began_is_never_read(tmp_path: Path) -> None:
    run = str(tmp_path)
    zombie = begin(run, began_from=None)
    save_alone(run, 100, attempt=zombie)
    successor = begin(run, began_from=(100, zombie))
    save_alone(run, 200, attempt=zombie)
    chosen = newest_readable(run).checkpoint
    assert chosen is not None
    assert (chosen.step, chosen.attempt) == (100, zombie)
    save_alone(run, 150, attempt=successor)
    chosen = newest_readable(run).checkpoint
    assert chosen is not None
    assert (chosen.step, chosen.attempt) == (150, successor)


def test_a_superseded_attempt_is_refused_before_it_marks(tmp_path: Path) -> None:
    run = str(tmp_path)
    zombie = begin(run, began_from=None)
    refuse_if_superseded(run, zombie)
    take_attempt(run, info={})
    outcome = save_alone(run, 100, attempt=zombie, before_mark=lambda: refuse_if_superseded(run, zombie))
    assert not outcome.committed
    assert outcome.error is not None
    assert "attempt 1" in outcome.error
    assert "attempt 2 has taken the run" in outcome.error
    assert newest_readable(run).checkpoint is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"from": 3}', '{"from": {"step": -1, "attempt": 1}}', '{"from": {"step": 1}}', "{}"])
def test_a_record_that_cannot_be_understood_has_not_begun(tmp_path: Path, content: str) -> None:
    run = str(tmp_path)
    begin(run, began_from=None)
    (tmp_path / "attempts" / "0002.json").write_text(content)
    assert [attempt.began for attempt in attempts(run)] == [True, False]
    assert lineage(attempts(run)) == [Link(1, 0, None, None)]
    assert take_attempt(run, info={}) == 3


def test_records_that_name_each_other_end(tmp_path: Path) -> None:
    run = str(tmp_path)
    for number, other in ((1, 2), (2, 1)):
        take_attempt(run, info={})
        begin_attempt(run, number, began_from=Checkpoint("", 10, other), info={})
    assert [link.attempt for link in lineage(attempts(run))] == [1, 2]


def test_a_record_keeps_what_the_caller_says(tmp_path: Path) -> None:
    run = str(tmp_path)
    number = take_attempt(run, info={"host": "a"})
    assert json.loads((tmp_path / "attempts" / "0001.json").read_text())["host"] == "a"
    begin_attempt(run, number, began_from=None, info={"versions": {"torch": "2"}})
    assert attempts(run)[0].info["versions"] == {"torch": "2"}


def test_an_unreachable_number_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.storage, "create", lambda url, data: False)
    monkeypatch.setattr(module.storage, "read_bytes", lambda url: b"another's")
    with pytest.raises(CheckpointError, match="no attempt number to be had"):
        take_attempt(str(tmp_path), info={})


def cut(run: Path, number: int) -> None:
    record = run / "attempts" / f"{number:04d}.json"
    record.write_bytes(record.read_bytes()[: record.stat().st_size // 2])


def chosen(run: Path) -> str:
    checkpoint = newest_readable(str(run)).checkpoint
    assert checkpoint is not None
    return checkpoint.name


@pytest.mark.parametrize("harm", [cut, lambda run, number: (run / "attempts" / f"{number:04d}.json").unlink()])
def test_a_parent_whose_record_is_lost_still_counts(tmp_path: Path, harm: Callable[[Path, int], None]) -> None:
    begin(str(tmp_path), began_from=None)
    save_alone(str(tmp_path), 100, attempt=1)
    begin(str(tmp_path), began_from=(100, 1))
    save_alone(str(tmp_path), 150, attempt=1)  # a zombie's
    harm(tmp_path, 1)
    assert chosen(tmp_path) == "step-00000100.a0001"
    assert lineage(attempts(str(tmp_path))) == [Link(1, 0, None, 100, lost=True), Link(2, 100, 1, None)]


def test_the_checkpoints_of_an_attempt_whose_own_record_is_cut_still_count(tmp_path: Path) -> None:
    begin(str(tmp_path), began_from=None)
    save_alone(str(tmp_path), 100, attempt=1)
    begin(str(tmp_path), began_from=(100, 1))
    save_alone(str(tmp_path), 200, attempt=2)
    cut(tmp_path, 2)
    take_attempt(str(tmp_path), info={})  # the next one, which asks
    assert chosen(tmp_path) == "step-00000200.a0002"


def test_a_run_never_starts_afresh_because_a_record_cannot_be_read(tmp_path: Path) -> None:
    begin(str(tmp_path), began_from=None)
    save_alone(str(tmp_path), 100, attempt=1)
    begin(str(tmp_path), began_from=(100, 1))
    begin(str(tmp_path), began_from=(200, 2))
    cut(tmp_path, 2)  # and its checkpoint is gone
    with pytest.raises(CheckpointError, match=r"0002.json cannot be read: .* went on from step-00000100.a0001 is not known"):
        newest_readable(str(tmp_path))


def committed(run: str, *, step: int) -> None:
    """An attempt that has recorded its checkpoint."""
    assert save_alone(run, step, attempt=1).committed
    begin_attempt(run, 1, began_from=None, info={"committed": step})


def test_a_checkpoint_that_was_committed_and_lost_its_marker_is_missed(tmp_path: Path) -> None:
    run = str(tmp_path)
    take_attempt(run, info={})
    for step in (10, 20):
        committed(run, step=step)
    markers = [Path(checkpoint_at(run, step=step, attempt=1).url) / "marker.json" for step in (10, 20)]
    markers[1].unlink()
    choice = newest_readable(run)
    assert choice.checkpoint == checkpoint_at(run, step=10, attempt=1)
    assert choice.rejected == ("step-00000020.a0001 was committed, and has no marker.json now",)
    markers[0].unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* can be read: step-00000020.a0001 was committed"):
        newest_readable(run)


def test_a_listing_that_is_behind_does_not_hide_a_checkpoint_that_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(tmp_path)
    take_attempt(run, info={})
    committed(run, step=10)
    old = survey(run)
    committed(run, step=20)
    monkeypatch.setattr(choose, "survey", lambda run_url: old)
    assert newest_readable(run).checkpoint == checkpoint_at(run, step=20, attempt=1)
    monkeypatch.setattr(choose, "survey", lambda run_url: [])
    assert newest_readable(run).checkpoint == checkpoint_at(run, step=20, attempt=1)


def test_checkpoints_that_somebody_took_away_are_not_missed(tmp_path: Path) -> None:
    run = str(tmp_path)
    take_attempt(run, info={})
    for step in (10, 20):
        committed(run, step=step)
    shutil.rmtree(checkpoint_at(run, step=20, attempt=1).url)
    assert newest_readable(run).checkpoint == checkpoint_at(run, step=10, attempt=1)
    shutil.rmtree(checkpoint_at(run, step=10, attempt=1).url)
    assert newest_readable(run).checkpoint is None
