"""What is due after a step: a pure function of samples seen, and of minutes only for saving and stopping."""

import math
import time
from dataclasses import dataclass, field

from iddpm_ray.spec.duration import Duration, crossed
from iddpm_ray.train.session import Wish


@dataclass(frozen=True)
class Due:
    """What the loop has to do now.

    Attributes:
        row, validate, sample, save: at intervals.
        done: the run's duration is over.
    """

    row: bool
    validate: bool
    sample: bool
    save: bool
    done: bool


@dataclass
class Clock:
    """Intervals over the one clock, `samples_seen`; durations in minutes read this process's wall clock, on rank 0 alone."""

    global_batch: int
    rows_per_epoch: int
    duration: Duration
    row_every: Duration
    validate_every: Duration | None
    sample_every: Duration | None
    save_every: Duration
    trained_seconds: float = 0.0
    _started: float = field(default_factory=time.monotonic)
    _saved: float = field(default_factory=time.monotonic)

    def total_steps(self) -> int | None:
        """Steps of the whole run; None when it ends by the wall clock."""
        samples = self._samples(self.duration)
        return None if samples is None else math.ceil(samples / self.global_batch)

    def is_over(self, step: int) -> bool:
        """Whether a run restored after `step` updates has nothing left to do; looks only at what was saved, so all ranks agree."""
        total = self.total_steps()
        return self.trained_seconds >= 60 * self.duration.amount if total is None else step >= total

    def due(self, step: int) -> Due:
        """What is due once `step` updates are completed."""
        before, after = (step - 1) * self.global_batch, step * self.global_batch
        total = self.total_steps()
        done = total is not None and step >= total
        return Due(
            row=done or self._fires(self.row_every, before, after),
            validate=self._fires(self.validate_every, before, after),
            sample=self._fires(self.sample_every, before, after),
            save=done or self._fires(self.save_every, before, after),
            done=done,
        )

    def time_to_save(self) -> bool:
        """Whether a save interval in minutes has passed since the last save of this process."""
        if self.save_every.unit != "minutes" or time.monotonic() - self._saved < 60 * self.save_every.amount:
            return False
        self._saved = time.monotonic()
        return True

    def time_is_up(self) -> bool:
        """Whether a duration in minutes is over, counted over all attempts."""
        return self.duration.unit == "minutes" and self.seconds() >= 60 * self.duration.amount

    def wishes(self) -> Wish:
        """What the wall clock wants; asked on one rank, whose word all ranks follow."""
        return (Wish.STOP if self.time_is_up() else Wish.NONE) | (Wish.SAVE if self.time_to_save() else Wish.NONE)

    def seconds(self) -> float:
        """Wall-clock seconds in the loop, over all attempts."""
        return self.trained_seconds + time.monotonic() - self._started

    def _samples(self, duration: Duration) -> int | None:
        return None if duration.unit == "minutes" else duration.samples(self.global_batch, self.rows_per_epoch)

    def _fires(self, every: Duration | None, before: int, after: int) -> bool:
        samples = None if every is None else self._samples(every)
        return samples is not None and crossed(before, after, samples)
