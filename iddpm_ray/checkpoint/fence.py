"""The fence before everything that others would see: an attempt marks and deletes only while the run is still its own."""

from iddpm_ray.checkpoint import lease as leases
from iddpm_ray.checkpoint.attempts import refuse_if_superseded
from iddpm_ray.checkpoint.lease import Lease


def check_fence(run_url: str, attempt: int, *, lease: Lease | None) -> None:
    """Ask the store, not the memory, since this process may have slept through a takeover.

    What it cannot prevent is an operation already under way when the process was stopped. That one touches only names of its own
    attempt, or deletes one checkpoint that was not the newest; and what it marks lies outside the lineage of its successor.

    Args:
        run_url: the run's directory.
        attempt: the number of the attempt that asks.
        lease: that its driver holds; None if nobody took one.

    Raises:
        FencedError: another driver or a later attempt has taken the run; says who.
    """
    if lease is not None:
        leases.check(lease)
    refuse_if_superseded(run_url, attempt)
