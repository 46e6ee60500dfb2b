"""Batches without a gap: a rank decodes its own while the cluster's stream begins, and again whenever that stream breaks."""

import logging
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

from iddpm_ray import storage
from iddpm_ray.data.batch import Batch

Batches = Generator[Batch, None, None]
RETRY_S = 10.0

_log = logging.getLogger(__name__)


def bridged(
    near: Callable[[int], Batches], far: Callable[[int], Batches], *, start_step: int, broken: tuple[type[Exception], ...]
) -> Batches:
    """Every step from `start_step` on, from whichever stream has it; both give the same batch of every step.

    Args:
        near: opens a stream at a step that begins at once; closed as soon as it is not needed.
        far: opens the stream to prefer at a step; it may take its time to begin. What it gives of steps that are over is thrown away.
        broken: what `far` raises when the machines that it runs on go; then it is opened anew. Anything else is raised.
    """
    step = start_step
    while True:
        with closing(_Catching(far, step, broken)) as caught_up:
            with closing(near(step)) as own:
                while (stream := caught_up.at(step)) is None:
                    if (batch := next(own, None)) is None:
                        return
                    step = batch.step + 1
                    yield batch
            try:
                for batch in stream:
                    step = batch.step + 1
                    yield batch
                return
            except broken as error:
                _log.warning(
                    "the stream of pictures broke at step %d: %s; going on with pictures of this worker's own", step, storage.reason(error)
                )


class _Catching:
    """A far stream on its way to the step that is wanted; opened again, a little later, when it breaks before it is there."""

    def __init__(self, far: Callable[[int], Batches], step: int, broken: tuple[type[Exception], ...]) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="far-stream")
        self._open, self._broken = far, broken
        self._step = step  # the first that the far stream may still be wanted for
        self._not_before = 0.0
        self._far: Batches | None = None
        self._ahead: Future[Batch | None] | None = None

    def at(self, step: int) -> Batches | None:
        """The far stream from that step on, if it is there by now; called with each step in turn, which is given otherwise if it is not."""
        self._step = step + 1
        if self._ahead is None:
            if time.monotonic() >= self._not_before:
                self._far = self._open(step)
                self._ahead = self._pool.submit(self._catch_up, self._far)
            return None
        if not self._ahead.done():
            return None
        try:
            batch = self._ahead.result()
        except self._broken as error:
            _log.warning("the stream of pictures broke before it began: %s", storage.reason(error))
            self._far = self._ahead = None
            self._not_before = time.monotonic() + RETRY_S
            return None
        assert self._far is not None
        if batch is None:
            return _after([], self._far)
        if batch.step < step:
            self._ahead = self._pool.submit(self._catch_up, self._far)
            return None
        if batch.step > step:  # it was on its way when `_step` moved on; its turn comes
            return None
        return _after([batch], self._far)

    def close(self) -> None:
        """Ends the far stream; one that is still beginning ends by itself once it has begun, since nobody can wait for that."""
        if self._far is not None:
            self._pool.submit(self._far.close)
        self._pool.shutdown(wait=False)

    def _catch_up(self, far: Batches) -> Batch | None:
        return next((batch for batch in far if batch.step >= self._step), None)


def _after(first: list[Batch], rest: Batches) -> Batches:
    with closing(rest):
        yield from first
        yield from rest
