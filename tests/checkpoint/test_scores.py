"""Scores are one whole file a checkpoint; the newest one's first metric decides which is best, and the best are not swept away."""

import math
from pathlib import Path

import pytest

from iddpm_ray.checkpoint.scores import best_first, best_names, read_scores, running, say_running, score_url, write_score
from iddpm_ray.evaluate.best import best_step


def names(steps: list[int]) -> list[str]:
    return [f"step-{step:08d}.a0001" for step in steps]


def test_scores_come_back_in_step_order_and_the_smallest_distance_is_best(tmp_path: Path) -> None:
    url = str(tmp_path)
    for step, fid in ((8, 2.0), (4, 3.0), (12, 2.5)):
        write_score(url, names([step])[0], {"fid[x]": fid, "is[x]": step})
    assert [score.checkpoint.step for score in read_scores(url)] == [4, 8, 12]
    assert [score.checkpoint.step for score in best_first(read_scores(url))] == [8, 12, 4]
    assert best_names(url, count=2, among=names([4, 8, 12])) == tuple(names([8, 12]))
    assert best_names(url, count=2, among=names([4, 12])) == tuple(names([12, 4])), "8 was deleted"
    assert best_names(url, count=0, among=names([4])) == ()


def test_where_more_is_better_the_largest_is_best(tmp_path: Path) -> None:
    for step, score in ((4, 3.0), (8, 2.0)):
        write_score(str(tmp_path), names([step])[0], {"is[x]": score})
    assert best_names(str(tmp_path), count=1, among=names([4, 8])) == tuple(names([4]))


def test_other_features_do_not_compete_and_damage_is_passed_over(tmp_path: Path) -> None:
    url = str(tmp_path)
    write_score(url, names([4])[0], {"fid": 1.0})
    write_score(url, names([8])[0], {"fid[x]": 9.0})
    Path(score_url(url, names([12])[0])).write_text("{broken")
    Path(score_url(url, names([12])[0])).with_name("other.json").write_text("{}")
    assert best_names(url, count=3, among=names([4, 8, 12])) == tuple(names([8]))
    assert best_first([]) == []


@pytest.mark.parametrize("metric", ["fid", "is"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_the_best(tmp_path: Path, metric: str, value: float) -> None:
    url = str(tmp_path)
    for step, score in ((2, value), (4, 3.0), (6, 3.5), (8, value)):
        write_score(url, names([step])[0], {metric: score})
    assert sorted(best_names(url, count=4, among=names([2, 4, 6, 8]))) == names([4, 6])
    assert best_step(url, steps=[2, 4, 6, 8]) == (4 if metric == "fid" else 6)


@pytest.mark.parametrize("record", ['{"fid": 1' + "0" * 400 + "}", "[" * 100_000], ids=["long", "deep"])
def test_a_record_that_no_number_holds_is_damage(tmp_path: Path, record: str) -> None:
    url = str(tmp_path)
    write_score(url, names([4])[0], {"fid": 1.0})
    Path(score_url(url, names([8])[0])).write_text(record)
    assert [score.checkpoint.step for score in read_scores(url)] == [4]
    (tmp_path / "evaluations" / "running.json").write_text(record)
    assert running(url) is None


def test_the_checkpoint_under_evaluation_is_known_until_it_is_done(tmp_path: Path) -> None:
    url = str(tmp_path)
    say_running(url, None)
    assert running(url) is None
    say_running(url, names([4])[0])
    assert running(url) == names([4])[0]
    say_running(url, names([8])[0])
    assert running(url) == names([8])[0]
    (tmp_path / "evaluations" / "running.json").write_text("[")
    assert running(url) is None
    say_running(url, None)
    assert not (tmp_path / "evaluations" / "running.json").exists()
