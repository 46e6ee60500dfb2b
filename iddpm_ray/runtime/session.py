"""The loop's session inside a Ray Train worker."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.actor import ActorHandle

from iddpm_ray.train.session import Wish

POLL_SECONDS = 0.25


@dataclass
class RaySession:
    """Rank, device and the board; only rank 0 asks for wishes, without ever blocking on the answer."""

    board: ActorHandle
    rank: int
    world_size: int
    device: torch.device
    _wish: Wish = Wish.NONE
    _pending: Any = None
    _asked: float = 0.0
    _phase: str = field(default="start")

    @classmethod
    def here(cls, board: ActorHandle) -> "RaySession":
        """The session of the worker that calls."""
        context = ray.train.get_context()
        return cls(board, context.get_world_rank(), context.get_world_size(), ray.train.torch.get_device())

    def wish(self) -> Wish:
        """What the board wanted when last asked; a wish to save is handed on once."""
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
        return wish

    def phase(self, name: str) -> None:
        """Remembers where this rank is; told to the board only at phases longer than a step."""
        self._phase = name
        if name in ("load", "first step", "save", "stop"):
            self.board.post_phase.remote(self.rank, name)

    def progress(self, row: Mapping[str, object]) -> None:
        """Sends a row up."""
        self.board.post_row.remote(dict(row))

    def say(self, message: str) -> None:
        """Sends a line up, from rank 0 only: all ranks say the same."""
        if self.rank == 0:
            self.board.post_line.remote(message)
