"""One fault at every storage operation of an attempt's life, of every kind: never a torn, lost or wrong checkpoint."""

import hashlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import faulty
import pytest
import torch
import torch.distributed as dist
from faulty import Fault
from ranks import run_ranks
from states import DIGEST

from iddpm_ray.checkpoint import commit, lease
from iddpm_ray.checkpoint.attempts import begin_attempt, end_attempt, take_attempt
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.fence import check_fence
from iddpm_ray.checkpoint.restore import restore_newest
from iddpm_ray.checkpoint.retention import sweep
from iddpm_ray.checkpoint.saver import AsyncSaver, SaveOutcome
from iddpm_ray.parallel.collective import new_gloo_group
from iddpm_ray.storage import files

PHASES = ("lease", "attempt", "resume", "save", "retention", "end")
WRITES, LISTS = ("pipe_file", "rm_file", "makedirs"), ("ls",)


@dataclass
class Tally:
    """What was tried and what went wrong."""

    operations: dict[str, int] = field(default_factory=dict)
    faults: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)

    def describe(self) -> str:
        """One line."""
        over = ", ".join(f"{phase} {self.operations.get(phase, 0)}" for phase in PHASES)
        bad = ", ".join(f"{self.bad[what]} {what}" for what in ("lost", "torn", "wrong"))
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kinds.items()))
        return f"fault sweep: {self.faults} faults ({kinds}) over {over} operations: {bad}"


TALLY = Tally()


