"""Saving beside training: what is saved is the moment of `start`, and a failure anywhere is a failure everywhere, of that save only."""

import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import faulty
import pytest
import torch
import torch.distributed as dist
from faulty import Fault
from ranks import run_ranks
from states import DIGEST, all_same_bits, empty_like, state

from iddpm_ray.checkpoint import commit, writer
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.saver import AsyncSaver, SaveOutcome
from iddpm_ray.parallel.collective import new_gloo_group


def make(run_url: str, timeout_s: float = 20.0, **more: Any) -> AsyncSaver:
    return AsyncSaver(run_url, attempt=1, group=new_gloo_group(timeout_s=timeout_s), spec_digest=DIGEST, **more)


def save(saver: AsyncSaver, step: int) -> SaveOutcome:
    saver.start(step, samples_seen=step, tensors=state(step), extra_files={"state.json": b"{}"})
    outcome = saver.wait()
    assert outcome is not None
    return outcome


def is_whole(run_url: str, step: int) -> bool:
    checkpoint = commit.complete(run_url)[0]
    commit.verify(checkpoint)
    target = empty_like(state(step))
    load(checkpoint, into=target)
    return checkpoint.step == step and all_same_bits(target, state(step))


@pytest.mark.parametrize("asynchronous", [True, False])
def test_what_is_saved_is_the_moment_of_start(tmp_path: Path, asynchronous: bool) -> None:
    live = state(1)
    saver = AsyncSaver(str(tmp_path), attempt=1, group=None, spec_digest=DIGEST, asynchronous=asynchronous)
    for step in (1, 2, 3):
        for key, group in state(step).items():
            for name, tensor in group.items():
                live[key][name].copy_(tensor)
        saver.start(step, samples_seen=step, tensors=live)
        for group in live.values():  # training goes on at once
            for tensor in group.values():
                tensor.zero_()
        assert saver.wait() == SaveOutcome(step, True, f"step-{step:08d}.a0001", *_measured(tmp_path, step))
        assert is_whole(str(tmp_path), step)
    assert saver.close() is None


def _measured(run: Path, step: int) -> tuple[Any, int]:
    folder = run / "checkpoints" / f"step-{step:08d}.a0001"
    return pytest.approx(30, abs=30), sum(path.stat().st_size for path in folder.iterdir() if path.name != "marker.json")


def test_start_returns_while_the_store_is_slow_and_the_next_start_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, order = threading.Event(), []
    real = writer._put

    def slow(url: str, views: list[memoryview]) -> Any:
        assert gate.wait(30)
        order.append("written")
        return real(url, views)

    monkeypatch.setattr(writer, "_put", slow)
    saver = AsyncSaver(str(tmp_path), attempt=1, group=None, spec_digest=DIGEST)
    assert saver.start(1, samples_seen=1, tensors=state(1)) is None
    order.append("training")
    gate.set()
    first = saver.start(2, samples_seen=2, tensors=state(2))
    assert order[:2] == ["training", "written"]
    assert first is not None
    assert (first.step, first.committed) == (1, True)
    second = saver.close()
    assert second is not None
    assert (second.step, second.committed) == (2, True)
    assert saver.wait() is None  # each outcome is given once


