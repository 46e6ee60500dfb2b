"""Reads from a run's directory all that a report shows; writes nothing."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from iddpm_ray import storage
from iddpm_ray.checkpoint import attempts
from iddpm_ray.checkpoint.attempts import Attempt
from iddpm_ray.errors import UserError
from iddpm_ray.report.accounts import RunAccount, run_account
from iddpm_ray.report.axes import FARTHEST
from iddpm_ray.sinks.evaluations import evaluation_rows
from iddpm_ray.sinks.jsonl import attempt_url, read_sound_rows
from iddpm_ray.sinks.rows import Begun, Row, lineage_rows
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text
from iddpm_ray.storage import Entry
from iddpm_ray.train.directory import SPEC_FILE

PICTURES = 6
LARGEST = 640


@dataclass(frozen=True)
class Picture:
    """A grid of samples after `step` updates, as a PNG file in base64; `height` and `width` in pixels."""

    step: int
    png: str
    height: int
    width: int


@dataclass(frozen=True)
class Run:
    """What is shown of a run.

    Attributes:
        place: its directory, as it may be printed.
        spec: as of the last start; None if it cannot be read.
        rows: the history that counts, in step order.
        problems: what could not be read, in words.
        evaluations: what was measured of checkpoints, a row each, in step order.
    """

    place: str
    name: str
    spec: JobSpec | None
    attempts: tuple[Attempt, ...]
    account: RunAccount
    rows: tuple[Row, ...]
    pictures: tuple[Picture, ...]
    problems: tuple[str, ...]
    evaluations: tuple[Row, ...] = ()


def read_run(url: str) -> Run:
    """Everything a report shows; what is damaged or missing is named and left out.

    Raises:
        UserError: there is no run at the URL, or its storage cannot be reached.
    """
    url = storage.absolute(url)
    try:
        known = attempts.attempts(url)
    except UserError:
        raise
    except Exception as error:  # every store has errors of its own; without the attempts there is no report
        raise UserError(f"{storage.shown(url)} cannot be read ({storage.reason(error)})", fix="give the directory of a run") from None
    if not known:
        raise UserError(f"{storage.shown(url)} holds no attempts of a run", fix="give a run's directory: {run.output_dir}/{run.name}")
    problems: list[str] = []
    spec = _spec(url, problems)
    price = None if spec is None else spec.cluster.price_per_worker_hour
    return Run(
        place=storage.shown(url),
        name=spec.run.name if spec is not None else storage.name(url),
        spec=spec,
        attempts=tuple(known),
        account=run_account(known, price=price),
        rows=tuple(_rows(url, known, problems)),
        pictures=tuple(_pictures(url, known, problems)),
        evaluations=tuple(_evaluations(url, spec, problems)),
        problems=tuple(problems),
    )


def _spec(url: str, problems: list[str]) -> JobSpec | None:
    try:
        return load_text(storage.read_bytes(storage.join(url, SPEC_FILE)).decode())
    except Exception as error:  # a report of a damaged run is worth more than none
        problems.append(f"{SPEC_FILE} cannot be read: {storage.reason(error)}")
        return None


def _rows(url: str, known: Sequence[Attempt], problems: list[str]) -> list[Row]:
    begun = [Begun(one.number, one.from_step, one.from_attempt) for one in known if one.began]
    rows: dict[int, list[Row]] = {}
    for one in begun:
        place = attempt_url(url, one.attempt)
        try:
            if storage.exists(place):
                rows[one.attempt] = read_sound_rows(place, problems)
        except Exception as error:  # as above, if the storage fails
            problems.append(f"{storage.name(place)} cannot be read: {storage.reason(error)}")
    history = lineage_rows(rows, begun)
    far = [
        f"{key} of step {row['step']}"
        for row in history
        for key, value in row.items()
        if isinstance(value, float) and FARTHEST < abs(value) < math.inf
    ]
    if far:
        problems.append(f"too large for a chart: {far[0]}" + (f" and {len(far) - 1} more" if len(far) > 1 else ""))
    return history


def _evaluations(url: str, spec: JobSpec | None, problems: list[str]) -> list[Row]:
    try:
        return evaluation_rows(url, global_batch=1 if spec is None else spec.train.global_batch)
    except Exception as error:  # as above
        problems.append(f"evaluations cannot be read: {storage.reason(error)}")
        return []


def _pictures(url: str, known: Sequence[Attempt], problems: list[str]) -> list[Picture]:
    """A few grids, evenly through the run, the newest among them."""
    chain = attempts.lineage(list(known))
    found: dict[int, str] = {}
    for entry in _listed(storage.join(url, "samples"), problems):
        place = _step_and_attempt(entry.name)
        if place is not None and attempts.in_lineage(chain, step=place[0], attempt=place[1]):
            found[place[0]] = entry.name
    steps = sorted(found)
    if len(steps) > PICTURES:
        steps = [steps[round(index * (len(steps) - 1) / (PICTURES - 1))] for index in range(PICTURES)]
    out: list[Picture] = []
    for step in steps:
        try:
            out.append(_picture(storage.read_bytes(storage.join(url, "samples", found[step])), step))
        except Exception as error:  # a picture is not worth the report
            problems.append(f"samples/{found[step]} cannot be read: {storage.reason(error)}")
    return out


def _listed(url: str, problems: list[str]) -> list[Entry]:
    try:
        return storage.list_dir(url)
    except Exception as error:  # as above
        problems.append(f"{storage.name(url)} cannot be listed: {storage.reason(error)}")
        return []


def _step_and_attempt(name: str) -> tuple[int, int] | None:
    stem, _, ending = name.rpartition(".")
    step, _, attempt = stem.removeprefix("step-").partition(".a")
    return (int(step), int(attempt)) if ending == "png" and step.isdecimal() and attempt.isdecimal() else None


def _picture(data: bytes, step: int) -> Picture:
    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        image.load()
        small = image if max(image.size) <= LARGEST else image.copy()
        small.thumbnail((LARGEST, LARGEST))
        out = io.BytesIO()
        small.save(out, format="png", optimize=True)
        return Picture(step, base64.b64encode(out.getvalue()).decode(), small.height, small.width)
