"""What a cluster has against what a run asks for, and whether its nodes share a disk."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from runtime.machines import Machines
from train.small_run import small_spec

from iddpm_ray.errors import SpecError, UserError
from iddpm_ray.runtime import cluster
from iddpm_ray.runtime.cluster import Capacity, capacity, check_fits, check_shared, connected, here
from iddpm_ray.spec.spec import JobSpec

pytestmark = pytest.mark.timeout(400)


def spec_of(*, data: dict[str, Any] | None = None, **fields: Any) -> JobSpec:
    return small_spec(Path("/tmp"), data=data or {}, train={"global_batch": 64}, cluster=fields)


@pytest.mark.parametrize(
    ("fields", "data", "have", "workers"),
    [
        ({"workers": 2, "cpus_per_worker": 1}, {"tasks": 1, "cpus_per_task": 1}, Capacity(4, 0, 1), 2),  # every worker has a task
        ({"workers": 2, "cpus_per_worker": 0.5}, {"tasks": 2, "cpus_per_task": 0.5}, Capacity(2, 0, 1), 2),
        ({"workers": [1, 8]}, {"tasks": 1}, Capacity(6, 0, 1), 3),
        ({"workers": [1, 8], "gpus_per_worker": 1}, {"tasks": 8}, Capacity(64, 5, 5), 5),
        ({"workers": [2, 3]}, {"tasks": 5}, Capacity(7.5, 0, 2), 2),
    ],
)
def test_as_many_workers_as_fit_beside_the_data_tasks(fields: dict[str, Any], data: dict[str, Any], have: Capacity, workers: int) -> None:
    spec = spec_of(data=data, **fields)
    assert check_fits(spec, have=have) == workers
    asked = workers * spec.cluster.cpus_per_worker + max(spec.data.tasks, workers) * spec.data.cpus_per_task
    assert asked <= have.cpus


def test_a_plan_says_that_this_machine_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert here(spec_of(workers=1, cpus_per_worker=0.1)) == ""
    assert "not on this machine by itself: the run asks for" in here(spec_of(workers=4, cpus_per_worker=1000))
    assert here(spec_of(workers=4, cpus_per_worker=1000, address="somewhere:6379")) == ""
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    assert here(spec_of(workers=4, cpus_per_worker=1000)) == ""


def test_an_object_store_of_a_cluster_that_is_joined_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    with pytest.raises(SpecError, match="object_store_gib has no effect"), connected(spec_of(object_store_gib=1)):
        pass


def test_too_small_a_cluster_is_refused_with_what_is_asked_and_what_there_is() -> None:
    spec = spec_of(data={"tasks": 2, "cpus_per_task": 0.5}, workers=[3, 4], cpus_per_worker=2)
    with pytest.raises(SpecError) as caught:
        check_fits(spec, have=Capacity(7, 0, 1))
    message = str(caught.value)
    assert "asks for 7.5 CPUs (3 workers x cluster.cpus_per_worker 2 + 3 data tasks x data.cpus_per_task 0.5)" in message
    assert "the cluster has 7 CPUs and 0 GPUs" in message
    assert "lower cluster.workers" in message


def test_gpus_of_another_type_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    types = ["A100", "A100", "L4", None]
    nodes = [
        {"Alive": True, "NodeID": str(number), "Resources": {"CPU": 8.0, "GPU": 1.0, **({f"accelerator_type:{name}": 1.0} if name else {})}}
        for number, name in enumerate(types)
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr("iddpm_ray.runtime.cluster.leaving_nodes", set)
    assert check_fits(spec_of(workers=[1, 4], gpus_per_worker=1), have=capacity()) == 4
    assert check_fits(spec_of(workers=[1, 4], gpus_per_worker=1, accelerator_type="A100"), have=capacity("A100")) == 2
    with pytest.raises(SpecError, match="1 H100 GPUs, the cluster has 32 CPUs and 0 H100 GPUs"):
        check_fits(spec_of(workers=[1, 4], gpus_per_worker=1, accelerator_type="H100"), have=capacity("H100"))


def test_missing_gpus_are_refused() -> None:
    with pytest.raises(SpecError, match="and 2 GPUs, the cluster has 64 CPUs and 1 GPUs"):
        check_fits(spec_of(workers=2, gpus_per_worker=1), have=Capacity(64, 1, 1))


def test_a_ray_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine so busy that Ray's own processes are not up in time."""

    def late(**settings: Any) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen because ...")

    monkeypatch.setattr(cluster.ray, "init", late)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError) as caught, connected(spec_of()):
        pass
    assert str(caught.value).startswith("Ray did not start on this machine (Exception: The current node timed out during startup. This")
    assert "start again when it has less to do" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_signal_while_ray_starts_lets_it_start_and_ends_it_and_the_handler_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own handler, which it sets as it starts, exits with the signal's number."""
    done: list[str] = []

    def terminated(**settings: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("started")

    def mine(number: int, frame: object) -> None: ...

    monkeypatch.setattr(cluster.ray, "init", terminated)
    monkeypatch.setattr(cluster.ray, "shutdown", lambda: done.append("ended"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    was = signal.signal(signal.SIGTERM, mine)
    try:
        with pytest.raises(KeyboardInterrupt), connected(spec_of()):
            raise AssertionError("went on")
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, was)
    assert done == ["started", "ended"]


def test_no_ray_is_started_where_a_signals_interrupt_was_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.signals, "seen", lambda: True)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(KeyboardInterrupt), connected(spec_of()):
        raise AssertionError("went on")
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Machines]:
    assert not ray.is_initialized()
    before = dict(os.environ)
    with Machines(head_cpus=1) as machines:
        machines.add(cpus=2)
        yield machines
        ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


