"""Ranks that know different labels come to one list, and the collectives they need have shapes known to all beforehand."""

import pytest
import torch
from fake_world import FakeWorld

from iddpm_ray.stats.agree import agree, gathered

CPU = torch.device("cpu")


def test_equal_labels_cost_one_exchange_of_fixed_size() -> None:
    world = FakeWorld(3)
    assert world.run(lambda rank, exchange: agree({"b", "a"}, exchange, subject="s", device=CPU)) == [["a", "b"]] * 3
    assert world.shapes == [(4,)]


def test_other_labels_cost_one_more_and_all_ranks_learn_the_union() -> None:
    own = [[], ["z", "Grüße\n\0"], ["a", "z"], ['"quoted"', "b" * 500]]
    world = FakeWorld(4)
    everything = sorted({label for labels in own for label in labels})
    assert world.run(lambda rank, exchange: agree(own[rank], exchange, subject="s", device=CPU)) == [everything] * 4
    assert len(world.shapes) == 2
    assert world.shapes[0] == (4,)


def test_labels_of_equal_length_are_still_told_apart() -> None:
    assert FakeWorld(2).run(lambda rank, exchange: agree(["ab"[rank]], exchange, subject="s", device=CPU)) == [["a", "b"]] * 2


def test_ranks_that_meet_for_different_subjects_raise_together() -> None:
    def meet(rank: int, exchange: object) -> str:
        with pytest.raises(RuntimeError, match=f"'subject {rank}'"):
            agree(["a"], exchange, subject=f"subject {rank}", device=CPU)  # type: ignore[arg-type]
        return "raised"

    assert FakeWorld(2).run(meet) == ["raised"] * 2


def test_an_exchange_that_is_no_all_gather_is_caught() -> None:
    with pytest.raises(RuntimeError, match=r"\[world_size, \*shape\]"):
        gathered(torch.ones(3), lambda tensor: tensor, device=CPU)


def test_alone_nothing_is_exchanged() -> None:
    assert agree(["b", "a", "b"], None, subject="s", device=CPU) == ["a", "b"]
    assert gathered(torch.ones(2), None, device=CPU).shape == (1, 2)
