"""Rows and pictures for TensorBoard: one event file an attempt, written locally and copied whole at each commit."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from iddpm_ray import storage
from iddpm_ray.sinks.tags import tag_of


class TensorBoardSink:
    """All attempts lie in one directory, in order of their numbers, so that TensorBoard draws one line for the run.

    An attempt's file begins with the step it goes on from; TensorBoard then hides what an earlier attempt wrote beyond it.
    """

    def __init__(self, run_url: str, *, attempt: int, from_step: int) -> None:
        """Args:
        from_step: updates completed when the attempt began.
        """
        self._url = storage.join(run_url, "tensorboard", f"events.out.tfevents.a{attempt:04d}")
        self._local = Path(tempfile.mkdtemp(prefix="iddpm-tensorboard-"))
        self._writer: SummaryWriter | None = SummaryWriter(str(self._local), purge_step=from_step + 1 if attempt > 1 else None)

    def row(self, row: Mapping[str, float | int | str]) -> None:
        """A point for each number; strings are left out."""
        assert self._writer is not None
        step, when = int(row["step"]), row.get("time")
        for key, value in row.items():
            if key not in ("step", "samples", "time") and not isinstance(value, str):
                self._writer.add_scalar(tag_of(key), value, step, walltime=float(when) if when is not None else None)

    def picture(self, name: str, step: int, picture: Tensor) -> None:
        """A picture [C, H, W] uint8 under its name."""
        assert self._writer is not None
        self._writer.add_image(name, picture, step)

    def commit(self, step: int) -> None:
        """Copies the event file whole."""
        assert self._writer is not None
        self._writer.flush()
        (events,) = self._local.glob("events.out.tfevents.*")
        storage.write_whole(self._url, events.read_bytes())

    def close(self) -> None:
        """Ends the writer and its temporary directory; what was not committed is gone, as with every sink."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            shutil.rmtree(self._local, ignore_errors=True)
