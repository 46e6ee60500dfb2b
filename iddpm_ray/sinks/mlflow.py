"""Rows and pictures for MLflow: a tracking server, or a directory. Passwords and tokens are MLflow's own and come from the environment."""

import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from iddpm_ray import storage
from iddpm_ray.sinks.tracker import Entry, keep_id

MOST_AT_ONCE = 1000
"""Numbers that MLflow takes in one request."""
LONGEST = 500
STEP = "step"


class MlflowTracker:
    """A run at MLflow, gone on with at every restart."""

    def __init__(self, run_url: str, *, url: str, experiment: str, name: str, config: Mapping[str, Any]) -> None:
        """Args:
        url: of the server, or a directory.
        experiment: made if it is not there.
        name: the run's.
        config: the spec, as parameters.
        """
        directory = storage.is_local(url)
        if directory:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow wants it said that a directory is really meant
        import mlflow.entities
        from mlflow.tracking import MlflowClient

        self._entities = mlflow.entities
        self._client = MlflowClient(tracking_uri=Path(url).absolute().as_uri() if directory and "://" not in url else url)
        self._id = keep_id(run_url, "mlflow", lambda: self._begin(experiment, name, config))
        self._client.update_run(self._id, status="RUNNING")

    def holds(self) -> int:
        """What the server, or the directory, says of the metric `step`."""
        return int(self._client.get_run(self._id).data.metrics.get(STEP, 0))

    def tell(self, entries: Sequence[Entry]) -> None:
        """Sends them, as many numbers in a request as MLflow takes; the step itself last, when everything up to it is there."""
        numbers = [self._number(tag, value, entry) for entry in entries for tag, value in entry.values.items()]
        for begin in range(0, len(numbers), MOST_AT_ONCE):
            self._client.log_batch(self._id, metrics=numbers[begin : begin + MOST_AT_ONCE])
        for entry in entries:
            for name, png in entry.pictures.items():
                self._client.log_image(self._id, Image.open(io.BytesIO(png)), key=name, step=entry.step)
        self._client.log_batch(self._id, metrics=[self._number(STEP, float(entries[-1].step), entries[-1])])

    def _number(self, tag: str, value: float, entry: Entry) -> Any:
        return self._entities.Metric(tag, value, int(1000 * (entry.time or time.time())), entry.step)

    def close(self) -> None:
        """Says that the run is over; a later attempt takes that back."""
        self._client.set_terminated(self._id)

    def _begin(self, experiment: str, name: str, config: Mapping[str, Any]) -> str:
        found = self._client.get_experiment_by_name(experiment)
        place = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        run = self._client.create_run(place, run_name=name).info.run_id
        parameters = [self._entities.Param(path, str(value)[:LONGEST]) for path, value in _flat(config)]
        for begin in range(0, len(parameters), 100):
            self._client.log_batch(run, params=parameters[begin : begin + 100])
        return run


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
