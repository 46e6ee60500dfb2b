"""Who is charged for an attempt that ended, and when a run gives up."""

import pytest

from iddpm_ray.runtime.budget import Budget, Why


def test_losses_of_machines_never_use_up_the_budget_of_failures() -> None:
    budget = Budget(max_failures=0, max_fruitless=2)
    for _ in range(50):
        assert budget.after("lost", progressed=True).again
        assert budget.after("preempted", progressed=False).again
        assert budget.after("grown", progressed=False).again
    assert (budget.failures, budget.lost, budget.preempted) == (0, 50, 50)


@pytest.mark.parametrize("why", ["failed", "hung"])
def test_failures_that_progress_are_borne_up_to_the_budget(why: Why) -> None:
    budget = Budget(max_failures=5, max_fruitless=1)
    verdicts = [budget.after(why, progressed=True) for _ in range(6)]
    assert [verdict.again for verdict in verdicts] == [True] * 5 + [False]
    assert "cluster.max_failures 5" in verdicts[-1].account


@pytest.mark.parametrize("why", ["failed", "lost", "hung"])
def test_no_progress_between_attempts_ends_the_run_and_says_so(why: Why) -> None:
    budget = Budget(max_failures=100, max_fruitless=3)
    verdicts = [budget.after(why, progressed=False) for _ in range(4)]
    assert [verdict.again for verdict in verdicts] == [True, True, True, False]
    assert "without a new checkpoint: 4 (cluster.max_fruitless 3)" in verdicts[-1].account


def test_a_new_checkpoint_ends_a_row_and_its_pauses() -> None:
    budget = Budget(max_failures=100, max_fruitless=2)
    pauses = [budget.after("failed", progressed=progressed).pause_s for progressed in (False, False, True, False, False)]
    assert pauses[0] == pauses[2] == pauses[3] == 0
    assert pauses[1] == pauses[4] > 0


def test_storms_back_off_and_pauses_are_bounded() -> None:
    budget = Budget(max_failures=100, max_fruitless=100)
    pauses = [budget.after("failed", progressed=False).pause_s for _ in range(20)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30


def test_a_run_on_a_crowded_cluster_waits_longer_and_longer_and_never_gives_up() -> None:
    budget = Budget(max_failures=0, max_fruitless=0)
    verdicts = [budget.after("lost", progressed=False, crowded=True) for _ in range(50)]
    assert all(verdict.again for verdict in verdicts)
    pauses = [verdict.pause_s for verdict in verdicts]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < pauses[-1] == 30
    assert (budget.failures, budget.fruitless, budget.lost) == (0, 0, 0)