@pytest.fixture(scope="module", autouse=True)
def show() -> Iterator[None]:
    yield
    print("\n" + TALLY.describe())


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with conditional creation, like S3 and GCS."""
    faulty.register()
    monkeypatch.setattr(files, "_CREATE_SCHEMES", files._CREATE_SCHEMES | {faulty.SCHEME})


def life(run_url: str, step: int, *, log: list[tuple[str, str]] | None = None, ends: dict[str, int] | None = None) -> SaveOutcome:
    """An attempt from its lease to its end: begin from the newest checkpoint, load it, save once, sweep, say how it ended."""

    def reached(phase: str) -> None:
        if log is not None and ends is not None:
            ends[phase] = len(log)

    held = lease.take_lease(run_url, holder=f"driver of step {step}", stale_after_s=0)
    reached("lease")
    number = take_attempt(run_url, info={})
    lease.check(held)
    reached("attempt")
    restored = restore_newest(run_url, allocate=lambda _: {"a": torch.zeros(5)}, spec_digest=DIGEST, group=None)
    begin_attempt(run_url, number, began_from=restored.checkpoint, info={})
    reached("resume")

    def fence() -> None:
        check_fence(run_url, number, lease=held)

    def tidy(checkpoint: commit.Checkpoint) -> None:
        reached("save")
        sweep(run_url, attempt=number, keep_last=1, keep_every=None, global_batch=1, fence=fence)
        reached("retention")

    saver = AsyncSaver(run_url, attempt=number, group=None, spec_digest=DIGEST, asynchronous=False, fence=fence, after_commit=tidy)
    saver.start(step, samples_seen=step, tensors={"a": torch.arange(5.0) + step}, extra_files={"state.json": b"{}"})
    outcome = saver.close()
    assert outcome is not None
    end_attempt(run_url, number, info={"why": "done"})
    lease.release(held)
    reached("end")
    return outcome


@dataclass(frozen=True)
class Begun:
    """A run with a committed checkpoint of step 1, and the operations of the next life in it."""

    folder: Path
    log: list[tuple[str, str]]

    def copy(self, to: Path) -> str:
        """A copy to do harm to."""
        shutil.copytree(self.folder, to)
        return f"faulty://{to}"


@pytest.fixture(name="begun")
def begun_fixture(tmp_path: Path) -> Begun:
    run_url = f"faulty://{tmp_path}/begun"
    assert life(run_url, 1).committed
    begun = Begun(tmp_path / "begun", [])
    ends: dict[str, int] = {}
    run_url = begun.copy(tmp_path / "counted")
    with faulty.faults() as log:
        assert life(run_url, 2, log=log, ends=ends).committed
        begun.log.extend(log)
    starts = [0, *(ends[phase] for phase in PHASES)]
    TALLY.operations = {phase: end - start for phase, start, end in zip(PHASES, starts[:-1], starts[1:], strict=True)}
    assert all(TALLY.operations.values())
    return begun


def operations(begun: Begun, among: tuple[str, ...] = ()) -> list[int]:
    """The numbers of the operations, or of those of some kinds."""
    return [k for k, (operation, _) in enumerate(begun.log) if not among or operation in among]


def judge(run_url: str, kind: str, k: int, *, may_be: set[int]) -> int:
    """Looks at what is there, as the next attempt would; counts and refuses whatever is bad."""
    TALLY.faults += 1
    TALLY.kinds[kind] += 1
    chosen = newest_readable(run_url, deep=True)
    found = chosen.checkpoint.step if chosen.checkpoint else 0
    TALLY.bad["lost"] += found not in may_be
    TALLY.bad["torn"] += bool(chosen.rejected)
    right = chosen.checkpoint is not None and holds(chosen.checkpoint)
    TALLY.bad["wrong"] += not right
    assert found in may_be, (kind, k, begun_at(run_url))
    assert not chosen.rejected, (kind, k, chosen.rejected)
    assert right, (kind, k)
    return found


def begun_at(run_url: str) -> list[str]:
    return [f"{stored.checkpoint.name} {stored.marked}" for stored in commit.survey(run_url)]


def holds(checkpoint: commit.Checkpoint) -> bool:
    target = {"a": torch.zeros(5)}
    load(checkpoint, into=target)
    return torch.equal(target["a"], torch.arange(5.0) + checkpoint.step)


def goes_on(run_url: str) -> None:
    """The next life commits, and cleans up behind everybody whose checkpoints count."""
    assert life(run_url, 3).committed
    assert judge_quietly(run_url) == 3


def judge_quietly(run_url: str) -> int:
    chosen = newest_readable(run_url, deep=True).checkpoint
    assert chosen is not None
    assert holds(chosen)
    return chosen.step


@pytest.mark.parametrize(("kind", "among"), [("raise", ()), ("short", WRITES), ("lie", WRITES), ("delay", ())])
def test_a_fault_that_passes_is_not_noticed_by_the_run(begun: Begun, tmp_path: Path, kind: str, among: tuple[str, ...]) -> None:
    for k in operations(begun, among):
        run_url = begun.copy(tmp_path / f"{k}")
        with faulty.faults(Fault("", at=k, kind=kind)):
            assert life(run_url, 2).committed, (kind, k)
        judge(run_url, kind, k, may_be={2})
        assert begun_at(run_url) == ["step-00000002.a0002 True"], (kind, k)
        shutil.rmtree(tmp_path / f"{k}")


@pytest.mark.parametrize(("kind", "among"), [("refuse", ()), ("full", ("pipe_file",)), ("silent", ("pipe_file",)), ("stale", LISTS)])
def test_a_fault_that_stays_costs_at_most_that_save(begun: Begun, tmp_path: Path, kind: str, among: tuple[str, ...]) -> None:
    for k in operations(begun, among):
        run_url = begun.copy(tmp_path / f"{k}")
        committed = None
        try:
            with faulty.faults(Fault("", at=k, kind=kind)):
                committed = life(run_url, 2).committed
        except Exception:
            pass  # a driver or a start may fail; the run may not
        judge(run_url, kind, k, may_be={1, 2} if committed is None else {2} if committed else {1})
        goes_on(run_url)
        shutil.rmtree(tmp_path / f"{k}")


def test_a_store_that_is_gone_from_any_operation_on_costs_at_most_that_save(begun: Begun, tmp_path: Path) -> None:
    """Every operation from the k-th on fails, past all patience, and then the store comes back."""
    for k in operations(begun):
        run_url = begun.copy(tmp_path / f"{k}")
        committed = None
        try:
            with faulty.faults(*(Fault("", at=later, kind="raise") for later in range(k, k + 400))):
                committed = life(run_url, 2).committed
        except Exception:
            pass
        judge(run_url, "gone", k, may_be={1, 2} if committed is None else {2} if committed else {1})
        goes_on(run_url)
        shutil.rmtree(tmp_path / f"{k}")


def test_a_process_that_dies_at_any_operation_leaves_the_old_or_the_new_checkpoint(begun: Begun, tmp_path: Path) -> None:
    found = []
    for k in operations(begun):
        run_url = begun.copy(tmp_path / f"{k}")
        pid = os.fork()
        if pid == 0:  # a short-lived copy of a single-threaded moment; it ends at operation k
            with faulty.faults(Fault("", at=k, kind="exit" if k % 2 else "exit_after")):
                life(run_url, 2)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] >> 8 == 9
        found.append(judge(run_url, "dies", k, may_be={1, 2}))
        goes_on(run_url)
        shutil.rmtree(tmp_path / f"{k}")
    assert found == sorted(found)
    assert set(found) == {1, 2}


def contents(folder: Path) -> dict[str, str]:
    """Every file and a hash of it."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_an_attempt_that_hangs_at_any_operation_and_wakes_after_its_successor_does_no_harm(begun: Begun, tmp_path: Path) -> None:
    for k in operations(begun):
        folder = tmp_path / f"{k}"
        run_url = begun.copy(folder)
        fault = Fault("", at=k, kind="hang")
        ended: list[SaveOutcome | BaseException] = []

        def zombie(run_url: str = run_url, ended: list[SaveOutcome | BaseException] = ended) -> None:
            try:
                ended.append(life(run_url, 2))
            except Exception as error:
                ended.append(error)

        with faulty.faults(fault):
            thread = threading.Thread(target=zombie)
            thread.start()
            assert fault.hanging.wait(60), k
            assert life(run_url, 3).committed
            newest = newest_readable(run_url).checkpoint
            assert newest is not None
            before = contents(folder)
            fault.release.set()
            thread.join(60)
        after = contents(folder)
        changed = {path for path in before if after.get(path) != before[path]}
        needed = {path for path in before if f".a{newest.attempt:04d}/" in path or path == f"attempts/{newest.attempt:04d}.json"}
        assert needed
        assert not changed & needed, (k, begun.log[k], changed)
        judge(run_url, "hang", k, may_be={3})
        shutil.rmtree(folder)


