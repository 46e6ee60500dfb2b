"""Where the time of a run went, worked out from records: it adds up, and nothing is invented where nothing was recorded."""

import math
from typing import Any

import pytest
from report.records import attempt, rank

from iddpm_ray.checkpoint.attempts import Attempt
from iddpm_ray.report.accounts import RunAccount, run_account
from iddpm_ray.report.categories import START


def adds_up(account: RunAccount) -> RunAccount:
    for one in account.attempts:
        assert sum(one.seconds.values()) == pytest.approx(one.worker_seconds, abs=1e-6)
    gaps = account.seconds["idle"]
    assert account.total == pytest.approx(sum(one.worker_seconds for one in account.attempts) + gaps)
    return account


def finished(**more: Any) -> Attempt:
    """Two ranks whose processes were there after 3 s, worked 62.5 s, and were gone 2 s later."""
    ranks = {"0": rank(1003.0), "1": rank(1003.0)}
    return attempt(1, began=1000.0, ended=1067.5, **{"step": 100, "reached": 100, "ranks": ranks, **more})


def test_an_undisturbed_run() -> None:
    account = adds_up(run_account([finished()]))
    assert account.total == 2 * 67.5
    assert account.goodput == pytest.approx(100 / 135)
    seconds = account.seconds
    assert (seconds["schedule"], seconds["stopping"], seconds["redone"], seconds["detect"]) == (6, 5, 0, 0)
    assert seconds["unaccounted"] == pytest.approx(0)
    assert (account.step, account.redone, account.cost) == (100, 0, None)
    assert account.attempts[0].start == pytest.approx(
        {"schedule": 3, "import": 4, "build": 1, "compile": 0.5, "load": 0.5, "first_data": 1, "first_step": 1}
    )


def test_a_hole_in_a_ranks_books_is_unaccounted() -> None:
    ranks = {"0": rank(1003.0), "1": rank(1003.0, productive=43.0, now=1065.5)}
    account = adds_up(run_account([finished(ranks=ranks)]))
    assert account.seconds["unaccounted"] == pytest.approx(7)
    assert account.unaccounted == pytest.approx(7 / 135)


def test_a_category_nobody_knows_is_kept() -> None:
    account = adds_up(run_account([finished(ranks={"0": rank(1003.0, odd=1.0, productive=49.0), "1": rank(1003.0)})]))
    assert account.seconds["odd"] == 1


def died(**more: Any) -> Attempt:
    """Died at step 60 having committed 40; the driver knew 4 s after the last word, and was rid of it 3 s later."""
    ranks = {"0": rank(1003.0, steps=60), "1": rank(1003.0, steps=60)}
    given = {"why": "lost", "step": 40, "reached": 60, "noticed": 1069.5, "ranks": ranks, "cause": "node b has gone"}
    return attempt(1, began=1000.0, ended=1072.5, **{**given, **more})


def after(**more: Any) -> Attempt:
    """Goes on from step 40, five seconds later."""
    ranks = {"0": rank(1080.5), "1": rank(1080.5)}
    return attempt(2, began=1077.5, ended=1143.0, **{"parent": (40, 1), "step": 100, "reached": 100, "ranks": ranks, **more})


def test_work_that_was_lost_is_redone_by_the_share_of_its_steps() -> None:
    account = adds_up(run_account([died(), after()]))
    one = account.attempts[0]
    assert (one.from_step, one.kept, one.reached, one.redone) == (0, 40, 60, 20)
    assert one.seconds["redone"] == pytest.approx(100 * 20 / 59)  # the first of the 60 is booked as start
    assert one.seconds["productive"] == pytest.approx(100 * 39 / 59)
    assert account.attempts[1].seconds["redone"] == 0
    assert (account.redone, account.step) == (20, 100)


def test_work_that_was_lost_is_redone_by_the_account_at_the_commit_where_there_is_one() -> None:
    ledger = {"began": 1003.0, "now": 1040.0, "ledger": {"productive": 35.0}}
    account = adds_up(run_account([died(info_committed=40, info_ledger=ledger), after()]))
    assert account.attempts[0].seconds["redone"] == pytest.approx(30)
    elsewhere = adds_up(run_account([died(info_committed=50, info_ledger=ledger), after()]))
    assert elsewhere.attempts[0].seconds["redone"] == pytest.approx(100 * 20 / 59)


def test_from_the_end_of_use_to_the_first_step() -> None:
    account = adds_up(run_account([died(), after()]))
    assert account.seconds["detect"] == pytest.approx(2 * 4)
    assert account.seconds["idle"] == pytest.approx(2 * 5)
    first, second = account.restarts
    assert "detect" not in first.phases
    assert second.phases == pytest.approx(
        {"detect": 4, "stop": 3, "idle": 5}
        | {"schedule": 3, "import": 4, "build": 1, "compile": 0.5, "load": 0.5, "first_data": 1, "first_step": 1}
    )
    assert second.seconds == pytest.approx(23)
    assert second.stepped


def test_the_step_in_which_it_died_is_lost_and_waiting_for_the_dead_is_detection() -> None:
    """58.5 s of work were 10 whole steps but for the first and 22.5 s of an eleventh: a usual step takes 4 s, so 18.5 s were waiting."""
    ranks = {"0": rank(1003.0, productive=58.5, steps=10, unfinished=22.5), "1": rank(1003.0, productive=58.5, steps=10, unfinished=22.5)}
    account = adds_up(
        run_account([attempt(1, began=1000.0, ended=1074.0, why="hung", step=10, reached=10, noticed=1074.0, ranks=ranks), after()])
    )
    one = account.attempts[0]
    assert one.seconds["productive"] == pytest.approx(2 * 36)
    assert one.seconds["redone"] == pytest.approx(2 * 4)
    assert one.seconds["detect"] == pytest.approx(2 * 18.5)


