"""Records of attempts as driver and ranks would leave them."""

from typing import Any

from iddpm_ray.checkpoint.attempts import Attempt

LEDGER = {
    "import": 4.0,
    "build": 1.0,
    "compile": 0.5,
    "load": 0.5,
    "first_data": 1.0,
    "first_step": 1.0,
    "productive": 50.0,
    "data_wait": 2.0,
    "row": 1.0,
    "checkpoint_stall": 1.0,
    "stopping": 0.5,
}
"""62.5 seconds of a rank."""


def rank(began: float, *, now: float | None = None, **changes: Any) -> dict[str, Any]:
    """What a rank said last; categories and other keys may be replaced."""
    ledger = {**LEDGER, **{name: changes.pop(name) for name in list(changes) if name in LEDGER or name == "odd"}}
    return {"began": began, "now": began + sum(ledger.values()) if now is None else now, "ledger": ledger, **changes}


def attempt(
    number: int,
    *,
    workers: int = 2,
    began: float,
    ended: float | None,
    why: str = "finished",
    parent: tuple[int, int] | None = None,
    **more: Any,
) -> Attempt:
    """An attempt as `checkpoint.attempts` reads it.

    Args:
        parent: (step, attempt) it began from.
        more: `info_*` goes to its own record, all else to the driver's.
    """
    info = {"workers": workers, "began": began, "attempt": number}
    info |= {name.removeprefix("info_"): more.pop(name) for name in list(more) if name.startswith("info_")}
    end = None if ended is None else {"attempt": number, "why": why, "began": began, "ended": ended, **more}
    step, before = parent or (0, None)
    return Attempt(number, True, step, before, info, end)
