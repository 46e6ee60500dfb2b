"""What evaluations found of a run's checkpoints, among its numbers: rows by step for programs, and points for TensorBoard.

{run}/metrics/evaluations.jsonl                                    a row a checkpoint, rewritten whole
{run}/tensorboard/evaluations/events.out.tfevents.step-....a0003   a file a checkpoint, written once
"""

import io
import time
from collections.abc import Mapping

from iddpm_ray import storage
from iddpm_ray.checkpoint.attempts import attempts, in_lineage, lineage
from iddpm_ray.checkpoint.commit import Checkpoint
from iddpm_ray.checkpoint.scores import read_scores, write_score
from iddpm_ray.sinks.jsonl import encode_row
from iddpm_ray.sinks.rows import Row

_ROWS = ("metrics", "evaluations.jsonl")
_EVENTS = ("tensorboard", "evaluations")
GROUP = "quality"


def keep_evaluation(run_url: str, checkpoint: Checkpoint, metrics: Mapping[str, float], *, global_batch: int, tensorboard: bool) -> None:
    """Puts what was found of a checkpoint wherever the run's numbers are looked for.

    Args:
        metrics: by name; the first decides which checkpoint is the best.
        global_batch: samples a step, for the rows' clock.
        tensorboard: whether the run has event files.
    """
    write_score(run_url, checkpoint.name, metrics)
    rows = evaluation_rows(run_url, global_batch=global_batch)
    storage.write_whole(storage.join(run_url, *_ROWS), b"".join(map(encode_row, rows)))
    if tensorboard:
        place = storage.join(run_url, *_EVENTS, f"events.out.tfevents.{checkpoint.name}")
        storage.write_whole(place, _events(metrics, step=checkpoint.step))


def evaluation_rows(run_url: str, *, global_batch: int) -> list[Row]:
    """A row for each checkpoint of the run's lineage that was evaluated, in step order."""
    chain = lineage(attempts(run_url))
    scores = [one for one in read_scores(run_url) if in_lineage(chain, step=one.checkpoint.step, attempt=one.checkpoint.attempt)]
    return [
        {"step": one.checkpoint.step, "samples": one.checkpoint.step * global_batch, **one.metrics, "attempt": one.checkpoint.attempt}
        for one in scores
    ]


def _events(metrics: Mapping[str, float], *, step: int) -> bytes:
    """An event file with a point for each number."""
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] made by protoc
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue] as above
    from tensorboard.summary.writer.record_writer import RecordWriter

    now, file = time.time(), io.BytesIO()
    values = [Summary.Value(tag=f"{GROUP}/{name}", simple_value=value) for name, value in metrics.items()]
    for event in (Event(wall_time=now, file_version="brain.Event:2"), Event(wall_time=now, step=step, summary=Summary(value=values))):
        RecordWriter(file).write(event.SerializeToString())
    return file.getvalue()
