"""What belongs to a run's history, and which numbers of a row must be the same in every undisturbed twin."""

import random

import pytest

from iddpm_ray.sinks.rows import Begun, Row, lineage_rows, lineage_spans, volatile


def rows_of(attempt: int, steps: range) -> list[Row]:
    return [{"step": step, "samples": 8 * step, "attempt": attempt} for step in steps]


def test_rewound_rows_are_never_doubled() -> None:
    rows = {1: rows_of(1, range(10, 131, 10)), 2: rows_of(2, range(110, 241, 10)), 3: rows_of(3, range(210, 301, 10))}
    lineage = [Begun(1), Begun(2, from_step=100, from_attempt=1), Begun(3, from_step=200, from_attempt=2)]
    history = lineage_rows(rows, lineage)
    assert [row["step"] for row in history] == list(range(10, 301, 10))
    assert [row["attempt"] for row in history] == [1] * 10 + [2] * 10 + [3] * 10


def test_an_attempt_that_nobody_descends_from_leaves_no_rows() -> None:
    rows = {1: rows_of(1, range(1, 9)), 2: rows_of(2, range(5, 30)), 3: rows_of(3, range(3, 7))}
    lineage = [Begun(1), Begun(2, from_step=4, from_attempt=1), Begun(3, from_step=2, from_attempt=1)]
    assert [(row["step"], row["attempt"]) for row in lineage_rows(rows, lineage)] == [(1, 1), (2, 1), (3, 3), (4, 3), (5, 3), (6, 3)]


def test_going_back_behind_an_ancestors_beginning_drops_that_ancestor() -> None:
    lineage = [Begun(1), Begun(2, from_step=50, from_attempt=1), Begun(3, from_step=50, from_attempt=2)]
    rows = {1: rows_of(1, range(10, 61, 10)), 2: rows_of(2, range(60, 91, 10)), 3: rows_of(3, range(60, 71, 10))}
    assert [(row["step"], row["attempt"]) for row in lineage_rows(rows, lineage)][-3:] == [(50, 1), (60, 3), (70, 3)]


def test_upto_cuts_the_history() -> None:
    rows = {1: rows_of(1, range(1, 20)), 2: rows_of(2, range(11, 30))}
    lineage = [Begun(1), Begun(2, from_step=10, from_attempt=1)]
    assert [row["step"] for row in lineage_rows(rows, lineage, upto=25)] == list(range(1, 26))
    assert [row["step"] for row in lineage_rows(rows, lineage, upto=7)] == list(range(1, 8))


@pytest.mark.parametrize("seed", range(20))
def test_any_lineage_gives_each_step_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    lineage, reached = [Begun(1)], {1: rng.randint(0, 40)}
    for attempt in range(2, 9):
        parent = rng.choice(sorted(reached))
        begun = Begun(attempt, from_step=rng.randint(0, reached[parent]), from_attempt=parent)
        lineage.append(begun)
        reached[attempt] = begun.from_step + rng.randint(0, 40)
    rows = {begun.attempt: rows_of(begun.attempt, range(begun.from_step + 1, reached[begun.attempt] + 1)) for begun in lineage}
    history = [int(row["step"]) for row in lineage_rows(rows, lineage)]
    assert history == list(range(1, reached[8] + 1))


def test_no_lineage_has_no_history_and_circles_end() -> None:
    assert lineage_spans([]) == []
    assert [span.attempt for span in lineage_spans([Begun(1, 5, 2), Begun(2, 6, 1)])] == [1, 2]


@pytest.mark.parametrize(
    "key", ["time", "attempt", "images_per_second", "data_wait_s", "data_wait_share", "memory_gib", "step_seconds", "mfu"]
)
def test_times_rates_memory_and_attempt_are_volatile(key: str) -> None:
    assert volatile(key)


@pytest.mark.parametrize(
    "key",
    ["step", "samples", "loss", "loss_q0", "mse_q3", "vb", "grad_norm", "param_norm", "lr", "lg_loss_scale", "skipped_steps", "loss_t3"],
)
def test_numbers_of_the_run_itself_are_not_volatile(key: str) -> None:
    assert not volatile(key)