def test_a_job_joins_the_cluster_it_is_given_and_leaves_it_running(two_nodes: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(address=two_nodes.address, start_timeout_s=17)
    for _ in range(2):  # left, it can be joined again
        with connected(spec) as have:
            assert (have.cpus, have.gpus, have.nodes) == (3, 0, 2)
            assert os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] == "17"
            with connected(spec) as again:  # a Ray that is there already is used
                assert again == capacity()
            assert ray.is_initialized()
        assert not ray.is_initialized()


def test_a_local_directory_must_be_seen_by_every_node(two_nodes: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(spec_of(address=two_nodes.address)):
        check_shared(str(tmp_path))  # both nodes are this machine
        assert list(tmp_path.iterdir()) == []
        blind = ray.nodes()[1]["NodeID"]
        monkeypatch.setattr(cluster, "_sees", lambda url, *, node_id: node_id != blind)
        with pytest.raises(SpecError, match="1 of 2 nodes do not share") as caught:
            check_shared(str(tmp_path))
        assert "use gs://, s3:// or a path on a shared disk" in str(caught.value)
        assert list(tmp_path.iterdir()) == []
        check_shared("s3://bucket/run")  # an object store is seen by all; nothing is asked of it


def test_a_group_whose_size_may_vary_does_not_wait_for_a_lost_machine() -> None:
    """A number is waited for; of a range, what is left goes on."""
    assert cluster.group_patience(spec_of(workers=2, start_timeout_s=1800)) == 1800
    assert cluster.group_patience(spec_of(workers=[1, 2], start_timeout_s=1800)) == 20
    assert cluster.group_patience(spec_of(workers=[1, 2], start_timeout_s=5)) == 5


def test_machines_that_an_autoscaler_makes_are_given_the_time_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on a cluster that stays, at no workers: a machine with a GPU boots and pulls its image for minutes."""
    joined = "10.0.0.1:6379"
    monkeypatch.delenv(cluster.AUTOSCALED, raising=False)
    assert cluster.patience(spec_of(address=joined)) == 60
    monkeypatch.setenv(cluster.AUTOSCALED, "1")
    assert cluster.patience(spec_of(address=joined)) == 1800
    assert cluster.group_patience(spec_of(address=joined, workers=2)) == 1800
    assert cluster.patience(spec_of(address=joined, start_timeout_s=30)) == 30
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cluster.patience(spec_of()) == 60, "an embedded Ray never grows"
