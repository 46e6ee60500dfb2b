"""What sinks of trackers have in common: a thread that talks to the service, and the run's id there, kept in the run's directory.

{run}/trackers/wandb.json, mlflow.json      made once: every attempt goes on in the same run
"""

import importlib.util
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.errors import SpecError
from iddpm_ray.sinks.jsonl import earlier_rows
from iddpm_ray.sinks.pictures import to_png
from iddpm_ray.sinks.rows import Begun, row_step
from iddpm_ray.sinks.tags import tag_of

PATIENCE_S = 60.0
HURRY_S = 1.0
MOST_KEPT = 10_000  # steps whose numbers wait for a tracker that does not answer
MOST_PICTURES = 8


@dataclass(frozen=True)
class Entry:
    """What is told of one step: numbers by tag, pictures as PNG files by name, and when, in wall seconds."""

    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    time: float | None = None


class Tracker(Protocol):
    """A run at a tracker, opened. Its calls may take long and may fail."""

    def holds(self) -> int:
        """The last step that is safe there; 0 if none is. What came later is told again."""
        ...

    def tell(self, entries: Sequence[Entry]) -> None:
        """Sends steps that rise."""
        ...

    def close(self) -> None:
        """Waits until everything is sent; nothing more comes for now."""
        ...


def check_installed(trackers: Sequence[str]) -> None:
    """Refuses a tracker whose library is not here, before anything is started.

    Raises:
        SpecError: names the extra.
    """
    for name in trackers:
        if importlib.util.find_spec(name) is None:
            raise SpecError("log.sinks", value=name, fix=f"its package is not installed: pip install 'iddpm_ray[{name}]', or leave it out")


def keep_id(run_url: str, name: str, make: Callable[[], str]) -> str:
    """The run's id at the tracker, made if there is none; whoever is first decides."""
    url = storage.join(run_url, "trackers", f"{name}.json")
    if not storage.exists(url):
        storage.create(url, json.dumps({"id": make()}).encode())
    return str(json.loads(storage.read_bytes(url))["id"])


class TrackerSink:
    """Keeps rows and pictures until they are committed; then a thread tells the tracker. Neither training nor a save waits for it.

    A step is told once: what a restart does again is not told again, and what an attempt could not tell any more the next one tells
    out of the run's rows. What fails is kept and tried again at the next commit.
    """

    def __init__(self, name: str, run_url: str, *, lineage: Sequence[Begun], open_tracker: Callable[[], Tracker]) -> None:
        """Args:
        name: as in `log.sinks`.
        run_url: the run's directory.
        lineage: how this and earlier attempts began, this one last.
        open_tracker: goes on with the run at the tracker, or begins it.
        """
        self._name, self._run_url, self._lineage = name, run_url, tuple(lineage)
        self._open = open_tracker
        self._waiting: dict[int, Entry] = {}
        self._upto = self._done = 0
        self._error: Exception | None = None
        self._closing = False
        self._patience_s = PATIENCE_S
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def row(self, row: Mapping[str, float | int | str]) -> None:
        """Keeps the numbers."""
        self._keep(_entry(row))

    def picture(self, name: str, step: int, picture: Tensor) -> None:
        """Encodes the picture [C, H, W] uint8 at once."""
        self._keep(Entry(step, pictures={name: to_png(picture)}))

    def commit(self, step: int) -> None:
        """Lets the thread tell all up to `step`.

        Raises:
            Exception: what the tracker, or opening it, raised last; it is tried again now.
        """
        with self._changed:
            self._upto = max(self._upto, step)
            error, self._error = self._error, None
            self._changed.notify()
        if error is not None:
            raise error

    def hurry(self) -> None:
        """The machine is about to go: `close` waits for the tracker no longer than a moment."""
        self._patience_s = HURRY_S

    def close(self) -> None:
        """Waits a while until everything committed has been told.

        Raises:
            Exception: as `commit`.
            TimeoutError: the tracker did not answer in time; the next attempt tells it the rest.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            raise TimeoutError(f"{self._name} has not answered for {self._patience_s:.0f} s")
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _keep(self, entry: Entry) -> None:
        with self._changed:
            before = self._waiting.get(entry.step, Entry(entry.step))
            self._waiting[entry.step] = Entry(
                entry.step, {**before.values, **entry.values}, {**before.pictures, **entry.pictures}, entry.time or before.time
            )
            for step in [step for step, one in self._waiting.items() if one.pictures][:-MOST_PICTURES]:
                self._waiting[step] = Entry(step, self._waiting[step].values, time=self._waiting[step].time)
            while len(self._waiting) > MOST_KEPT:
                del self._waiting[min(self._waiting)]

    def _work(self) -> None:
        tracker: Tracker | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or (self._upto > self._done and self._error is None))
                closing, upto = self._closing, self._upto
            try:
                if tracker is None and upto:
                    opened = self._open()
                    self._catch_up(opened.holds())
                    tracker = opened
                if tracker is not None:
                    self._tell(tracker, upto)
                    self._done = upto
                    if closing:
                        tracker.close()
                    self._error = None
            except Exception as error:  # handed to whoever commits next; a tracker is not worth a run
                self._error = error
            if closing:
                return

    def _catch_up(self, last: int) -> None:
        """Adds what earlier attempts committed and did not tell; forgets what they told."""
        missed = [_entry(row) for row in earlier_rows(self._run_url, self._lineage) if row_step(row) > last]
        with self._changed:
            self._waiting = {entry.step: entry for entry in missed} | {step: one for step, one in self._waiting.items() if step > last}

    def _tell(self, tracker: Tracker, upto: int) -> None:
        with self._changed:
            due = sorted((entry for step, entry in self._waiting.items() if step <= upto), key=lambda entry: entry.step)
        if not due:
            return
        tracker.tell(due)
        with self._changed:
            for entry in due:
                del self._waiting[entry.step]


def _entry(row: Mapping[str, float | int | str]) -> Entry:
    values = {tag_of(key): float(value) for key, value in row.items() if key not in ("step", "time") and not isinstance(value, str)}
    when = row.get("time")
    return Entry(row_step(row), values, time=float(when) if when is not None else None)
