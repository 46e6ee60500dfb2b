"""Which network an evaluation is about, found once so that all workers open the same: its weights, its run, and which average."""

from dataclasses import dataclass

import torch

from iddpm_ray import storage
from iddpm_ray.evaluate.trained import Source, Trained, Which, check_average, find_source, open_trained
from iddpm_ray.spec.spec import JobSpec

_FOLDER = "checkpoints"  # of a run


@dataclass(frozen=True)
class Subject:
    """Weights that were found, and which of them are meant.

    Attributes:
        ema: which average; None for the raw weights.
    """

    source: Source
    ema: float | None

    @property
    def spec(self) -> JobSpec:
        """The spec that lies with the weights."""
        return self.source.spec

    @property
    def run_url(self) -> str:
        """The directory of the run that the weights belong to; for others the one they lie in."""
        above = storage.parent(self.source.url)
        return storage.parent(above) if storage.name(above) == _FOLDER else above

    @property
    def weights(self) -> str:
        """Which weights, for people."""
        return "raw weights" if self.ema is None else f"average {self.ema:g}"

    def describe(self) -> str:
        """Checkpoint and weights, for people."""
        return f"{self.source.name}, {self.weights}"

    def settings(self) -> dict[str, object]:
        """What a job must remember of it."""
        return {**self.source.settings(), "weights": self.weights}

    def open(self, device: torch.device | str) -> Trained:
        """The network, in evaluation mode.

        Raises:
            CheckpointError: the weights cannot be read any more, or are not those that were found.
        """
        return open_trained(self.source, ema=self.ema, device=device)


def choose_subject(run: str, *, which: Which = "newest", ema: str | None = None, spec_url: str | None = None) -> Subject:
    """Weights as a command line names them.

    Args:
        which: of a run's checkpoints.
        ema: `raw`, a rate, or None for what the spec's section `sample` says, and the raw ones of a file of weights.

    Raises:
        CheckpointError: there are none.
        SpecError: no such average.
    """
    source = find_source(run, which=which, spec_url=spec_url)
    if ema == "raw" or (ema is None and source.step is None):
        return Subject(source, None)
    rate = source.spec.sample.ema if ema is None else float(ema)
    check_average(source, rate)
    return Subject(source, rate)
