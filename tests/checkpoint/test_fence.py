"""Whoever sleeps through a takeover does no harm when it wakes."""

import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import zombie
from ranks import run_ranks, server
from states import DIGEST, save_alone

from iddpm_ray.checkpoint import lease
from iddpm_ray.checkpoint.attempts import begin_attempt, take_attempt
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.commit import checkpoint_at, complete
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.fence import check_fence
from iddpm_ray.checkpoint.lease import FencedError, LeaseLostError
from iddpm_ray.checkpoint.retention import sweep
from iddpm_ray.checkpoint.saver import AsyncSaver, SaveOutcome
from iddpm_ray.parallel.collective import new_gloo_group


@contextmanager
def attempt(run: Path, step: int, gate: str = "") -> Iterator[ForkServerProcess]:
    process = server().Process(target=zombie.live, args=(str(run), step, str(report(run, step)), gate))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(30)


def report(run: Path, step: int) -> Path:
    return run.parent / f"{step}.json"


def said(process: ForkServerProcess, run: Path, step: int) -> dict[str, Any]:
    process.join(60)
    assert process.exitcode == 0
    return json.loads(report(run, step).read_text())


def state_of(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def contents(run: Path) -> dict[str, str]:
    paths = (path for path in sorted(run.rglob("*")) if path.is_file())
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.parametrize("gate", ["data-00000", "state.json", "marker.json", "delete"])
def test_a_process_stopped_in_its_save_and_continued_after_a_takeover_harms_nothing(tmp_path: Path, gate: str) -> None:
    run = tmp_path / "run"
    with attempt(run, 1) as first:
        assert said(first, run, 1)["committed"]
    with attempt(run, 2, gate) as sleeper:
        deadline = time.monotonic() + 60
        while state_of(sleeper.pid) != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(1.1)  # until its lease is stale
        with attempt(run, 3) as successor:
            ended = said(successor, run, 3)
        assert ended["committed"]
        before = contents(run)
        os.kill(sleeper.pid or 0, signal.SIGCONT)
        woken = said(sleeper, run, 2)
    after = contents(run)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert not [path for path in changed if ".a0002" not in path], changed
    if gate == "delete":  # it was marked before it slept, so the successor went on from there
        assert ended["began"] == "step-00000002.a0002"
        assert woken["committed"]
    else:
        assert ended["began"] == "step-00000001.a0001"
    if gate in ("data-00000", "state.json"):
        assert (woken["committed"], woken["fenced"]) == (False, True)
        assert "was taken over by process" in woken["error"]
        assert not any(path.endswith("a0002/marker.json") for path in after)
    newest = newest_readable(str(run), deep=True)
    assert newest.checkpoint is not None
    assert newest.checkpoint.name == "step-00000003.a0003"
    target = {"a": torch.zeros(1000)}
    load(newest.checkpoint, into=target)
    assert torch.equal(target["a"], torch.arange(1000.0) + 3)
    with attempt(run, 4) as fourth:
        assert said(fourth, run, 4)["began"] == "step-00000003.a0003"


def test_the_fence_names_who_has_the_run(tmp_path: Path) -> None:
    run = str(tmp_path)
    mine = lease.take_lease(run, holder="anna on host-1", stale_after_s=0)
    number = take_attempt(run, info={})
    check_fence(run, number, lease=mine)
    check_fence(run, number, lease=None)
    theirs = lease.take_lease(run, holder="ben on host-2", stale_after_s=0)
    with pytest.raises(LeaseLostError, match=rf"was taken over by ben on host-2 at {re.escape(theirs.since)}: this driver stops"):
        check_fence(run, number, lease=mine)
    lease.release(mine)  # a late goodbye changes nothing
    lease.check(theirs)
    take_attempt(run, info={})
    with pytest.raises(FencedError, match=r"attempt 1 of .* is over: attempt 2 has taken the run: this attempt stops"):
        check_fence(run, number, lease=None)


def test_two_that_wrote_the_same_term_are_told_apart(tmp_path: Path) -> None:
    """As it may happen on a store whose create is a check and then a write."""
    run = str(tmp_path)
    mine = lease.take_lease(run, holder="anna", stale_after_s=0)
    (tmp_path / "lease" / "00000001.json").write_text(json.dumps({"holder": "ben", "token": "another"}))
    for operation in (lease.check, lambda held: lease.renew(held, renewed=1)):
        with pytest.raises(LeaseLostError, match="taken over by ben"):
            operation(mine)


def fenced_save(root: str) -> SaveOutcome:
    saver = AsyncSaver(
        root, attempt=1, group=new_gloo_group(timeout_s=20), spec_digest=DIGEST, fence=lambda: check_fence(root, 1, lease=None)
    )
    saver.start(5, samples_seen=5, tensors={"a": torch.zeros(3)})
    outcome = saver.close()
    assert outcome is not None
    return outcome


def test_all_ranks_learn_that_the_run_is_somebody_elses(tmp_path: Path) -> None:
    run = str(tmp_path)
    take_attempt(run, info={})
    take_attempt(run, info={})
    outcomes = run_ranks(fenced_save, 2, run)
    for outcome in outcomes:
        assert (outcome.committed, outcome.fenced, outcome.lost_contact) == (False, True, False)
        assert "attempt 2 has taken the run" in outcome.error
    assert complete(run) == []


def test_retention_keeps_what_a_later_attempt_began_from_and_stops_at_the_fence(tmp_path: Path) -> None:
    run = str(tmp_path)
    first = take_attempt(run, info={})
    begin_attempt(run, first, began_from=None, info={})
    for step in (10, 20, 30):
        save_alone(run, step, attempt=first)
    begin_attempt(run, 2, began_from=checkpoint_at(run, step=10, attempt=1), info={})
    rules = {"attempt": 1, "keep_last": 1, "keep_every": None, "global_batch": 1}
    assert sweep(run, **rules, fence=lambda: None).deleted == ("step-00000020.a0001",)  # a fence that has holes
    assert sweep(run, **rules).deleted == ()

    def lost() -> None:
        raise FencedError("somebody has the run")

    assert sweep(run, attempt=2, keep_last=1, keep_every=None, global_batch=1, fence=lost).deleted == ()
