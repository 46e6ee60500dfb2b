"""A preemption on purpose: takes one machine of a live run away, with notice, and measures what that costs."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.state import state
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue] compiled
from ray.core.generated import autoscaler_pb2

from iddpm_ray import storage
from iddpm_ray.checkpoint.attempts import Attempt, attempts
from iddpm_ray.checkpoint.commit import Checkpoint, complete
from iddpm_ray.checkpoint.marker import MARKER
from iddpm_ray.errors import SpecError, UserError
from iddpm_ray.report.accounts import run_account
from iddpm_ray.runtime import cluster

POLL_S = 0.5
RANK = "RayTrainWorker"  # what Ray calls the actor that a rank is


@dataclass(frozen=True)
class Drill:
    """What a drained machine cost.

    Attributes:
        told_s: until the last rank knew; None if no rank recorded it.
        saved_s: until the last checkpoint of the attempt, None if it made none after the notice.
        redone: steps done again.
        back_s: until the next attempt had its first step behind it and committed it.
        start_s: of which the start of that attempt, by its own record.
    """

    node: str
    why: str
    told_s: float | None
    saved_s: float | None
    redone: int
    back_s: float
    start_s: float | None

    def describe(self) -> str:
        """For a person."""
        lines = {
            "machine": f"{self.node}; the attempt ended as: {self.why}",
            "ranks told": _after(self.told_s),
            "last save": _after(self.saved_s),
            "steps redone": str(self.redone),
            "back": f"{self.back_s:.1f} s after the notice (next checkpoint)"
            + ("" if self.start_s is None else f"; {self.start_s:.1f} s of it from the last useful moment to the first step"),
        }
        return "\n".join(f"{name:<13} {text}" for name, text in lines.items())


def drill(
    url: str, *, address: str | None, seconds: float, patience_s: float, node: str | None = None, show: Callable[[str], None] = print
) -> Drill:
    """Drains a machine that a run's worker is on, and waits until the run has committed a checkpoint without it.

    Args:
        url: the run's directory.
        address: of the Ray that it runs on; None if nobody said.
        seconds: of notice.
        node: the machine's id, the beginning of it, or its host name; None: one with the most ranks.

    Raises:
        UserError: the cluster is not known, nothing runs there, or it did not come back.
    """
    if not address:
        raise SpecError("the cluster to drill is not known", fix="give --address HOST:6379, or run it on the cluster with `ray job submit`")
    url = storage.absolute(url)
    before = _running(url)
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        chosen = choose(_seats(named=node is not None), node)
        show(f"taking {chosen['NodeManagerHostname']} ({chosen['NodeID'][:12]}) away from attempt {before.number}, {seconds:g} s of notice")
        noticed = time.time()
        accepted, why = _drain(chosen["NodeID"], deadline=noticed + seconds)
        if not accepted:
            raise UserError("Ray does not drain that machine", value=why, fix="choose another one with --node")
    finally:
        ray.shutdown()
    show("waiting for the run to come back")
    back = _back(url, before.number, noticed=noticed, patience_s=patience_s)
    return _measured(url, before.number, node=chosen["NodeID"], noticed=noticed, back=back)


@dataclass(frozen=True)
class Back:
    """The run has come back.

    Attributes:
        seconds: after the notice.
        saved_s: after it, of the last checkpoint that the drained attempt made; None if it made none.
    """

    seconds: float
    saved_s: float | None


def _drain(node: str, *, deadline: float) -> tuple[bool, str]:
    """The notice that Ray gives all ranks; whether it was taken, and why not."""
    preemption = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION  # pyright: ignore[reportAttributeAccessIssue] generated
    return GcsClient(address=ray.get_runtime_context().gcs_address).drain_node(node, preemption, "drill", int(1000 * deadline))


def choose(nodes: list[tuple[dict[str, Any], int]], wanted: str | None) -> dict[str, Any]:
    """The machine to take: the one that is named, else one with the most ranks.

    Args:
        nodes: machines that ranks may be on, each with how many are.

    Raises:
        UserError: there is none, or not that one.
    """
    if wanted is not None:
        named = [node for node, _ in nodes if node["NodeID"].startswith(wanted) or node["NodeManagerHostname"] == wanted]
        if len(named) != 1:
            known = ", ".join(f"{node['NodeID'][:12]} ({node['NodeManagerHostname']})" for node, _ in nodes)
            raise UserError(f"{len(named)} machines are called so", value=wanted, fix=f"one of {known or 'none at all'}")
        return named[0]
    seats = [(ranks, node["NodeID"], node) for node, ranks in nodes if ranks > 0]
    if not seats:
        raise UserError("no machine of this cluster has a rank of a run", fix="start the run, or give the address of its cluster")
    return max(seats, key=lambda one: one[:2])[2]


def _seats(*, named: bool) -> list[tuple[dict[str, Any], int]]:
    """Every machine but the head, and how many ranks are on it.

    Args:
        named: whether a person has said which machine it is to be.

    Raises:
        UserError: nobody has, and ranks of several runs are there.
    """
    ranks = [actor for actor in state.actor_table(None, actor_state_name="ALIVE").values() if actor["ActorClassName"] == RANK]
    if not named and len({actor["JobID"] for actor in ranks}) > 1:
        raise UserError("several runs are on this cluster", fix="say with --node which machine to take")
    count, gone = Counter(actor["Address"]["NodeID"] for actor in ranks), cluster.leaving_nodes()
    return [
        (node, count[node["NodeID"]])
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] not in gone and "node:__internal_head__" not in node["Resources"]
    ]


def _running(url: str) -> Attempt:
    known = attempts(url)
    if not known:
        raise UserError(f"{storage.shown(url)} holds no attempts of a run", fix="give a run's directory: {run.output_dir}/{run.name}")
    if known[-1].end is not None or not known[-1].began:
        raise UserError(f"attempt {known[-1].number} of {storage.shown(url)} is not training", fix="drill a run that is under way")
    return known[-1]


def _back(url: str, number: int, *, noticed: float, patience_s: float) -> Back:
    """Waits until a later attempt has committed."""
    saved: float | None = None
    while time.time() < noticed + patience_s:
        kept = complete(url)
        marked = [moment for one in kept if one.attempt == number and (moment := _marked(one)) is not None and moment > noticed]
        saved = max(marked, default=saved)  # looked at while they are there: the next attempt deletes them
        if any(one.attempt > number for one in kept):
            return Back(time.time() - noticed, None if saved is None else saved - noticed)
        if (end := next((one.end for one in attempts(url) if one.number == number), None)) and end["why"] in ("finished", "stopped"):
            raise UserError(f"the run {end['why']} before the machine was gone", fix="drill a run with more steps before it")
        time.sleep(POLL_S)
    raise UserError(
        f"no checkpoint of a later attempt came in {patience_s:g} s",
        fix="see the run's log; where no machine comes, the cluster has no room for a replacement",
    )


def _measured(url: str, number: int, *, node: str, noticed: float, back: Back) -> Drill:
    known = attempts(url)
    account = run_account(known)
    mine = next(one for one in account.attempts if one.number == number)
    restart = next((one for one in account.restarts if one.attempt == number + 1 and one.stepped), None)
    end = next(one.end for one in known if one.number == number) or {}
    told = [rank["notice"] - noticed for rank in end.get("ranks", {}).values() if rank.get("notice")]
    return Drill(
        node=node[:12],
        why=f"{mine.why}{f' ({mine.cause})' if mine.cause else ''}",
        told_s=max(told, default=None),
        saved_s=back.saved_s,
        redone=mine.redone,
        back_s=back.seconds,
        start_s=None if restart is None else restart.seconds,
    )


def _marked(checkpoint: Checkpoint) -> float | None:
    """When it was marked; None if it has just been deleted."""
    try:
        return storage.modified(storage.join(checkpoint.url, MARKER))
    except FileNotFoundError:
        return None


def _after(seconds: float | None) -> str:
    return "not known" if seconds is None else f"{seconds:.1f} s after the notice"
