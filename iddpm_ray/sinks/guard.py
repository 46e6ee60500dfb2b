"""Several sinks as one that never ends a run: what fails is said, and the rest goes on."""

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.sinks.jsonl import JsonlSink
from iddpm_ray.sinks.pictures import PictureSink
from iddpm_ray.sinks.rows import Begun, Sink
from iddpm_ray.sinks.table import CsvSink
from iddpm_ray.sinks.tracker import Tracker, TrackerSink
from iddpm_ray.spec.log import LogSpec, TrackerName

logger = logging.getLogger(__name__)

ROWS = "metrics/*.jsonl"
VIEW = "metrics/train.jsonl"


class GuardedSinks:
    """A sink made of sinks. The first failure of each is said, and its recovery; repetitions only go to the log."""

    def __init__(self, makers: Mapping[str, Callable[[], Sink]], *, say: Callable[[str], None]) -> None:
        """Args:
        makers: for each sink the name a person knows it by, and how it is opened.
        say: shows a line to whoever watches the run.
        """
        self._say = say
        self._failing: set[str] = set()
        self._leads = True
        self._sinks: dict[str, Sink] = {}
        for name, make in makers.items():
            self._try(name, "open", lambda name=name, make=make: self._sinks.update({name: make()}))

    def row(self, row: Mapping[str, float | int | str]) -> None:
        """Hands the row to every sink."""
        for name, sink in self._sinks.items():
            self._try(name, "take a row", lambda sink=sink: sink.row(row))

    def picture(self, name: str, step: int, picture: Tensor) -> None:
        """Hands the picture to every sink."""
        for sink_name, sink in self._sinks.items():
            self._try(sink_name, "take a picture", lambda sink=sink: sink.picture(name, step, picture))

    def commit(self, step: int) -> None:
        """Commits every sink; one that fails is tried again at the next commit.

        Raises:
            Exception: the rows' file of this attempt could not be written; a checkpoint is not marked without its rows.
        """
        rows = self._sinks.get(ROWS)
        if rows is not None and self._leads:
            rows.commit(step)
            if isinstance(rows, JsonlSink):
                self._try(VIEW, "write", lambda: self._write_view(rows, step))
        for name, sink in self._sinks.items():
            if name != ROWS:
                self._try(name, "write", lambda sink=sink: sink.commit(step))

    def hand_over(self, *, leads: bool) -> None:
        """Says whether this rank writes the rows' file from now on; it goes on collecting them, since it may lead again.

        Machines are about to go when this is called, so no sink may keep its rank waiting.
        """
        self._leads = leads
        for sink in self._sinks.values():
            if isinstance(sink, TrackerSink):
                sink.hurry()

    def close(self) -> None:
        """Closes every sink."""
        for name, sink in self._sinks.items():
            self._try(name, "close", sink.close)

    def _write_view(self, rows: JsonlSink, step: int) -> None:
        for problem in rows.write_view(step):
            self._say(f"warning: {problem}; left out of {VIEW}")

    def _try(self, name: str, what: str, call: Callable[[], None]) -> None:
        failure = f"{name} cannot {what}"
        try:
            call()
        except Exception as error:  # numbers for people are not worth a run
            logger.warning("%s\n%s", failure, storage.without_secrets(traceback.format_exc()))
            if failure not in self._failing:
                self._say(f"warning: {failure}: {storage.reason(error)}; training goes on")
            self._failing.add(failure)
        else:
            if failure in self._failing:
                self._failing.discard(failure)
                self._say(f"{name} can {what} again")


def open_sinks(
    run_url: str, *, attempt: int, lineage: Sequence[Begun], log: LogSpec, name: str, config: Mapping[str, Any], say: Callable[[str], None]
) -> GuardedSinks:
    """The sinks that a run asked for; JSON lines and pictures always.

    Args:
        run_url: the run's directory.
        lineage: how this and earlier attempts began, this one last.
        name, config: of the run, and its spec as plain data, for trackers.
    """
    from_step = lineage[-1].from_step if lineage else 0
    makers: dict[str, Callable[[], Sink]] = {
        ROWS: lambda: JsonlSink(run_url, attempt=attempt, lineage=lineage),
        "pictures": lambda: PictureSink(run_url, attempt=attempt),
    }
    if log.csv:
        makers["metrics/train.csv"] = lambda: CsvSink(run_url, lineage=lineage)
    if log.tensorboard:
        makers["tensorboard"] = lambda: _tensorboard(run_url, attempt=attempt, from_step=from_step)
    for which in log.sinks:
        makers[which] = lambda which=which: TrackerSink(
            which, run_url, lineage=lineage, open_tracker=lambda: _tracker(which, run_url, log, name, config, attempt=attempt)
        )
    return GuardedSinks(makers, say=say)


def keep_rows(run_url: str, *, attempt: int, lineage: Sequence[Begun], say: Callable[[str], None]) -> GuardedSinks:
    """What a rank keeps that writes only if the rank that usually does is taken away."""
    return GuardedSinks({ROWS: lambda: JsonlSink(run_url, attempt=attempt, lineage=lineage)}, say=say)


def _tensorboard(run_url: str, *, attempt: int, from_step: int) -> Sink:
    from iddpm_ray.sinks.tensorboard import TensorBoardSink  # a second of imports, only for those who want it

    return TensorBoardSink(run_url, attempt=attempt, from_step=from_step)


def _tracker(which: TrackerName, run_url: str, log: LogSpec, name: str, config: Mapping[str, Any], *, attempt: int) -> Tracker:
    match which:  # seconds of imports, only for those who want it
        case "wandb":
            from iddpm_ray.sinks.wandb import WandbTracker

            return WandbTracker(run_url, attempt=attempt, project=log.project, name=name, config=config)
        case "mlflow":
            from iddpm_ray.sinks.mlflow import MlflowTracker

            assert log.mlflow_url is not None, "refused when the spec was made"
            return MlflowTracker(run_url, url=log.mlflow_url, experiment=log.project, name=name, config=config)
