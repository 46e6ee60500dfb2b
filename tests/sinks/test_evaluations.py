"""What evaluations found stands in the run's rows and on TensorBoard's page, each checkpoint once, in step order."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from iddpm_ray.checkpoint.attempts import begin_attempt
from iddpm_ray.checkpoint.commit import checkpoint_at
from iddpm_ray.checkpoint.scores import read_scores
from iddpm_ray.sinks.evaluations import keep_evaluation
from iddpm_ray.sinks.jsonl import read_rows


def keep(run: Path, *, step: int, fid: float, tensorboard: bool = True) -> None:
    checkpoint = checkpoint_at(str(run), step=step, attempt=1)
    keep_evaluation(str(run), checkpoint, {"fid[x]": fid, "kid[x]": 0.5}, global_batch=8, tensorboard=tensorboard)


def test_rows_scores_and_points_say_the_same(tmp_path: Path) -> None:
    begin_attempt(str(tmp_path), 1, began_from=None, info={})
    for step, fid in ((200, 4.0), (100, 9.0), (100, 8.0)):  # one was measured again
        keep(tmp_path, step=step, fid=fid)
    rows = read_rows(str(tmp_path / "metrics" / "evaluations.jsonl"))
    assert [(row["step"], row["samples"], row["fid[x]"], row["attempt"]) for row in rows] == [(100, 800, 8.0, 1), (200, 1600, 4.0, 1)]
    assert [score.metrics["fid[x]"] for score in read_scores(str(tmp_path))] == [8.0, 4.0]
    shown = EventAccumulator(str(tmp_path / "tensorboard" / "evaluations"))
    shown.Reload()
    assert [(point.step, point.value) for point in shown.Scalars("quality/fid[x]")] == [(100, 8.0), (200, 4.0)]
    assert [point.value for point in shown.Scalars("quality/kid[x]")] == pytest.approx([0.5, 0.5])


def test_a_run_without_tensorboard_gets_no_event_files(tmp_path: Path) -> None:
    begin_attempt(str(tmp_path), 1, began_from=None, info={})
    keep(tmp_path, step=100, fid=1.0, tensorboard=False)
    assert not (tmp_path / "tensorboard").exists()
