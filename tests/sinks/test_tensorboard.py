"""TensorBoard shows one line for a run, however often it was restarted, and its pictures."""

from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from iddpm_ray.sinks.tensorboard import TensorBoardSink, tag_of


def events(run: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    accumulator.Reload()
    return accumulator


def test_rewound_steps_are_hidden(tmp_path: Path) -> None:
    first = TensorBoardSink(str(tmp_path), attempt=1, from_step=0)
    for step in range(1, 9):
        first.row({"step": step, "samples": step, "loss": 1.0, "time": 100.0 + step})
    first.commit(5)
    first.close()
    second = TensorBoardSink(str(tmp_path), attempt=2, from_step=5)
    for step in range(6, 10):
        second.row({"step": step, "samples": step, "loss": 2.0, "time": 200.0 + step})
    second.commit(9)
    second.close()
    points = [(point.step, point.value, point.wall_time) for point in events(tmp_path).Scalars("loss/loss")]
    assert points == [(step, 1.0, 100.0 + step) for step in range(1, 6)] + [(step, 2.0, 200.0 + step) for step in range(6, 10)]


def test_a_second_commit_brings_what_came_since(tmp_path: Path) -> None:
    sink = TensorBoardSink(str(tmp_path), attempt=1, from_step=0)
    for step in (1, 2):
        sink.row({"step": step, "samples": step, "loss": 0.5})
        sink.commit(step)
        assert [point.step for point in events(tmp_path).Scalars("loss/loss")] == list(range(1, step + 1))
    sink.close()


def test_pictures_arrive_in_grey_and_colour(tmp_path: Path) -> None:
    sink = TensorBoardSink(str(tmp_path), attempt=1, from_step=0)
    sink.picture("samples", 3, torch.zeros(1, 6, 9, dtype=torch.uint8))
    sink.picture("colour", 3, torch.full((3, 4, 5), 255, dtype=torch.uint8))
    sink.commit(3)
    sink.close()
    shown = events(tmp_path)
    (grey,), (colour,) = shown.Images("samples"), shown.Images("colour")
    assert (grey.step, grey.height, grey.width) == (3, 6, 9)
    assert (colour.height, colour.width) == (4, 5)


def test_uncommitted_rows_stay_away_and_close_is_safe_twice(tmp_path: Path) -> None:
    sink = TensorBoardSink(str(tmp_path), attempt=1, from_step=0)
    sink.row({"step": 1, "samples": 1, "loss": 1.0})
    sink.close()
    sink.close()
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize(
    ("key", "tag"),
    [
        ("loss", "loss/loss"),
        ("mse_q0", "loss/mse_q0"),
        ("vb", "loss/vb"),
        ("loss_t3", "loss by timestep/loss_t3"),
        ("grad_norm", "optimiser/grad_norm"),
        ("lr", "optimiser/lr"),
        ("images_per_second", "speed/images_per_second"),
        ("data_wait_s", "speed/data_wait_s"),
        ("time_productive_s", "time/time_productive_s"),
        ("productive_share", "time/productive_share"),
        ("memory_gib", "speed/memory_gib"),
        ("validation_loss", "validation/validation_loss"),
        ("attempt", "other/attempt"),
    ],
)
def test_columns_are_grouped(key: str, tag: str) -> None:
    assert tag_of(key) == tag
