"""Between notice and deadline: save at once, step on while a save fits twice over, save again, leave."""

from dataclasses import replace

import pytest

from iddpm_ray.train.preempt import Action, Outlook, decide, percentile95


@pytest.mark.parametrize(
    ("outlook", "action"),
    [
        (Outlook(10, 0.5, 1.0, unsaved_steps=0), Action.STEP),
        (Outlook(10, 0.5, 1.0, unsaved_steps=7), Action.STEP),
        (Outlook(2.5, 0.5, 1.0, unsaved_steps=7), Action.STEP),  # 2.0 s are left after the step
        (Outlook(2.4, 0.5, 1.0, unsaved_steps=7), Action.SAVE),
        (Outlook(2.4, 0.5, 1.0, unsaved_steps=0), Action.LEAVE),
        (Outlook(10, 9.0, 1.0, unsaved_steps=0), Action.LEAVE),  # the step alone is too long
        (Outlook(10, 0.5, None, unsaved_steps=7), Action.SAVE),  # nothing measured: measure
        (Outlook(10, 0.5, None, unsaved_steps=0), Action.LEAVE),
        (Outlook(-1, 0.5, 1.0, unsaved_steps=7), Action.LEAVE),  # too late
        (Outlook(0.5, 0.1, 1.0, unsaved_steps=7), Action.SAVE),  # worth a try
        (Outlook(10, 0.5, 1.0, unsaved_steps=7, may_save=False), Action.LEAVE),
    ],
)
def test_what_to_do(outlook: Outlook, action: Action) -> None:
    assert decide(outlook) is action


@pytest.mark.parametrize("step_s", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("save_s", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("seconds", [1.0, 12.0, 120.0])
def test_every_schedule_ends_saved_before_the_deadline_or_could_never_be(step_s: float, save_s: float, seconds: float) -> None:
    """A simulation: steps and saves take exactly as long as measured."""
    left, unsaved, committed_late = seconds - save_s, 0, seconds < save_s
    for _ in range(100_000):
        action = decide(Outlook(left, step_s, save_s, unsaved))
        if action is Action.LEAVE:
            break
        if action is Action.STEP:
            left, unsaved = left - step_s, unsaved + 1
        else:
            left, unsaved = left - save_s, 0
    assert unsaved == 0
    assert committed_late or left >= 0


def test_the_slowest_of_twenty_saves_is_left_out_of_the_percentile() -> None:
    assert percentile95([]) is None
    assert percentile95([3.0]) == 3.0
    assert percentile95([*[1.0] * 19, 50.0]) == 1.0
    assert percentile95([*[1.0] * 18, 40.0, 50.0]) == 40.0


def test_more_time_never_makes_it_leave_sooner() -> None:
    base = Outlook(0.0, 0.4, 0.7, unsaved_steps=3)
    order = [Action.LEAVE, Action.SAVE, Action.STEP]
    actions = [order.index(decide(replace(base, seconds_left=left / 10))) for left in range(-10, 100)]
    assert actions == sorted(actions)