def sweep_of_two_ranks(root: str) -> tuple[int, int, list[str]]:
    """Every operation of each rank in a save of two, gone wrong once for good and once in passing; and what was bad."""
    faulty.register()
    rank, bad, faults = dist.get_rank(), [], 0
    group = new_gloo_group(timeout_s=20)

    def save(url: str, step: int, *given: Fault) -> tuple[SaveOutcome, int]:
        saver = AsyncSaver(url, attempt=1, group=group, spec_digest=DIGEST, asynchronous=False)
        tensors = {name: torch.arange(5.0) + step for name in "abcd"}
        with faulty.faults(*given) as log:
            saver.start(step, samples_seen=step, tensors=tensors, extra_files={"state.json": b"{}"})
            outcome = saver.close()
        assert outcome is not None
        return outcome, len(log)

    counted = save(f"faulty://{root}/counted", 1)[1]
    counts = torch.zeros(2, dtype=torch.int64)
    counts[rank] = counted
    dist.all_reduce(counts)
    for who in (0, 1):
        for k in range(int(counts[who])):
            for kind in ("raise", "refuse"):
                url = f"faulty://{root}/{who}-{k}-{kind}"
                assert save(url, 1)[0].committed
                given = [Fault("", at=k, kind=kind)] if rank == who else []
                outcome = save(url, 2, *given)[0]
                faults += 1
                dist.barrier()
                chosen = newest_readable(url, deep=True)
                found = chosen.checkpoint.step if chosen.checkpoint else 0
                if outcome.lost_contact or chosen.rejected or found != (2 if outcome.committed else 1):
                    bad.append(f"{kind} at {k} of rank {who}: {outcome}, found {found}")
                if kind == "raise" and not outcome.committed:
                    bad.append(f"{kind} at {k} of rank {who} was not made good: {outcome.error}")
                dist.barrier()
    return int(counts.sum()), faults, bad


@pytest.mark.slow
def test_a_fault_at_any_operation_of_either_of_two_ranks(tmp_path: Path) -> None:
    results = run_ranks(sweep_of_two_ranks, 2, str(tmp_path))
    operations, tried, _ = results[0]
    print(f"fault sweep, 2 ranks: {tried} faults over save {operations} operations: {sum(len(bad) for _, _, bad in results)} bad")
    assert [bad for _, _, bad in results] == [[], []]
