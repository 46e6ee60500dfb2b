"""Attempts: every worker group takes a number of its own, says what it began from, and how it ended.

    {run}/attempts/0003.json        created by the driver, then rewritten by the attempt's rank 0 alone
    {run}/attempts/0003.end.json    by the driver

The numbers order everything: the lineage of a run is the chain of what each attempt began from. What an old attempt
still writes after its successor has begun lies outside that chain and is never read.
"""

import json
import re
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from iddpm_ray import storage
from iddpm_ray.checkpoint.commit import Checkpoint, checkpoint_at, complete, survey
from iddpm_ray.checkpoint.lease import FencedError
from iddpm_ray.errors import CheckpointError

COMMITTED = "committed"
_FOLDER = "attempts"
_RECORD = re.compile(r"(\d{4,})(\.end)?\.json")
_TRIES = 100
_READS_AT_ONCE = 16


@dataclass(frozen=True)
class Attempt:
    """What the run directory says of one attempt.

    Attributes:
        began: whether it has said what it began from; before that it has computed nothing.
        from_step: updates completed when it began; 0 for a fresh start.
        from_attempt: whose checkpoint it began from; None for a fresh start.
        info: everything in its record.
        end: how it ended, as the driver says; None if nobody said.
        lost: it has begun, but its record cannot be read: what it began from is not known.
    """

    number: int
    began: bool
    from_step: int = 0
    from_attempt: int | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    end: Mapping[str, Any] | None = None
    lost: bool = False


@dataclass(frozen=True)
class Link:
    """One attempt in the lineage: it counts from after `from_step` up to `upto_step` (None: to its end).

    Attributes:
        lost: what it began from is not known, and so neither is what comes before it; its own steps all count.
    """

    attempt: int
    from_step: int
    from_attempt: int | None
    upto_step: int | None = None
    lost: bool = False

    def counts(self, *, step: int, attempt: int) -> bool:
        """Whether a row or checkpoint of that step, made by that attempt, belongs to this link."""
        return attempt == self.attempt and step > self.from_step and (self.upto_step is None or step <= self.upto_step)


def take_attempt(run_url: str, *, info: Mapping[str, Any]) -> int:
    """Take the next free number, which nobody else has or will have.

    Args:
        run_url: the run's directory.
        info: what is known of the attempt already; JSON.

    Raises:
        CheckpointError: others take every number first.
    """
    number = max([0, *_numbers(run_url), *(stored.checkpoint.attempt for stored in survey(run_url))]) + 1
    data = _encode({**info, "attempt": number, "taken_by": secrets.token_hex(16)})
    for _ in range(_TRIES):
        data = _encode({**json.loads(data), "attempt": number})
        url = record_url(run_url, number)
        if storage.create(url, data) or storage.read_bytes(url) == data:  # written, though a retried request said "exists"
            return number
        number += 1
    raise CheckpointError(f"no attempt number to be had in {storage.shown(run_url)}", fix="stop the other drivers of this run")


def begin_attempt(run_url: str, number: int, *, began_from: Checkpoint | None, info: Mapping[str, Any]) -> None:
    """Say what the attempt begins from (None: fresh) before it computes anything. Called again with news at each commit."""
    start = None if began_from is None else {"step": began_from.step, "attempt": began_from.attempt}
    storage.write_checked(record_url(run_url, number), _encode({**info, "attempt": number, "from": start}))


def end_attempt(run_url: str, number: int, *, info: Mapping[str, Any]) -> None:
    """Say how the attempt ended."""
    storage.write_whole(record_url(run_url, number, end=True), _encode({**info, "attempt": number}))


def attempts(run_url: str) -> list[Attempt]:
    """All attempts of the run by number.

    One whose record cannot be understood has begun if a later one names it, or if it marked a checkpoint; else it has not.
    """
    there = _listed(run_url)
    with ThreadPoolExecutor(_READS_AT_ONCE) as threads:
        records = dict(zip(there, threads.map(lambda one: _read(record_url(run_url, one[0], end=one[1])), there), strict=True))
    numbers = {number for number, _ in there}
    known = {number: _attempt(number, records.get((number, False)), records.get((number, True))) for number in numbers}
    dark = {number for number in numbers if not _understood(records.get((number, False)))}
    named = {one.from_attempt for one in known.values() if one.from_attempt is not None and one.from_attempt < one.number}
    marked = {checkpoint.attempt for checkpoint in complete(run_url)} if dark - named else set[int]()
    for number in {one for one in named | (dark & marked) if one not in known or not known[one].began}:
        known[number] = Attempt(number, True, end=records.get((number, True)), lost=True)
    return [known[number] for number in sorted(known)]


