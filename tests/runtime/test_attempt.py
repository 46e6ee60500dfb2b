"""What the watcher of an attempt adds to its ending: whose machines went."""

from types import SimpleNamespace

import pytest

from iddpm_ray.errors import TrainError
from iddpm_ray.runtime import attempt
from iddpm_ray.runtime.attempt import _explained
from iddpm_ray.runtime.ending import Ending, classify
from iddpm_ray.runtime.pulse import Heard, Pulse

NOTICED = 1000.0


def heard(*notices: float | None) -> dict[int, Heard]:
    """A pulse of each rank, every rank on a machine of its own."""
    return {rank: Heard(Pulse(rank, moves=3, node=f"machine-{rank}", pid=1, notice=notice)) for rank, notice in enumerate(notices)}


def going(monkeypatch: pytest.MonkeyPatch, *machines: str) -> None:
    monkeypatch.setattr(attempt.cluster, "gone_nodes", lambda nodes: set(nodes) & set(machines))
    monkeypatch.setattr(attempt, "_NODE_DEATH_S", 0.0)


def test_a_preemption_names_the_machines_that_go_and_not_all_who_heard_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank has the news, for all of them leave together."""
    going(monkeypatch, "machine-1")
    ending = _explained(classify(SimpleNamespace(why="preempted", step=7), None), None, heard(NOTICED, NOTICED), None)
    assert (ending.why, ending.step) == ("preempted", 7)
    assert ending.cause == "the machines of ranks 1 were taken away"


def test_where_no_machine_is_known_to_go_those_who_heard_of_it_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    going(monkeypatch)
    ending = _explained(Ending("preempted", 7), None, heard(NOTICED, None, NOTICED), None)
    assert ending.cause == "the machines of ranks 0, 2 were taken away"


def test_a_machine_that_died_without_notice_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    going(monkeypatch, "machine-0", "machine-2")
    ending = _explained(Ending("failed", error=TrainError("rank 0: its process has died"), died=True), None, heard(None, None, None), None)
    assert ending.why == "lost"
    assert ending.cause == "the machines of ranks 0, 2 died without notice"
