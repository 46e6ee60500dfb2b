"""The driver's hold on a run: takes the lease, shows by renewing it that the driver lives, and tells when somebody else has taken over."""

import getpass
import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from iddpm_ray import storage
from iddpm_ray.checkpoint import lease as leases
from iddpm_ray.checkpoint.lease import Lease, LeaseLostError
from iddpm_ray.errors import CheckpointError

RENEW_S = 4.0
STALE_S = 15.0

_log = logging.getLogger(__name__)


class Hold:
    """A lease that a thread renews until `release`."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.lost: LeaseLostError | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Gives the run back, so that the next driver need not wait."""
        self._end.set()
        self._thread.join(timeout=60)
        if self.lost is None:
            try:
                leases.release(self.lease)
            except Exception as error:  # the next driver waits a little; how the run ended is worth more than this
                _log.warning("the lease could not be given back: %s", storage.reason(error))

    def _renew(self) -> None:
        renewed = 0
        while not self._end.wait(RENEW_S):
            renewed += 1
            try:
                leases.renew(self.lease, renewed=renewed)
            except LeaseLostError as error:
                self.lost = error
                return
            except Exception as error:  # storage that is away for a while; whoever takes over meanwhile is seen at the next try
                _log.warning("the lease could not be renewed: %s", storage.reason(error))


def take_hold(run_url: str, *, say: Callable[[str], None], stale_s: float = STALE_S, stopped: Callable[[], bool] = lambda: False) -> Hold:
    """Takes the run for this driver, waiting out a holder that may be dead.

    Raises:
        KeyboardInterrupt: `stopped` while it waits.
        CheckpointError: another driver holds the run and is alive; says who, and since when.
    """
    holder = f"{getpass.getuser()}@{socket.gethostname()} (process {os.getpid()})"
    try:
        return Hold(leases.take_lease(run_url, holder=holder, stale_after_s=stale_s))
    except CheckpointError as error:
        refusal = error
    sign = leases.sign_of_life(run_url)
    say(f"{refusal.what} ({refusal.value}); waiting up to {stale_s:.0f} s to see whether that driver is still alive")
    until = time.monotonic() + stale_s + RENEW_S
    while time.monotonic() < until:
        time.sleep(0.5)
        if stopped():
            raise KeyboardInterrupt
        if leases.sign_of_life(run_url) != sign:
            raise refusal
        try:
            return Hold(leases.take_lease(run_url, holder=holder, stale_after_s=stale_s))
        except CheckpointError as error:
            refusal = error
    return Hold(leases.take_lease(run_url, holder=holder, stale_after_s=stale_s, unchanged=sign))
