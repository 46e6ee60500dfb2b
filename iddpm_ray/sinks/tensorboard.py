"""Rows and pictures for TensorBoard: one event file an attempt, written locally and copied whole at each commit."""

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from iddpm_ray import storage

# The first pattern that matches a key's beginning names its group; groups are the sections of TensorBoard's page.
GROUPS = (
    ("validation", re.compile(r"val(idation)?_")),
    ("loss by timestep", re.compile(r"(loss|mse|vb)\w*_(t|bin)\d")),
    ("loss", re.compile(r"loss|mse|vb")),
    ("optimiser", re.compile(r"grad_norm|param_norm|lr|lg_loss_scale|skipped|microbatch")),
    ("time", re.compile(r"time_|productive_share")),
    ("speed", re.compile(r"images_per_second|data_wait|memory|mfu|\w*(_s|_gib|_per_second)$")),
)


def tag_of(key: str) -> str:
    """The TensorBoard tag of a column, `group/key`."""
    return next((f"{group}/{key}" for group, pattern in GROUPS if pattern.match(key)), f"other/{key}")


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
