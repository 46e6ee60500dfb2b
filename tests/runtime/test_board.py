"""The board between driver and workers: nothing is lost, nothing is given twice."""

from typing import Any

from iddpm_ray.runtime.board import Board
from iddpm_ray.runtime.pulse import Pulse
from iddpm_ray.train.session import Wish


def board() -> Any:
    """The actor's class as a plain object: its methods are ordinary ones."""
    return Board.__ray_metadata__.modified_class()


def test_a_wish_to_stop_stays_and_a_wish_to_save_is_granted_once() -> None:
    it = board()
    assert it.wish() == Wish.NONE
    it.ask(Wish.SAVE)
    it.ask(Wish.STOP)
    assert [it.wish(), it.wish()] == [Wish.SAVE | Wish.STOP, Wish.STOP]


def test_every_line_is_told_once_in_order_and_of_rows_the_newest() -> None:
    it = board()
    for step in (2, 4):
        it.post_row({"step": step})
        it.post_line(f"line {step}")
    it.post_pulse(Pulse(1, 7, "node", 99))
    news = it.news()
    assert (news.row, news.lines) == ({"step": 4}, ["line 2", "line 4"])
    assert news.heard[1].pulse == Pulse(1, 7, "node", 99)
    news = it.news()
    assert (news.row, news.lines, list(news.heard)) == (None, [], [1])
