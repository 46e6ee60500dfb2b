"""Asks a store again after a failure that may pass: at growing random intervals, and not for ever.

How this meets the clients' own patience: gcsfs tries a request six times within half a minute, botocore five times within some
seconds; local disks and other stores are asked once. What bounds the tries here is time, not their number, and it counts from the
first request. So a store whose client has just tried for half a minute is not asked again, and one that fails at once is.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from iddpm_ray.storage.transient import is_transient
from iddpm_ray.storage.urls import reason

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Pace:
    """How long and how often to ask.

    Attributes:
        limit_s: no request begins later than this after the first one; well below the time after which ranks give each other up.
        first_s: the first wait is at most this, the next ones at most twice as long each time.
        longest_s: no wait is longer.
        sleep, clock: what waits, and what measures it.
    """

    limit_s: float = 30.0
    first_s: float = 0.25
    longest_s: float = 8.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


PACE = Pace()


def patiently(operation: Callable[_P, _T]) -> Callable[_P, _T]:
    """The same operation on a store, tried again while what it raises may pass. It must do no harm twice."""

    @wraps(operation)
    def tried(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        pace = PACE
        began = pace.clock()

        def enough(state: RetryCallState) -> bool:
            return pace.clock() - began + state.upcoming_sleep >= pace.limit_s

        def say(state: RetryCallState) -> None:
            failure = state.outcome and state.outcome.exception()
            if failure is not None:
                wait_s, number = state.upcoming_sleep, state.attempt_number + 1
                _log.warning("storage: %s failed: %s; try %d in %.1f s", operation.__name__.lstrip("_"), reason(failure), number, wait_s)

        tries = Retrying(
            retry=retry_if_exception(is_transient),
            wait=wait_random_exponential(multiplier=pace.first_s, max=pace.longest_s),
            stop=enough,
            sleep=pace.sleep,
            before_sleep=say,
            reraise=True,
        )
        return tries(operation, *args, **kwargs)

    return tried
