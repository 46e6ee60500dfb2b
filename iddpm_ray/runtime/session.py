"""The loop's session inside a Ray Train worker."""

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.actor import ActorHandle

from iddpm_ray.runtime.drains import Drains
from iddpm_ray.runtime.pulse import Pulse
from iddpm_ray.train.session import Notice, Wish

POLL_SECONDS = 0.25
LOOK_SECONDS = 1.0
PULSE_SECONDS = 1.0
# Ray needs this long to see that all ranks have left; a machine that goes before counts as lost.
FAREWELL_S = 3.0
# Ray grants this long when a machine is drained without a deadline.
UNKNOWN_DEADLINE_S = 120.0


@dataclass
class RaySession:
    """Rank, device and the board; only rank 0 asks for wishes, without ever blocking on the answer."""

    board: ActorHandle
    rank: int
    world_size: int
    device: torch.device
    drains: Drains | None = None
    _wish: Wish = Wish.NONE
    _pending: Any = None
    _asked: float = 0.0
    _looked: float = field(default_factory=time.monotonic)
    _moves: int = 0
    _phase: str = "start"
    _noticed: float | None = None
    _report: Callable[[], Mapping[str, Any]] | None = None

    @classmethod
    def here(cls, board: ActorHandle, *, may_be_preempted: bool, timeout_s: float) -> "RaySession":
        """The session of the worker that calls; from now on its pulse goes to the board. A collective where machines can be drained.

        Args:
            may_be_preempted: whether machines of this cluster can be drained.
            timeout_s: bound of the ranks' exchanges about that.
        """
        context = ray.train.get_context()
        rank = context.get_world_rank()
        drains = Drains.here(rank=rank, timeout_s=timeout_s) if may_be_preempted else None
        session = cls(board, rank, context.get_world_size(), ray.train.torch.get_device(), drains)
        threading.Thread(target=session._beat, name="pulse", daemon=True).start()
        return session

    def wish(self) -> Wish:
        """What the board wanted when last asked, a wish to save once; and once a second, a look for notices of preemption."""
        if self.rank != 0:
            return Wish.NONE
        now = time.monotonic()
        if self._pending is None and now - self._asked > POLL_SECONDS:
            self._pending, self._asked = self.board.wish.remote(), now
        if self._pending is not None and ray.wait([self._pending], timeout=0)[0]:
            self._wish |= ray.get(self._pending)
            self._pending = None
        wish = self._wish
        self._wish &= ~Wish.SAVE
        if self.drains is not None and now - self._looked > LOOK_SECONDS:
            self._looked = now
            wish |= Wish.LOOK
        return wish

    def notice(self) -> Notice | None:
        """What Ray knows of machines that are being drained, by its watcher or before that has started; a few milliseconds, together."""
        info = ray.train.get_preemption_info()
        if info is not None:
            ranks, deadline_ms = tuple(sorted(info.preempted_ranks)), info.deadline_ms
        elif self.drains is not None and (found := self.drains.look()) is not None:
            ranks, deadline_ms = found
        else:
            return None
        if self._noticed is None:
            self._noticed = time.time()
        # A drain without a deadline has none, or 0; once Ray learns of one it is news, however late it is.
        told = deadline_ms / 1000 if deadline_ms else self._noticed + UNKNOWN_DEADLINE_S
        return Notice(told - time.time() - FAREWELL_S, ranks, float(deadline_ms or math.inf))

    def phase(self, name: str) -> None:
        """Remembers where this rank is, for its next pulse."""
        self._phase = name
        self._moves += 1

    def follow(self, report: Callable[[], Mapping[str, Any]]) -> None:
        """Keeps what to ask."""
        self._report = report

    def progress(self, row: Mapping[str, object]) -> None:
        """Sends a row up."""
        self.board.post_row.remote(dict(row))

    def say(self, message: str) -> None:
        """Sends a line up, from rank 0 only: all ranks say the same."""
        if self.rank == 0:
            self.board.post_line.remote(message)

    def _beat(self) -> None:
        node, pid = ray.get_runtime_context().get_node_id(), os.getpid()
        while True:
            report = {"phase": self._phase} if self._report is None else {**self._report(), **gpu_memory(self.device)}
            self.board.post_pulse.remote(Pulse(self.rank, self._moves, node, pid, self._noticed, report))
            time.sleep(PULSE_SECONDS)


def gpu_memory(device: torch.device) -> dict[str, int]:
    """Peak of what tensors took of the GPU and its size, bytes, as the host's allocator knows them: nothing waits for the device."""
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return {}
    return {"gpu_peak_bytes": torch.cuda.max_memory_allocated(device), "gpu_bytes": torch.cuda.get_device_properties(device).total_memory}
