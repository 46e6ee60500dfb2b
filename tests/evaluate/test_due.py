"""Which checkpoint is evaluated next: the first after each multiple, the newest of them, and the last one of all."""

from iddpm_ray.checkpoint.commit import checkpoint_at
from iddpm_ray.evaluate.due import next_due

POINTS = [checkpoint_at("run", step=step, attempt=1) for step in (3, 4, 8, 9, 11, 13)]


def due(count: int, *, done: tuple[int, ...] = (), finished: bool = False) -> int | None:
    names = {point.name for point in POINTS if point.step in done}
    found = next_due(POINTS[:count], every=40, global_batch=10, done=names, finished=finished)
    return None if found is None else found.step


def test_the_first_checkpoint_at_or_after_each_multiple_is_due() -> None:
    assert [due(count) for count in range(7)] == [None, None, 4, 8, 8, 8, 13]


def test_a_newer_one_supersedes_those_that_found_no_room() -> None:
    assert due(5, done=()) == 8
    assert due(5, done=(8,)) is None, "4 was superseded before anybody had room for it"
    assert due(6, done=(8,)) == 13


def test_the_last_one_is_due_when_the_run_is_over() -> None:
    assert due(5, done=(4, 8), finished=True) == 11
    assert due(5, done=(4, 8, 11), finished=True) is None
    assert next_due([], every=40, global_batch=10, done=(), finished=True) is None


def test_what_is_evaluated_does_not_depend_on_what_retention_leaves() -> None:
    points = [checkpoint_at("run", step=step, attempt=1) for step in range(1000, 40_001, 1000)]
    evaluated: list[str] = []
    for newest in range(len(points)):
        there = points[max(0, newest - 2) : newest + 1]  # keep_last: 3
        found = next_due(there, every=10_000 * 8, global_batch=8, done=evaluated)
        if found is not None:
            evaluated.append(found.name)
    assert evaluated == [points[index].name for index in (9, 19, 29, 39)]
