"""Who has hung: the silent one, or the one that the others wait for; nobody while all move."""

from typing import Any

from iddpm_ray.runtime.pulse import Heard, Listener, Pulse, find_hang


def heard(rank: int, *, silent: float = 0.0, still: float = 0.0, moves: int = 9, step: int | None = 5, phase: str = "update") -> Heard:
    report: dict[str, Any] = {"step": step, "phase": phase, "first_step": None if step is None else 1.0}
    return Heard(Pulse(rank, moves, "node", 1, None, report), silent, still)


def both(*ranks: Heard) -> dict[int, Heard]:
    return {one.pulse.rank: one for one in ranks}


def test_a_frozen_process_is_named_though_the_others_wait_as_long() -> None:
    hang = find_hang(both(heard(0, still=61), heard(1, silent=61, still=61, phase="forward", step=4)), timeout_s=60)
    assert hang is not None
    assert hang.rank == 1
    assert hang.sentence == "rank 1 shows no sign of life for 61 s, in phase 'forward' after step 4"


def test_of_those_that_stand_still_the_furthest_behind_is_named() -> None:
    hang = find_hang(
        both(heard(0, still=70, moves=20), heard(1, still=90, moves=18, phase="data"), heard(2, still=70, moves=20)), timeout_s=60
    )
    assert hang is not None
    assert (hang.rank, "'data' after step 5" in hang.sentence) == (1, True)


def test_the_first_step_is_given_four_times_as_long_but_silence_is_not() -> None:
    starting = heard(0, still=100, step=None, phase="compile")
    assert find_hang(both(starting), timeout_s=60) is None
    assert find_hang(both(heard(0, still=241, step=None)), timeout_s=60) is not None
    assert find_hang(both(starting, heard(1, silent=61, step=None)), timeout_s=60) is not None


def test_a_slow_save_is_no_hang_but_a_frozen_rank_in_it_is() -> None:
    saving = heard(0, still=900, phase="save")
    assert find_hang(both(saving, heard(1, still=890)), timeout_s=60) is None
    assert find_hang(both(saving, heard(1, silent=61, still=890)), timeout_s=60) is not None


def test_a_rank_that_never_spoke_is_named_once_the_others_have_waited_long_enough() -> None:
    waiting = both(heard(0, step=None), heard(2, step=None))
    assert find_hang(waiting, timeout_s=60, workers=3, since_s=200) is None
    hang = find_hang(waiting, timeout_s=60, workers=3, since_s=241)
    assert hang is not None
    assert (hang.rank, hang.sentence) == (1, "rank 1 has shown no sign of life since its group began 241 s ago")


def test_nobody_hangs_while_all_move_or_before_anybody_has_spoken() -> None:
    assert find_hang({}, timeout_s=1) is None
    assert find_hang(both(heard(0, silent=3, still=20), heard(1, silent=1, still=59)), timeout_s=60) is None
    assert find_hang(both(heard(0, still=2, phase="sample"), heard(1, still=400, phase="sample")), timeout_s=60) is None  # it waits


def test_a_listener_tells_silence_from_standing_still() -> None:
    listener = Listener()
    listener.hear(Pulse(0, 1, "n", 1), now=10)
    listener.hear(Pulse(0, 2, "n", 1), now=20)
    listener.hear(Pulse(0, 2, "n", 1), now=30)
    one = listener.heard(now=34)[0]
    assert (one.silent_s, one.still_s) == (4, 14)
