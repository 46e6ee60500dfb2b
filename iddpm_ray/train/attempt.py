"""What an attempt says of itself, by its rank 0 alone: what it began from, on what it runs, and at each commit how the time went."""

import os
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from iddpm_ray.checkpoint import attempts
from iddpm_ray.checkpoint.attempts import Attempt
from iddpm_ray.checkpoint.commit import checkpoint_at
from iddpm_ray.sinks.rows import Begun
from iddpm_ray.train.directory import Place

INIT = "init"


def say_begun(place: Place, begun: Begun, *, conditions: Mapping[str, str]) -> None:
    """Records what the attempt begins from, before it computes anything."""
    _write(place, begun, conditions=conditions, news={})


def say_committed(place: Place, begun: Begun, *, conditions: Mapping[str, str], step: int, ledger: Mapping[str, object]) -> None:
    """Records once more, after the checkpoint of `step` was marked.

    Args:
        ledger: rank 0's report from the moment the save began, so of exactly the steps that the checkpoint holds.
    """
    _write(place, begun, conditions=conditions, news={attempts.COMMITTED: step, "ledger": dict(ledger)})


def _write(place: Place, begun: Begun, *, conditions: Mapping[str, str], news: Mapping[str, Any]) -> None:
    parent = begun.from_attempt
    began_from = None if parent is None else checkpoint_at(place.url, step=begun.from_step, attempt=parent)
    info = {**place.info, "conditions": dict(conditions), "code": machine(), INIT: begun.init, **news}
    attempts.begin_attempt(place.url, place.attempt, began_from=began_from, info=info)


def first_init(known: Sequence[Attempt]) -> str | None:
    """The URL of the weights that the run's first fresh start took; None if it is not recorded, or they were the seed's."""
    said = (one.info.get(INIT) for one in known if one.began and one.from_attempt is None)
    return next((url for url in said if isinstance(url, str)), None)


@cache
def machine() -> dict[str, str]:
    """What of code and hardware the conditions of exactness do not name."""
    try:
        ray = version("ray")
    except PackageNotFoundError:
        ray = "none"
    return {"ray": ray, "host": platform.node(), "processor": _processor(), "cores": str(os.cpu_count())}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
