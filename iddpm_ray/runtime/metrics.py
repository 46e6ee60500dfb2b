"""Publishes the run's numbers through Ray's own export for Prometheus.

The driver does it: it outlives every attempt, and looks at the markers. Ray forgets a gauge that was not set for 20 s, so all of them are
set again and again, and a run whose driver is gone cannot look alive; what a driver sets last before it ends is still shown.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray.util.metrics import Gauge

from iddpm_ray import storage
from iddpm_ray.checkpoint import attempts
from iddpm_ray.checkpoint.commit import Checkpoint, complete
from iddpm_ray.checkpoint.marker import MARKER
from iddpm_ray.report.accounts import run_account
from iddpm_ray.runtime.pulse import Heard
from iddpm_ray.sinks.metrics import METRICS, Values, of_endings, of_ranks, of_row, of_time
from iddpm_ray.spec.spec import JobSpec

PUBLISH_S = 2.0
LOOK_S = 15.0  # at the newest marker: one listing
IDLE: Values = {("iddpm_workers", ""): 0.0, ("iddpm_images_per_second", ""): 0.0}

_log = logging.getLogger(__name__)


class RunMetrics:
    """What the driver's loop says goes into gauges from a thread of its own, which also looks at checkpoints and records.

    The loop never waits: whatever asks the storage happens on the thread, and what fails there is logged and tried again.
    """

    def __init__(self, spec: JobSpec, *, run_url: str, rows_per_epoch: int, publish: Callable[[Values], None]) -> None:
        """Args:
        publish: takes numbers, of which those it was not given keep their value.
        """
        self._url, self._publish = run_url, publish
        self._lock = threading.Lock()
        began = time.time()
        self._values: Values = {
            ("iddpm_running", ""): 1.0,
            ("iddpm_step_time_seconds", ""): began,
            ("iddpm_unsaved_since_seconds", ""): began,
            **_planned(spec, rows_per_epoch),
            **IDLE,
        }
        self._reports: list[Mapping[str, Any]] = []
        self._recorded: dict[str, float] = {}
        self._attempt = 0
        self._step: float | None = None
        self._newest: Checkpoint | None = None
        self._looked = -math.inf
        self._account_due = True
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._turn, name="metrics", daemon=True)
        self._thread.start()

    def begins(self, attempt: int) -> None:
        """An attempt has taken its number."""
        with self._lock:
            self._attempt, self._reports, self._step = attempt, [], None
            self._values["iddpm_attempt", ""] = float(attempt)

    def row(self, row: Mapping[str, Any]) -> None:
        """A row has come up."""
        with self._lock:
            self._values |= of_row(row)

    def heard(self, heard: Mapping[int, Heard]) -> None:
        """The ranks' last signs of life."""
        with self._lock:
            self._reports = [one.pulse.report for one in heard.values()]
            self._values |= (values := of_ranks(self._reports))
            step = values.get(("iddpm_step", ""))
            if step is not None and step != self._step:
                self._values["iddpm_step_time_seconds", ""] = now = time.time()
                if self._step is None:
                    self._values["iddpm_unsaved_since_seconds", ""] = now
                    self._account_due = True  # from now on it is known which steps of earlier attempts are done again
                self._step = step

    def ended(self) -> None:
        """The attempt is over, and written down."""
        with self._lock:
            self._values |= IDLE
            self._step, self._account_due, self._looked = None, True, -math.inf

    def close(self) -> None:
        """The driver leaves the run."""
        self._end.set()
        self._thread.join(timeout=10)
        self._show({("iddpm_running", ""): 0.0, **IDLE})

    def _turn(self) -> None:
        while True:
            try:
                self._look()
            except Exception as error:  # a storage that is away; the rest is published all the same
                _log.info("the run's checkpoints and records could not be looked at: %s", storage.reason(error))
            with self._lock:
                if self._step is None:  # between two attempts nothing is lost by waiting
                    self._values["iddpm_unsaved_since_seconds", ""] = time.time()
                values = self._values | of_time(self._recorded, self._reports)
            self._show(values)
            if self._end.wait(PUBLISH_S):
                return

    def _show(self, values: Values) -> None:
        try:
            self._publish(values)
        except Exception as error:  # numbers for people are not worth a run
            _log.warning("metrics could not be published: %s", storage.reason(error))

    def _look(self) -> None:
        """Asks the storage, where that is due."""
        with self._lock:
            look, account_due = time.monotonic() - self._looked >= LOOK_S, self._account_due
            if look:
                self._looked = time.monotonic()
            self._account_due = False
        try:
            if account_due:
                self._read_records()
        except Exception:
            with self._lock:
                self._account_due = True
            raise
        if look:
            self._read_markers()

    def _read_records(self) -> None:
        account = run_account(attempts.attempts(self._url))
        with self._lock:
            seconds = dict(account.seconds)
            for one in account.attempts:
                if one.number == self._attempt and one.why != "running":
                    self._reports = []
                elif one.number == self._attempt:  # its ranks say themselves what they have booked
                    for name, value in one.seconds.items():
                        seconds[name] = seconds.get(name, 0.0) - value
            self._recorded = seconds
            self._values |= of_endings(account.endings)

    def _read_markers(self) -> None:
        newest = max(complete(self._url), key=lambda one: (one.attempt, one.step), default=None)
        if newest is None:
            return
        known = newest == self._newest
        saved = 0.0 if known else storage.modified(storage.join(newest.url, MARKER))
        with self._lock:
            if not known:
                self._newest = newest
                since = max(saved, self._values["iddpm_unsaved_since_seconds", ""])
                self._values |= {
                    ("iddpm_saved_step", ""): float(newest.step),
                    ("iddpm_saved_time_seconds", ""): saved,
                    ("iddpm_unsaved_since_seconds", ""): since,
                }
            if self._step is None:  # what was not saved does not count any more
                self._values["iddpm_step", ""] = float(newest.step)


@contextmanager
def published(spec: JobSpec, *, run_url: str, rows_per_epoch: int) -> Iterator[RunMetrics | None]:
    """The run's metrics while the block lasts; None where the spec wants none."""
    if not spec.log.prometheus:
        yield None
        return
    metrics = RunMetrics(spec, run_url=run_url, rows_per_epoch=rows_per_epoch, publish=Gauges(spec.run.name))
    try:
        yield metrics
    finally:
        metrics.close()


class Gauges:
    """Ray's gauges, one a metric, each with the run's name."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._labels = {metric.name: metric.label for metric in METRICS}
        self._gauges = {
            metric.name: Gauge(metric.name, description=metric.about, tag_keys=("run", metric.label) if metric.label else ("run",))
            for metric in METRICS
        }

    def __call__(self, values: Values) -> None:
        """Sets every gauge that a value is given for."""
        for (name, which), value in values.items():
            label = self._labels[name]
            self._gauges[name].set(value, tags={"run": self._run, **({label: which} if label else {})})


def _planned(spec: JobSpec, rows_per_epoch: int) -> Values:
    """What is known before the first step."""
    batch, every, duration = spec.train.global_batch, spec.checkpoint.every, spec.train.duration
    values: Values = {("iddpm_saved_step", ""): 0.0, ("iddpm_step", ""): 0.0}
    if every.unit == "minutes":
        values["iddpm_save_interval_seconds", ""] = 60 * every.amount
    else:
        values["iddpm_save_interval_steps", ""] = float(math.ceil(every.samples(batch, rows_per_epoch) / batch))
    if duration.unit != "minutes":
        values["iddpm_total_steps", ""] = float(math.ceil(duration.samples(batch, rows_per_epoch) / batch))
    return values
