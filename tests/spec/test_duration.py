"""Durations say what they mean, become samples exactly, and intervals fire by crossing."""

import random

import pytest

from iddpm_ray.errors import SpecError
from iddpm_ray.spec.duration import Duration, crossed, parse_duration


@pytest.mark.parametrize(
    ("text", "amount", "unit", "canonical"),
    [
        ("5000 steps", 5000, "steps", "5000 steps"),
        ("1 step", 1, "steps", "1 step"),
        ("1.5k steps", 1500, "steps", "1500 steps"),
        ("2M samples", 2e6, "samples", "2M samples"),
        ("2.5M samples", 2.5e6, "samples", "2.5M samples"),
        ("1234567 samples", 1234567, "samples", "1234567 samples"),
        ("1B samples", 1e9, "samples", "1000M samples"),
        ("3 epochs", 3, "epochs", "3 epochs"),
        ("0.5 epochs", 0.5, "epochs", "0.5 epochs"),
        ("15 min", 15, "minutes", "15 min"),
        ("0.05 min", 0.05, "minutes", "0.05 min"),
        ("2 h", 120, "minutes", "120 min"),
        ("0 steps", 0, "steps", "0 steps"),
        ("  7steps ", 7, "steps", "7 steps"),
    ],
)
def test_text_becomes_a_duration_and_its_canonical_text(text, amount, unit, canonical):
    duration = parse_duration(text)
    assert duration == Duration(amount, unit)
    assert str(duration) == canonical
    assert parse_duration(canonical) == duration


def test_canonical_text_round_trips_for_any_amount():
    generator = random.Random(0)
    for _ in range(2000):
        whole = generator.randrange(10 ** generator.randrange(1, 16))
        fraction = generator.randrange(1, 10**6) / 10 ** generator.randrange(1, 9)
        for duration in (
            Duration(float(whole), generator.choice(["steps", "samples"])),
            Duration(fraction, generator.choice(["epochs", "minutes"])),
        ):
            assert parse_duration(str(duration)) == duration


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("5000", '"5000 steps"'),
        ("5k", '"5k steps"'),
        ("", "a number and a unit"),
        ("steps", "a number and a unit"),
        ("-5 steps", "a number and a unit"),
        ("5 stps", "stps"),
        ("5 parsecs", "parsecs"),
        ("1.5 steps", "whole number of steps"),
        ("0.0001k samples", "whole number of samples"),
        ("nan steps", "a number and a unit"),
        ("5 steps please", "a number and a unit"),
        ("1000000000000B samples", "at most"),
        ("5 Steps", "Steps"),
    ],
)
def test_wrong_text_is_refused_in_words(text, says):
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        ("10 steps", 80),
        ("1001 samples", 1001),
        ("2 epochs", 3594),
        ("0.1 epochs", 180),
        ("0.0001 epochs", 1),
        ("0 epochs", 0),
        ("0 steps", 0),
    ],
)
def test_durations_become_samples(text, samples):
    assert parse_duration(text).samples(8, 1797) == samples


def test_wall_clock_time_is_no_number_of_samples():
    with pytest.raises(SpecError, match="15 min is wall-clock time"):
        parse_duration("15 min").samples(8, 1797)


@pytest.mark.parametrize("every", [1, 3, 7, 8, 20, 100])
@pytest.mark.parametrize("batch", [1, 3, 8, 64])
def test_intervals_fire_once_for_every_step_that_crosses_a_multiple(every, batch):
    fired = [after for after in range(batch, 2000, batch) if crossed(after - batch, after, every)]
    expected = [
        after for after in range(batch, 2000, batch) if any(multiple % every == 0 for multiple in range(after - batch + 1, after + 1))
    ]
    assert fired == expected
    assert len(fired) > 0
