"""An error for a user is one sentence that survives the way from a worker to the driver."""

import pickle

import pytest

from iddpm_ray.errors import CheckpointError, DataError, SpecError, TrainError, UserError

KINDS = [SpecError, DataError, CheckpointError, TrainError, UserError]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "optim.lr"),
        ({"value": 3}, "optim.lr (got 3)"),
        ({"fix": "use a number"}, "optim.lr: use a number"),
        ({"value": "x", "fix": "use a number"}, "optim.lr (got x): use a number"),
        ({"value": 0, "fix": "more"}, "optim.lr (got 0): more"),
    ],
)
def test_message_names_the_thing_the_value_and_the_fix(arguments, text):
    assert str(SpecError("optim.lr", **arguments)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_errors_survive_pickling_with_kind_and_parts(kind):
    error = kind("shard 3", value=12, fix="copy it again")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert (again.what, again.value, again.fix) == ("shard 3", "12", "copy it again")


@pytest.mark.parametrize("kind", KINDS)
def test_one_except_clause_catches_all_that_a_user_can_mend(kind):
    with pytest.raises(UserError):
        raise kind("anything")
