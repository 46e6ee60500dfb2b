"""Saves that fail are said loudly each time, and end the run only when `checkpoint.max_unsaved` is reached."""

import re
from pathlib import Path

import faulty
import pytest
import tiny
from faulty import Fault
from ranks import run_ranks
from train.small_run import start

from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.checkpoint.lease import FencedError, take_lease
from iddpm_ray.errors import TrainError
from iddpm_ray.spec.duration import parse_duration
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.directory import inspect_run, take_place, write_run
from iddpm_ray.train.loop import train
from iddpm_ray.train.session import LocalSession
from iddpm_ray.train.sources import LocalSources
from iddpm_ray.train.unsaved import Unsaved


def spec_of(root: Path, **changes: object) -> JobSpec:
    if not (root / "pictures").exists():
        tiny.write_pictures(root / "pictures")
    rules = {"checkpoint__every": "1 steps", "train__duration": "8 steps", "checkpoint__asynchronous": False, **changes}
    return tiny.tiny_spec(root, run__output_dir=f"faulty://{root}/runs", **rules)


def failing_from(step: int, last: int = 8) -> list[Fault]:
    """The store refuses every file of these steps' checkpoints."""
    return [Fault("pipe_file", at=-1, kind="refuse", path=f"step-{number:08d}") for number in range(step, last + 1)]


def test_the_run_ends_when_so_much_is_unsaved_and_names_why_and_since_when(tmp_path: Path) -> None:
    faulty.register()
    session = LocalSession()
    spec = spec_of(tmp_path, checkpoint__max_unsaved="3 steps")
    with faulty.faults(*failing_from(3)), pytest.raises(TrainError) as caught:
        tiny.attempt(spec, session)
    assert re.match(
        r"nothing could be saved since step 2, and checkpoint\.max_unsaved is reached at step 5: .*permission denied \(got 3 steps\): "
        r"mend the storage and start again: the run goes on from step 2",
        str(caught.value),
    )
    said = [line for line in session.messages if "NOT saved" in line]
    assert [re.search(r"step-0000000(\d)", line)[1] for line in said] == ["3", "4", "5"]  # type: ignore[index]
    assert all("nothing saved since step 2" in line and "the run ends when 3 steps are unsaved" in line for line in said)
    assert [one.step for one in complete(f"{tmp_path}/runs/tiny")] == [2, 1]
    session = LocalSession()
    assert tiny.attempt(spec, session).step == 8, "mended, it goes on"
    assert any(line.startswith("resuming step 2") for line in session.messages)


@pytest.mark.parametrize("limit", [None, "20 steps", "1 h"])
def test_it_goes_on_while_less_is_unsaved(tmp_path: Path, limit: str | None) -> None:
    faulty.register()
    session = LocalSession()
    with faulty.faults(*failing_from(3, last=7)):
        assert tiny.attempt(spec_of(tmp_path, checkpoint__max_unsaved=limit), session).why == "finished"
    assert len([line for line in session.messages if "NOT saved" in line]) == 5
    assert complete(f"{tmp_path}/runs/tiny")[0].step == 8


def test_a_save_that_succeeds_at_the_last_chance_saves_the_run(tmp_path: Path) -> None:
    faulty.register()
    with faulty.faults(*failing_from(3, last=4)):
        assert tiny.attempt(spec_of(tmp_path, checkpoint__max_unsaved="3 steps"), LocalSession()).why == "finished"
    assert [one.step for one in complete(f"{tmp_path}/runs/tiny")] == [8, 7, 6]


def on_ranks(spec: JobSpec) -> str:
    faulty.register()
    with faulty.faults(*failing_from(3)):
        try:
            start(spec)
        except TrainError as error:
            return str(error)
    return "went on"


def test_all_ranks_decide_alike(tmp_path: Path) -> None:
    said = run_ranks(on_ranks, 2, spec_of(tmp_path, checkpoint__max_unsaved="2 steps", checkpoint__asynchronous=True))
    assert said[0] == said[1]
    assert "nothing could be saved since step 2" in said[0]


def test_minutes_count_from_the_last_save() -> None:
    unsaved = Unsaved(parse_duration("2 min"), 4, 100, step=5, seconds=10.0)
    assert not unsaved.too_much(step=900, seconds=1000.0), "nothing has failed"
    unsaved.failed("no answer")
    assert not unsaved.too_much(step=900, seconds=129.0)
    assert unsaved.too_much(step=6, seconds=130.0)
    unsaved.committed(step=6, seconds=130.0)
    assert not unsaved.too_much(step=900, seconds=1000.0)


def test_epochs_and_samples_count_too() -> None:
    for limit, enough in (("1 epoch", 25), ("80 samples", 20), ("7 steps", 7)):
        unsaved = Unsaved(parse_duration(limit), 4, 100, step=10, seconds=0.0, failure="no")
        assert not unsaved.too_much(step=10 + enough - 1, seconds=0.0)
        assert unsaved.too_much(step=10 + enough, seconds=0.0)


def test_an_attempt_whose_run_was_taken_over_ends_and_says_by_whom(tmp_path: Path) -> None:
    faulty.register()
    spec = spec_of(tmp_path)
    opening = inspect_run(spec)
    write_run(opening)
    place = take_place(opening, info={}, lease=take_lease(opening.url, holder="anna", stale_after_s=0))
    sources = LocalSources.of(spec, opening.manifest, rank=0, world_size=1)
    take_lease(opening.url, holder="ben on host-2", stale_after_s=0)
    with pytest.raises(FencedError, match=r"step-00000001\.a0001 was not marked: .* was taken over by ben on host-2 at 20"):
        train(spec, LocalSession(), sources=sources, place=place)
    assert complete(opening.url) == []
