"""The driver's lease on a run: one driver at a time, taken over only when its holder has been silent for long.

    {run}/lease/00000003.json    the third term: who holds it, and how often it was renewed

A term is taken by creating the next number, which only one can do, and renewed by its holder alone; so no file has two
writers. How old a renewal is, is judged by the store's own clock: the time it gives to a file written just now, less the
time it gave to the renewal. Where that clock was set back, the renewal lies ahead of it and would never grow old: there a
holder is silent that was watched for so long by the watcher's own stopwatch. What a driver does after it has lost its
lease is fenced by the attempts' numbers.
"""

import json
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from iddpm_ray import storage
from iddpm_ray.errors import CheckpointError

_FOLDER = "lease"
_TERM = re.compile(r"(\d{8})\.json")


class FencedError(CheckpointError):
    """Somebody else has taken the run: what this attempt does no longer counts, and it must end."""


class LeaseLostError(FencedError):
    """Another driver has taken the run over."""


@dataclass(frozen=True)
class Lease:
    """A term that this driver has taken: its number, the words that name the holder to others, and what nobody else knows."""

    run_url: str
    term: int
    holder: str
    since: str
    token: str = ""


def take_lease(run_url: str, *, holder: str, stale_after_s: float, unchanged: bytes | None = None) -> Lease:
    """Take the run for this driver.

    Args:
        run_url: the run's directory.
        holder: who this is, as a person would know it: host, user, job.
        stale_after_s: silence after which a holder counts as gone; several times the interval of `renew`.
        unchanged: the sign of life that the caller has watched stay the same for longer than that, if any.

    Raises:
        CheckpointError: somebody holds it; says who, since when, and how long ago they last renewed it.
    """
    term = check_free(run_url, stale_after_s=stale_after_s, unchanged=unchanged)
    lease = Lease(run_url, term + 1, holder, datetime.now(UTC).isoformat(timespec="seconds"), secrets.token_hex(16))
    data = _encode(lease, renewed=0, released=False)
    url = _url(run_url, lease.term)
    if not storage.create(url, data) and storage.read_bytes(url) != data:
        raise CheckpointError(f"{storage.shown(run_url)} was taken by another driver just now", fix="let one of the two run")
    return lease


def check_free(run_url: str, *, stale_after_s: float, unchanged: bytes | None = None) -> int:
    """The number of the newest term, 0 if there was none, where nobody holds the run any more; arguments as of `take_lease`.

    Raises:
        CheckpointError: somebody holds it.
    """
    term = _newest(run_url)
    said = _read(run_url, term) if term else {}
    if not term or said.get("released"):
        return term
    age = _age_s(run_url, term)
    if age >= stale_after_s or (age < 0 and unchanged is not None and sign_of_life(run_url) == unchanged):
        return term
    ahead = age <= -1
    raise CheckpointError(
        f"{storage.shown(run_url)} is in the hands of {said.get('holder', 'another driver')} since {said.get('since', 'a while')}",
        value=f"renewed at a time {-age:.0f} s ahead of the storage's clock" if ahead else f"renewed {max(0.0, age):.0f} s ago",
        fix=f"stop that one first; if it is gone, {'a start' if ahead else 'this'} works {stale_after_s:.0f} s after its last renewal",
    )


def renew(lease: Lease, *, renewed: int) -> None:
    """Show that the holder lives; `renewed` counts up.

    Raises:
        LeaseLostError: somebody has taken the run over.
    """
    check(lease)
    storage.write_whole(_url(lease.run_url, lease.term), _encode(lease, renewed=renewed, released=False))


def check(lease: Lease) -> None:
    """Whether the lease is still this driver's.

    Raises:
        LeaseLostError: somebody has taken the run over.
    """
    newest = max(_newest(lease.run_url), lease.term)
    said = _read(lease.run_url, newest)
    # On a store without a precondition two drivers may have written the same term: the one whose words are there holds it.
    if newest > lease.term or said.get("token", lease.token) != lease.token:
        who = f"{said.get('holder', 'another driver')} at {said.get('since', 'an unknown time')}"
        raise LeaseLostError(f"{storage.shown(lease.run_url)} was taken over by {who}", fix="this driver stops; the other one goes on")


def sign_of_life(run_url: str) -> bytes:
    """What changes as long as a holder renews its lease; empty where there is none."""
    term = _newest(run_url)
    try:
        return storage.read_bytes(_url(run_url, term)) if term else b""
    except FileNotFoundError:
        return b""


def release(lease: Lease) -> None:
    """Give the run back, so that the next driver need not wait; nothing happens if somebody has taken it over."""
    try:
        check(lease)
    except LeaseLostError:
        return
    storage.write_whole(_url(lease.run_url, lease.term), _encode(lease, renewed=0, released=True))


def _url(run_url: str, term: int) -> str:
    return storage.join(run_url, _FOLDER, f"{term:08d}.json")


def _newest(run_url: str) -> int:
    names = (entry.name for entry in storage.list_dir(storage.join(run_url, _FOLDER)))
    return max((int(found.group(1)) for name in names if (found := _TERM.fullmatch(name))), default=0)


def _encode(lease: Lease, **more: object) -> bytes:
    return json.dumps({"holder": lease.holder, "since": lease.since, "term": lease.term, "token": lease.token, **more}).encode()


def _read(run_url: str, term: int) -> dict[str, Any]:
    try:
        said = json.loads(storage.read_bytes(_url(run_url, term)))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _age_s(run_url: str, term: int) -> float:
    """Seconds since the term was last renewed, by the store's clock alone."""
    now_url = storage.join(run_url, _FOLDER, f"now-{secrets.token_hex(8)}")
    storage.write_whole(now_url, b"")
    try:
        return storage.modified(now_url) - storage.modified(_url(run_url, term))
    finally:
        storage.delete(now_url)