def _attempt(number: int, info: Mapping[str, Any] | None, end: Mapping[str, Any] | None) -> Attempt:
    start = (info or {}).get("from")
    if info is None or "from" not in info or not _understood(info):
        return Attempt(number, False, 0, None, info or {}, end)
    return Attempt(number, True, 0 if start is None else start["step"], None if start is None else start["attempt"], info, end)


def _understood(info: Mapping[str, Any] | None) -> bool:
    """Whether a record says what the attempt began from, or that it has not begun."""
    return info is not None and (info.get("from") is None or _is_start(info["from"]))


def newest_attempt(run_url: str) -> int:
    """The highest number taken so far; 0 if none is."""
    return max(_numbers(run_url), default=0)


def refuse_if_superseded(run_url: str, number: int) -> None:
    """The fence before every marker: a later attempt has begun, so what this one does no longer counts.

    Raises:
        FencedError: names the later attempt.
    """
    newest = newest_attempt(run_url)
    if newest > number:
        raise FencedError(
            f"attempt {number} of {storage.shown(run_url)} is over: attempt {newest} has taken the run",
            fix="this attempt stops; the later one goes on",
        )


def lineage(known: list[Attempt], *, head: int | None = None) -> list[Link]:
    """The chain of attempts that the run consists of, oldest first.

    Args:
        known: as `attempts` gives them.
        head: the attempt that the chain ends with; None for the newest that has begun.
    """
    begun = {attempt.number: attempt for attempt in known if attempt.began}
    number = max(begun, default=None) if head is None else head
    chain: list[Link] = []
    upto: int | None = None
    while number is not None and number in begun:
        attempt = begun.pop(number)  # each once, whatever the records say
        chain.append(Link(attempt.number, attempt.from_step, attempt.from_attempt, upto, attempt.lost))
        number, upto = attempt.from_attempt, attempt.from_step
    return chain[::-1]


def in_lineage(chain: list[Link], *, step: int, attempt: int) -> bool:
    """Whether what that attempt made at that step is part of the run; with no attempts recorded, all is."""
    return not chain or any(link.counts(step=step, attempt=attempt) for link in chain)


def last_committed(run_url: str, known: list[Attempt]) -> Checkpoint | None:
    """The newest checkpoint of the lineage that an attempt has recorded; later ones may be there. None if none has."""
    infos = {attempt.number: attempt.info for attempt in known}
    for link in reversed(lineage(known)):
        step = infos[link.attempt].get(COMMITTED)
        if type(step) is int and link.counts(step=step, attempt=link.attempt):
            return checkpoint_at(run_url, step=step, attempt=link.attempt)
    return None


def record_url(run_url: str, number: int, *, end: bool = False) -> str:
    """Where an attempt's record is, or with `end` that of its end."""
    return storage.join(run_url, _FOLDER, f"{number:04d}{'.end' if end else ''}.json")


def _numbers(run_url: str) -> list[int]:
    return [number for number, _ in _listed(run_url)]


def _listed(run_url: str) -> list[tuple[int, bool]]:
    """The records that are there: number, and whether it is of the end."""
    names = (entry.name for entry in storage.list_dir(storage.join(run_url, _FOLDER)))
    return [(int(found.group(1)), found.group(2) is not None) for name in names if (found := _RECORD.fullmatch(name))]


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1, sort_keys=True).encode()


def _read(url: str) -> dict[str, Any] | None:
    try:
        record = json.loads(storage.read_bytes(url))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _is_start(start: object) -> bool:
    return isinstance(start, dict) and all(type(start.get(key)) is int and start[key] >= 0 for key in ("step", "attempt"))
