"""A table keeps one row a name."""

import torch

from iddpm_ray.stats import moments
from iddpm_ray.stats.table import Table


def row(*values: float) -> torch.Tensor:
    return moments.of_values(torch.tensor(values, dtype=torch.float64))


def test_rows_merge_under_their_names_in_any_order() -> None:
    table = Table()
    table.merge(["b", "a"], torch.stack((row(1.0, 2.0), row(5.0))))
    table.merge(["a", "c"], torch.stack((row(7.0), row(9.0))))
    assert table.names() == ["a", "b", "c"]
    taken = table.take(["c", "a", "nobody", "b"])
    assert torch.equal(taken, torch.stack((row(9.0), moments.merge(row(5.0), row(7.0)), moments.empty(1)[0], row(1.0, 2.0))))


def test_put_replaces_and_take_copies() -> None:
    table = Table()
    table.put(["a"], row(1.0)[None])
    table.put(["a", "b"], torch.stack((row(2.0), row(3.0))))
    table.take(["a"]).zero_()
    assert torch.equal(table.take(["a"])[0], row(2.0))


def test_an_empty_table_answers() -> None:
    table = Table()
    table.merge([], moments.empty(0))
    assert table.names() == []
    assert table.take([]).shape == (0, 6)
    assert torch.equal(table.take(["x"]), moments.empty(1))
