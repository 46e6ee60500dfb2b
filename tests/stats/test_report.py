"""Anything can be reported from anywhere, under any name, and costs no wait."""

import math
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from no_sync import HostWaited, NoHostSync

from iddpm_ray import stats
from iddpm_ray.stats import Collector, Statistics, report, report0, report_groups


@pytest.fixture(autouse=True)
def _own_statistics() -> Iterator[None]:
    before = stats.current()
    stats.use(Statistics())
    yield
    stats.use(before)


@pytest.mark.parametrize(
    ("value", "elements"),
    [
        (2.5, [2.5]),
        (3, [3.0]),
        (True, [1.0]),
        (math.nan, [math.nan]),
        (np.float32(1.5), [1.5]),
        (np.arange(6).reshape(2, 3), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        ([], []),
        ((), []),
        (10**400, [math.inf]),
        ([-(10**400), 1], [math.inf, 1.0]),
        ([1, 2.5, True], [1.0, 2.5, 1.0]),
        ([[1, 2], [3]], [1.0, 2.0, 3.0]),
        ([0.1, 1e100, 2**53 + 1.0], [0.1, 1e100, 2**53 + 1.0]),
        ([torch.tensor(1.0), torch.tensor([2, 3])], [1.0, 2.0, 3.0]),
        (np.array(4.0), [4.0]),
        (torch.tensor(7, dtype=torch.int32), [7.0]),
        (torch.ones(2, 3, 4, dtype=torch.bool), [1.0] * 24),
        (torch.empty(0), []),
        (torch.empty(3, 0, 2), []),
        (torch.tensor([[1.0, math.inf], [math.nan, 3.0]]), [1.0, math.inf, math.nan, 3.0]),
    ],
)
def test_whatever_is_reported_is_returned_and_counted(value: object, elements: list[float]) -> None:
    collector = Collector()
    assert report("name", value) is value
    collector.update()
    finite = [element for element in elements if math.isfinite(element)]
    assert collector.names() == ["name"]
    assert collector.num("name") == len(finite)
    assert collector.num_nonfinite("name") == len(elements) - len(finite)
    if finite:
        assert collector["name"] == pytest.approx(np.mean(finite), rel=1e-14)
        assert collector.std("name") == pytest.approx(np.std(finite))
    else:
        assert math.isnan(collector["name"])
        assert math.isnan(collector.std("name"))


@pytest.mark.parametrize(
    "value", [1 + 2j, np.complex64(1), np.complex128(1), np.ones(2, complex), torch.ones(2, dtype=torch.complex64), [1.0, [2j]]]
)
def test_complex_values_are_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match="loss/x: complex values have no order: report their absolute values"):
        report("loss/x", value)
    with pytest.raises(TypeError, match="a, b: complex values"):
        report_groups(["a", "b"], torch.ones(2, dtype=torch.complex64), torch.tensor([0, 1]))
    assert not stats.current().names


def test_a_value_stays_in_its_graph() -> None:
    weight = torch.ones(3, requires_grad=True)
    report("loss", (weight * 2).sum()).backward()
    assert torch.equal(weight.grad, torch.full((3,), 2.0))


def test_what_becomes_of_a_value_after_its_report_does_not_matter() -> None:
    collector = Collector()
    value = torch.tensor([1.0, 2.0])
    report("name", value)
    value.fill_(100.0)
    collector.update()
    assert collector["name"] == 1.5


def test_one_name_as_number_tensor_and_group_is_one_name() -> None:
    collector = Collector()
    report("name", 1.0)
    report("name", torch.tensor([2.0, 3.0]))
    report_groups(["name", "other"], torch.tensor([4.0, 5.0, 6.0]), torch.tensor([0, 1, 0]))
    collector.update()
    assert (collector.num("name"), collector["name"], collector.maximum("name")) == (5, 3.2, 6.0)
    assert (collector.num("other"), collector["other"]) == (1, 5.0)


def test_groups_with_leading_axes_name_the_last_axis_fastest() -> None:
    collector = Collector()
    report_groups(["a0", "a1", "b0", "b1"], torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]), torch.tensor([1, 0, 1]))
    report_groups(["a0", "a1"], torch.empty(0), torch.empty(0, dtype=torch.int64))
    collector.update()
    assert collector.means() == {"a0": 2.0, "a1": 2.0, "b0": 20.0, "b1": 20.0}


def test_groups_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="must differ"):
        report_groups(["a", "a"], torch.ones(1), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="3 names"):
        report_groups(["a", "b", "c"], torch.ones(2, 1), torch.zeros(1, dtype=torch.int64))


def test_a_text_is_no_value() -> None:
    with pytest.raises((TypeError, ValueError)):
        report("name", "seven")


def test_report0_counts_on_rank_0_and_is_known_on_the_others() -> None:
    for rank, counted in ((0, 2), (1, 0)):
        stats.use(Statistics(rank=rank))
        collector = Collector()
        assert report0("name", 4.0) == 4.0
        report0("name", torch.tensor(4.0))
        stats.current().report0_groups(["g"], torch.ones(1), torch.zeros(1, dtype=torch.int64))
        collector.update()
        assert collector.names() == ["g", "name"]
        assert (collector.num("name"), collector.num("g")) == (counted, counted // 2)


def test_reports_of_many_threads_are_all_counted() -> None:
    collector = Collector()

    def work() -> None:
        for _ in range(200):
            report("number", 1.0)
            report("tensor", torch.tensor(1.0))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    collector.update()
    assert collector.num("number") == collector.num("tensor") == 800


def test_reporting_waits_for_nothing() -> None:
    value, index = torch.randn(8), torch.randint(0, 2, (8,))
    with NoHostSync():
        for _ in range(2):
            report("a", value)
            report("b", value[0])
            report("c", 1.0)
            report_groups(["d", "e"], value, index)
        with pytest.raises(HostWaited):
            report("f", float(value[0]))
        with pytest.raises(HostWaited):
            value[value > 0].sum()
    report("g", value.to("meta"))
    report("g", value.to("meta"))
    assert stats.current().blocks["meta", ("g",)].device.type == "meta"


def test_memory_does_not_grow_with_reports() -> None:
    for _ in range(50):
        report("a", torch.ones(4))
        report("b", 1.0)
    assert len(stats.current().blocks) == len(stats.current().numbers) == 1
