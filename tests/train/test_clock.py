"""Laws of the one clock: intervals fire by crossing, whatever the batch, and minutes decide only when to save and stop."""

import pytest

from iddpm_ray.spec.duration import Duration, parse_duration
from iddpm_ray.train.clock import Clock


def clock(batch: int = 7, **given: str | None) -> Clock:
    said: dict[str, str | None] = {"duration": "100 steps", "row_every": "10 steps", "save_every": "20 steps", **given}
    lengths: dict[str, Duration | None] = {name: None if text is None else parse_duration(text) for name, text in said.items()}
    return Clock(global_batch=batch, rows_per_epoch=50, **{"validate_every": None, "sample_every": None, **lengths})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
@pytest.mark.parametrize("every", ["500 samples", "3 epochs", "13 steps"])
def test_no_interval_is_missed_and_none_fires_twice(batch: int, every: str) -> None:
    ticking = clock(batch, sample_every=every, duration="400 steps")
    samples = parse_duration(every).samples(batch, 50)
    fired = sum(ticking.due(step).sample for step in range(1, 401))
    assert fired == min(400, 400 * batch // samples)


def test_the_end_is_always_a_row_and_a_save() -> None:
    last = clock(duration="33 steps").due(33)
    assert (last.done, last.row, last.save) == (True, True, True)
    assert not clock(duration="33 steps").due(32).done


def test_a_duration_in_samples_ends_with_the_step_that_reaches_it() -> None:
    assert clock(duration="100 samples").total_steps() == 15
    assert clock(duration="2 epochs").total_steps() == 15


def test_minutes_never_say_how_many_steps_there_are() -> None:
    timed = clock(duration="15 min", save_every="5 min")
    assert timed.total_steps() is None
    assert not timed.due(1000).done
    assert not timed.due(1000).save
    assert not timed.time_is_up()


def test_time_counts_over_all_attempts() -> None:
    timed = clock(duration="15 min")
    timed.trained_seconds = 15 * 60.0
    assert timed.time_is_up()
    assert not clock(duration="10 steps").time_is_up()


def test_what_is_over_is_seen_in_what_was_saved() -> None:
    """A duration made shorter than what was trained is over too; minutes are those of the checkpoint, on all ranks the same."""
    assert [clock(duration="33 steps").is_over(step) for step in (32, 33, 40)] == [False, True, True]
    timed = clock(duration="1 min")
    assert not timed.is_over(5)
    timed.trained_seconds = 60.0
    assert timed.is_over(5)