def test_all_steps_of_an_attempt_that_nobody_went_on_from_are_redone() -> None:
    dead_end = died(step=None)
    fresh = attempt(2, began=1080.0, ended=1150.0, step=100, reached=100, ranks={"0": rank(1083.0), "1": rank(1083.0)})
    account = adds_up(run_account([dead_end, fresh]))
    assert [one.redone for one in account.attempts] == [60, 0]
    assert account.attempts[0].seconds["productive"] == 0


def test_a_run_that_died_for_good_has_lost_what_was_not_saved() -> None:
    account = adds_up(run_account([died()]))
    assert (account.step, account.redone) == (40, 20)


def test_what_a_preempted_attempt_returned_with_counts_only_as_far_as_it_was_saved() -> None:
    account = adds_up(run_account([died(why="preempted", step=60, info_committed=59)]))
    assert (account.step, account.redone) == (59, 1)


def test_a_graceful_end_redoes_nothing_and_detects_nothing() -> None:
    first = died(why="preempted", step=60, noticed=1050.0)
    account = adds_up(run_account([first, after(parent=(60, 1))]))
    assert account.redone == 0
    assert account.seconds["detect"] == 0
    assert account.restarts[1].phases["stop"] == pytest.approx(7)
    assert account.endings["preempted"] == 1


def test_a_rank_that_never_spoke_was_being_scheduled() -> None:
    account = adds_up(run_account([died(ranks={"0": rank(1003.0), "1": {}}, reached=0, step=0), after(parent=None)]))
    assert account.attempts[0].seconds["schedule"] == pytest.approx(3 + 69.5)
    assert account.attempts[0].seconds["unaccounted"] == pytest.approx(0)


def test_a_process_that_waited_for_work_before_the_attempt_is_charged_from_its_begin() -> None:
    ranks = {"0": rank(998.0, now=1060.5), "1": rank(1003.0)}
    account = adds_up(run_account([finished(ranks=ranks)]))
    assert account.attempts[0].seconds["import"] == pytest.approx((4 - 2) + 4)
    assert account.attempts[0].seconds["schedule"] == pytest.approx(0 + 3)
    assert account.attempts[0].seconds["unaccounted"] == pytest.approx(0)


def test_a_pause_of_a_person_is_no_part_of_the_run() -> None:
    for first in (died(why="stopped", step=60), died(info_driver="one"), died(why="refused", step=60)):
        account = adds_up(run_account([first, after(info_driver="two")]))
        assert account.seconds["idle"] == 0
        assert "idle" not in account.restarts[1].phases


def test_a_gap_costs_the_workers_that_both_attempts_had() -> None:
    account = adds_up(run_account([died(), after(workers=1, ranks={"0": rank(1080.5)})]))
    assert account.seconds["idle"] == 5


def test_cost_is_time_times_price_of_its_attempt() -> None:
    account = run_account([died(info_price_per_worker_hour=3.6), after()], price=7.2)
    assert account.cost == pytest.approx((2 * 72.5 * 3.6 + (2 * 65.5 + 2 * 5) * 7.2) / 3600)
    assert run_account([died(), after()]).cost is None


def test_without_an_end_only_what_was_said_counts_and_that_is_told() -> None:
    ledger = {**rank(1003.0), "step": 40}
    silent = attempt(1, began=1000.0, ended=None, info_committed=40, info_ledger=ledger)
    account = adds_up(run_account([silent, after()]))
    one = account.attempts[0]
    assert (one.why, one.worker_seconds, one.reached, one.redone) == ("unknown", 2 * 65.5, 40, 0)
    assert any("no end was recorded" in note for note in one.notes)
    assert any("stands for all ranks" in note for note in one.notes)
    assert run_account([silent]).attempts[0].why == "running"


def test_an_older_record_without_ranks_is_unaccounted_and_said() -> None:
    old = attempt(1, began=1000.0, ended=1100.0, why="finished", step=10)
    account = adds_up(run_account([old]))
    assert account.seconds["unaccounted"] == 200
    assert account.goodput == 0
    assert account.attempts[0].notes == ("its ranks recorded nothing of their time",)


def test_what_ranks_did_after_rank_0s_last_word_is_not_guessed() -> None:
    died_with_driver = attempt(1, began=1000.0, ended=1100.0, why="failed", info_ledger=rank(1003.0), info_committed=40)
    account = adds_up(run_account([died_with_driver]))
    assert account.seconds["unaccounted"] == pytest.approx(2 * (1100 - 1065.5))


@pytest.mark.parametrize(
    "record",
    [
        Attempt(1, False),
        Attempt(1, False, info={"began": "yesterday", "workers": -2, "ledger": [1]}, end={"why": 7, "ranks": {"x": 1, "0": None}}),
        Attempt(1, True, info={"began": math.nan, "workers": 2.5, "ledger": {"ledger": {"productive": "all"}}}, end={"ended": True}),
        Attempt(1, True, 5, 9, info={"began": 10.0}, end={"ended": 5.0, "reached": -3, "step": "4", "ranks": [], "noticed": "no"}),
        Attempt(
            1,
            True,
            info={"began": 10.0},
            end={"ended": 50.0, "ranks": {"0": {"began": 11, "now": 12, "ledger": {"productive": -5, "row": 1}}}},
        ),
    ],
)
def test_a_damaged_record_is_borne(record: Attempt) -> None:
    account = adds_up(run_account([record, Attempt(2, False)]))
    assert all(math.isfinite(seconds) for seconds in account.seconds.values())
    assert len(account.attempts) == 2


def test_start_phases_are_of_every_attempt_that_recorded_time() -> None:
    account = run_account([died(), after()])
    assert all(set(one.start) == set(START) for one in account.attempts)
