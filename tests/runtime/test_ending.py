"""How attempts end: the original error, its rank, and whether another try could help."""

from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError, RayTaskError
from ray.train.v2._internal.exceptions import (
    UserExceptionWithTraceback,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)
from ray.train.v2.api.exceptions import ControllerError, PreemptionError, WorkerGroupError
from ray.train.v2.api.preemption import PreemptionInfo

from iddpm_ray.errors import CheckpointError, DataError, UserError
from iddpm_ray.runtime.ending import Ending, classify
from iddpm_ray.runtime.original import original


def raised(error: Exception) -> UserExceptionWithTraceback:
    """As Ray Train hands over what a train function raised."""
    return UserExceptionWithTraceback(error, "Traceback (most recent call last):\n" + '  File "x"\n' * 200 + repr(error))


def group(failures: dict[int, Exception]) -> WorkerGroupError:
    return WorkerGroupError("\n".join(str(failure) for failure in failures.values()), failures)


DEAD = WorkerHealthCheckFailedError("A worker health check failed.\nWorker info: ...", RayActorError())


@pytest.mark.parametrize("why", ["finished", "stopped"])
def test_what_rank_0_returned_is_the_ending(why: str) -> None:
    ending = classify(SimpleNamespace(why=why, step=7), None)
    assert ending == Ending(why, 7)
    assert ending.error is None


@pytest.mark.parametrize("kind", [DataError, CheckpointError])
def test_a_users_error_is_refused_with_its_rank_and_its_own_text(kind: type[UserError]) -> None:
    failure = kind("pictures/a.png (row 3) is cut short", value="a.png", fix="mend it or set data.on_error to substitute")
    ending = classify(None, group({1: raised(failure)}))
    assert ending.why == "refused"
    assert type(ending.error) is kind
    assert str(ending.error) == f"rank 1: {failure}"


def test_a_users_error_is_the_cause_whoever_else_fell_with_it() -> None:
    echo = RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4231")
    ending = classify(None, group({0: raised(echo), 1: DEAD, 2: raised(DataError("no such row", fix="look"))}))
    assert ending.why == "refused"
    assert str(ending.error).startswith("rank 2: no such row")


def test_a_dead_process_is_named_and_may_be_tried_again() -> None:
    ending = classify(None, group({1: DEAD}))
    assert ending.why == "failed"
    assert str(ending.error) == "rank 1: its process has died"


@pytest.mark.parametrize(
    "echo",
    [
        "[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4231",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 120000ms for recv operation to complete",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] writev [10.0.0.1]:1: Connection reset by peer",
        "Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc] Broken pipe",
    ],
)
def test_what_the_others_say_of_a_lost_peer_is_not_the_cause(echo: str) -> None:
    cause = ZeroDivisionError("division by zero")
    for failures in ({0: raised(RuntimeError(echo)), 1: raised(cause)}, {1: raised(cause), 0: raised(RuntimeError(echo))}):
        assert str(classify(None, group(failures)).error) == "rank 1: ZeroDivisionError: division by zero"
    assert str(classify(None, group({0: raised(RuntimeError(echo)), 3: DEAD})).error) == "rank 3: its process has died"


def test_an_echo_alone_is_still_reported() -> None:
    ending = classify(None, group({2: raised(RuntimeError("Connection closed by peer")), 4: raised(RuntimeError("Broken pipe"))}))
    assert ending.why == "failed"
    assert str(ending.error) == "rank 2: RuntimeError: Connection closed by peer"


def test_a_long_traceback_becomes_one_line() -> None:
    ending = classify(None, group({0: raised(ValueError("first\nsecond\n" + "x" * 1000))}))
    assert str(ending.error) == "rank 0: ValueError: first"
    long = classify(None, group({0: raised(ValueError("y" * 1000))}))
    assert len(str(long.error)) < 400


def test_an_error_without_words_is_named_by_its_type() -> None:
    assert str(classify(None, group({0: raised(Wordless())})).error) == "rank 0: Wordless: Wordless"


class Wordless(Exception):
    """Carries no text."""


def test_workers_that_did_not_start_are_no_failure_of_the_program() -> None:
    ending = classify(None, ControllerError(WorkerGroupStartupTimeoutError(2)))
    assert ending.why == "lost"
    assert "did not all start within cluster.start_timeout_s" in str(ending.error)


def test_another_error_of_rays_controller_is_one_line() -> None:
    ending = classify(None, ControllerError(RuntimeError("it fell over\nand over")))
    assert ending.why == "failed"
    assert str(ending.error) == "Ray could not start the workers, or lost them: it fell over"


def test_an_error_in_a_workers_setup_is_said_and_not_where_ray_was() -> None:
    """As Ray raises what a worker's own call raised: its first line names the call and the process, not the error."""
    cause = RuntimeError("Gloo connectFullMesh failed with Connection refused, remote=[127.0.0.1]:57761")
    told = f"ray::execute._setup_torch_process_group() (pid=120, ip=10.77.0.11)\n  File x\nRuntimeError: {cause}"
    failure = RayTaskError("execute", told, cause).as_instanceof_cause()
    ending = classify(None, ControllerError(failure))
    assert str(ending.error) == f"Ray could not start the workers, or lost them: RuntimeError: {cause}"


def test_a_group_that_ray_ended_at_the_deadline_was_preempted() -> None:
    assert classify(None, PreemptionError(PreemptionInfo(None, {"node": [1]}), drain_timed_out=True)).why == "preempted"


def test_any_other_error_of_ray_may_be_tried_again() -> None:
    ending = classify(None, RuntimeError("the object store is full\nmore"))
    assert (ending.why, str(ending.error)) == ("failed", "RuntimeError: the object store is full")


def test_an_exit_is_not_swallowed() -> None:
    with pytest.raises(SystemExit):
        classify(None, SystemExit(3))


def test_the_innermost_error_is_found_through_rays_wrappings() -> None:
    inner = OSError("disk")
    assert original(raised(raised(inner))) is inner
    assert original(inner) is inner


def test_a_stopped_run_says_how_to_go_on_and_a_finished_one_does_not() -> None:
    assert Ending("stopped", 4).describe("/runs/a") == "stopped at step 4: /runs/a; the same command goes on from there"
    assert Ending("finished", 9).describe("/runs/a") == "finished at step 9: /runs/a"
    assert Ending("stopped").describe("/runs/a") == "stopped: /runs/a; the same command goes on from there"
