"""How much training is not saved while saves fail, and whether that is as much as the run may bear."""

from dataclasses import dataclass

from iddpm_ray.errors import TrainError
from iddpm_ray.spec.duration import Duration


@dataclass
class Unsaved:
    """What has been trained since the last checkpoint; minutes are those of one process, so only rank 0's judgement counts.

    Attributes:
        limit: `checkpoint.max_unsaved`; None: whatever it takes.
        step: updates completed in the last checkpoint, or when the attempt began.
        seconds: wall-clock seconds of training then.
        failure: why the last save failed; None if it did not.
    """

    limit: Duration | None
    global_batch: int
    rows_per_epoch: int
    step: int
    seconds: float
    failure: str | None = None

    def committed(self, *, step: int, seconds: float) -> None:
        """Everything up to there is saved."""
        self.step, self.seconds, self.failure = step, seconds, None

    def failed(self, why: str) -> None:
        """A save failed."""
        self.failure = why

    def too_much(self, *, step: int, seconds: float) -> bool:
        """Whether saves fail and the limit is reached at this point of the training."""
        if self.failure is None or self.limit is None:
            return False
        if self.limit.unit == "minutes":
            return seconds - self.seconds >= 60 * self.limit.amount
        return (step - self.step) * self.global_batch >= self.limit.samples(self.global_batch, self.rows_per_epoch)

    def error(self, *, step: int) -> TrainError:
        """Why the run ends."""
        return TrainError(
            f"nothing could be saved since step {self.step}, and checkpoint.max_unsaved is reached at step {step}: {self.failure}",
            value=str(self.limit),
            fix=f"mend the storage and start again: the run goes on from step {self.step}",
        )