def test_a_store_that_hangs_is_given_up_and_training_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    real = writer._put

    def hang(url: str, views: list[memoryview]) -> Any:
        assert gate.wait(60)
        return real(url, views)

    monkeypatch.setattr(writer, "_put", hang)
    saver = AsyncSaver(str(tmp_path), attempt=1, group=None, spec_digest=DIGEST, patience_s=0.3)
    saver.start(1, samples_seen=1, tensors=state(1))
    first = saver.start(2, samples_seen=2, tensors=state(2))
    assert first is not None
    assert (first.step, first.committed, first.lost_contact) == (1, False, True)
    assert first.error == "step-00000001.a0001 is still being written after 0 s; no more can be saved by this group"
    second = saver.close()
    assert second is not None
    assert (second.step, second.error) == (2, "an earlier save still hangs")
    gate.set()
    deadline = time.monotonic() + 30
    while not commit.complete(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_whole(str(tmp_path), 1)  # what is marked late is whole all the same: its copy was left alone


def test_a_step_already_committed_is_not_written_again(tmp_path: Path) -> None:
    saver = AsyncSaver(str(tmp_path), attempt=1, group=None, spec_digest=DIGEST)
    assert save(saver, 5).committed
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert save(saver, 5).committed
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_what_follows_a_commit_may_fail_without_harm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def fail(checkpoint: commit.Checkpoint) -> None:
        seen.append(commit.complete(str(tmp_path))[0] == checkpoint)
        raise RuntimeError("a sink is down")

    saver = AsyncSaver(str(tmp_path), attempt=1, group=None, spec_digest=DIGEST, after_commit=fail)
    assert save(saver, 1).committed
    assert save(saver, 2).committed
    assert seen == [True, True]
    assert "a sink is down" in caplog.text


def one_rank_fails(root: str, rank: int, kind: str, path: str) -> tuple[SaveOutcome, list[str], SaveOutcome]:
    faulty.register()
    run_url = f"faulty://{root}"
    saver = make(run_url)
    assert save(saver, 1).committed
    given = [Fault("pipe_file", at=-1, kind=kind, path=path)] if dist.get_rank() == rank else []
    with faulty.faults(*given):
        failed = save(saver, 2)
    dist.barrier()
    left = [f"{stored.checkpoint.name} {stored.marked}" for stored in commit.survey(run_url)]
    dist.barrier()
    again = save(saver, 3)
    saver.close()
    assert is_whole(run_url, 3)
    return failed, left, again


@pytest.mark.parametrize(
    ("rank", "kind", "path", "said"),
    [
        (1, "raise", "data-", "rank 1: data-00001-000.bin could not be written: OSError: [Errno 5] the store has failed"),
        (3, "full", "data-", "rank 3: data-00003-000.bin could not be written: no space left on device"),
        (0, "short", "data-", "data-00000-000.bin could not be written: OSError: [Errno 5] the store has failed"),
        (2, "silent", "data-", "step-00000002.a0001: data-00002-000.bin is cut: {half} of {whole} bytes after it was written"),
        (0, "raise", "state.json", "state.json could not be written: OSError: [Errno 5] the store has failed"),
        (0, "raise", "tensors.json", "tensors.json could not be written: OSError: [Errno 5] the store has failed"),
        (0, "short", "marker.json", "step-00000002.a0001 could not be marked: OSError: [Errno 5] the store has failed"),
    ],
)
def test_a_write_that_fails_on_one_rank_fails_on_all_and_the_next_save_succeeds(
    tmp_path: Path, rank: int, kind: str, path: str, said: str
) -> None:
    results = run_ranks(one_rank_fails, 4, str(tmp_path), rank, kind, path)
    for failed, left, again in results:
        assert (failed.step, failed.committed, failed.lost_contact) == (2, False, False)
        assert failed.error is not None
        assert failed.error == results[0][0].error
        for part in said.replace("{half}", "|").replace("{whole}", "|").split("|"):
            assert part in failed.error
        assert left == ["step-00000001.a0001 True"]
        assert again.committed


def all_but_one_fail(root: str) -> SaveOutcome:
    faulty.register()
    saver = make(f"faulty://{root}")
    with faulty.faults(*([Fault("pipe_file", at=-1, kind="full")] if dist.get_rank() else [])):
        return save(saver, 1)


def test_an_error_names_every_rank_that_failed(tmp_path: Path) -> None:
    outcome = run_ranks(all_but_one_fail, 3, str(tmp_path))[0]
    assert outcome.error == (
        "rank 1: data-00001-000.bin could not be written: no space left on device; "
        "rank 2: data-00002-000.bin could not be written: no space left on device"
    )


def a_marker_that_was_written_after_all(root: str) -> SaveOutcome:
    faulty.register()
    saver = make(f"faulty://{root}")
    with faulty.faults(Fault("pipe_file", at=0, kind="lie", path="marker.json")):
        return save(saver, 1)


def test_a_marker_that_arrived_though_the_store_reported_failure_counts_on_all_ranks(tmp_path: Path) -> None:
    assert [outcome.committed for outcome in run_ranks(a_marker_that_was_written_after_all, 2, str(tmp_path))] == [True, True]
    assert is_whole(str(tmp_path), 1)


def local_disk_is_full(root: str) -> tuple[SaveOutcome, SaveOutcome]:
    saver = make(root)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    failed = save(saver, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return failed, save(saver, 2)


def test_a_local_disk_that_takes_no_more_fails_that_save_only(tmp_path: Path) -> None:
    for failed, again in run_ranks(local_disk_is_full, 2, str(tmp_path)):
        assert not failed.committed
        assert failed.error is not None
        assert "rank 1: data-00001-000.bin could not be written: " in failed.error
        assert "File too large" in failed.error
        assert again.committed
    assert is_whole(str(tmp_path), 2)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


def states_that_differ(root: str) -> SaveOutcome:
    saver = make(root)
    saver.start(1, samples_seen=1, tensors={"a": torch.zeros(3 + dist.get_rank() // 2)})
    outcome = saver.wait()
    assert outcome is not None
    return outcome


def test_ranks_that_disagree_about_the_state_do_not_save(tmp_path: Path) -> None:
    for outcome in run_ranks(states_that_differ, 3, str(tmp_path)):
        assert outcome.error == "ranks [2] would save other tensors than rank 0"


def a_rank_dies(root: str, victim: int, path: str, kind: str) -> tuple[SaveOutcome, float]:
    faulty.register()
    saver = make(f"faulty://{root}", timeout_s=5.0)
    assert save(saver, 1).committed
    dist.barrier()
    began = time.monotonic()
    with faulty.faults(*([Fault("pipe_file", at=0, kind=kind, path=path)] if dist.get_rank() == victim else [])):
        outcome = save(saver, 2)
    return outcome, time.monotonic() - began


@pytest.mark.parametrize(
    ("victim", "path", "kind"),
    [(2, "data-", "exit"), (1, "data-", "exit_after"), (0, "tensors.json", "exit_after"), (0, "marker.json", "exit")],
)
def test_a_rank_killed_before_the_marker_leaves_nothing_marked_and_hangs_nobody(tmp_path: Path, victim: int, path: str, kind: str) -> None:
    results = run_ranks(a_rank_dies, 3, str(tmp_path), victim, path, kind, may_die={victim})
    assert results[victim] is None
    for result in results:
        if result is not None:
            outcome, seconds = result
            assert (outcome.committed, outcome.lost_contact) == (False, True)
            assert "the ranks could not finish step-00000002.a0001 together" in outcome.error
            assert seconds < 30
    chosen = newest_readable(str(tmp_path), deep=True)
    assert chosen.checkpoint is not None
    assert (chosen.checkpoint.step, chosen.rejected) == (1, ())


def test_a_rank_killed_after_the_marker_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    results = run_ranks(a_rank_dies, 3, str(tmp_path), 0, "marker.json", "exit_after", may_die={0})
    assert [result[0].lost_contact for result in results[1:]] == [True, True]
    assert is_whole(str(tmp_path), 2)


def save_while_training(root: str) -> float:
    saver = make(root)
    value = torch.ones(1000)
    for step in range(1, 6):
        saver.start(step, samples_seen=step, tensors=state(step))
        for _ in range(50):
            dist.all_reduce(value)
            value /= dist.get_world_size()
    outcome = saver.close()
    assert outcome is not None
    assert outcome.committed, outcome.error
    return value[0].item()


def test_saves_do_not_meet_the_collectives_of_training(tmp_path: Path) -> None:
    assert run_ranks(save_while_training, 4, str(tmp_path)) == [1.0] * 4
    assert [checkpoint.step for checkpoint in commit.complete(str(tmp_path))] == [5, 4, 3, 2, 1]


def a_group_without_the_dying(root: str) -> SaveOutcome | None:
    staying = dist.new_group([1, 3], backend="gloo")
    if dist.get_rank() not in (1, 3):
        return None
    saver = AsyncSaver(root, attempt=1, group=staying, spec_digest=DIGEST)
    return save(saver, 9)


def test_a_part_of_the_ranks_can_save_the_replicated_state_alone(tmp_path: Path) -> None:
    outcomes = run_ranks(a_group_without_the_dying, 4, str(tmp_path))
    assert [outcome is not None and outcome.committed for outcome in outcomes] == [False, True, False, True]
    assert is_whole(str(tmp_path), 9)
