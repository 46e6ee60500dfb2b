"""Machines that are being drained, as the ranks see for themselves while Ray's watcher of an attempt is still starting."""

import json
import logging
from dataclasses import dataclass

import ray
from ray._private.state import state

from iddpm_ray.parallel.collective import Group, broadcast_bytes, gather_bytes, new_gloo_group

# Ray starts a process for its watcher with every group of workers; on a busy machine that takes ten seconds, and a notice may have fifteen.
LOOKS = 60

_log = logging.getLogger(__name__)


@dataclass
class Drains:
    """What rank 0 is told by Ray's control service, shared with all ranks.

    Attributes:
        group: of all ranks, used by nothing else.
        nodes: the node of each rank.
        left: looks that are still taken; counted and not timed, so that all ranks agree.
    """

    group: Group
    nodes: tuple[str, ...]
    rank: int
    left: int = LOOKS

    @classmethod
    def here(cls, *, rank: int, timeout_s: float) -> "Drains":
        """Learns where all ranks are. A collective."""
        group = new_gloo_group(timeout_s=timeout_s)
        own = ray.get_runtime_context().get_node_id()
        return cls(group, tuple(node.decode() for node in gather_bytes(own.encode(), group=group)), rank)

    def look(self) -> tuple[tuple[int, ...], int] | None:
        """Ranks whose machines are being drained and the first deadline in ms since 1970 (0 for none), or None. A collective."""
        if self.left <= 0:
            return None
        self.left -= 1
        drained: dict[str, int] = json.loads(broadcast_bytes(json.dumps(self._drained()).encode(), group=self.group))
        ranks = tuple(rank for rank, node in enumerate(self.nodes) if node in drained)
        deadlines = [deadline for node, deadline in drained.items() if node in self.nodes and deadline]
        return (ranks, min(deadlines, default=0)) if ranks else None

    def _drained(self) -> dict[str, int]:
        if self.rank != 0:
            return {}
        try:
            return dict(state.get_draining_nodes())
        except Exception as error:  # the control service may be away; Ray's watcher and the next look ask again
            _log.debug("drained machines: %s", error)
            return {}
