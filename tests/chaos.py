"""Breaks a real run in every way, again and again, and holds its end against that of a run that nobody disturbed.

    python tests/chaos.py --kills 60 --seed 1 [--minutes 45] [--folder DIR] [--write docs/chaos.md] [--synchronous]

Two workers train on a Ray of several nodes on this machine, under `jobs/train.py`. Faults come in random order, every kind
in turn, at random moments. With --folder a chaos that was stopped goes on where it was. With --synchronous training waits for
every save (`checkpoint.asynchronous: false`): then no fault may cost more than the interval. Exit code 1 if anything is not
as it must be.
"""

import argparse
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import psutil
import torch
from processes import command_line
from ranks import run_ranks
from runtime.machines import Machines
from runtime.started_job import Job
from train.small_run import final_rows, final_tensors, run_url, small_spec, start, write_pictures

from iddpm_ray.checkpoint.attempts import attempts
from iddpm_ray.checkpoint.commit import complete, verify
from iddpm_ray.report.accounts import run_account
from iddpm_ray.report.read import read_run
from iddpm_ray.report.text import report_text
from iddpm_ray.spec.spec import JobSpec

PATIENCE_S = 300.0
HANG_S = 20.0
ROW_STEPS = 10
SAVE_STEPS = 20
MACHINES = ("machine lost without notice", "machine preempted, 12 s", "both machines preempted, 12 s", "machine preempted, dies at once")
NOTICED = ("machine preempted, 12 s", "both machines preempted, 12 s", "driver terminated")
COSTS_MORE = ("newest checkpoint damaged", "storage read-only for 5 s")
UNRECORDED = ("driver killed", "Ray head lost")


@dataclass
class Fault:
    """One fault and what came of it.

    Attributes:
        seconds: until the first checkpoint that a later attempt committed.
        redone: steps, by the records of the attempts; filled in at the end.
        damaged: the checkpoint in which a bit was flipped, if one was.
    """

    number: int
    kind: str
    before: int
    attempt: int
    seconds: float = 0.0
    redone: int = 0
    damaged: str = ""
    verdict: str = "ok"


class Chaos:
    """A run, the machines it is on, and everything that can happen to both."""

    def __init__(self, folder: Path, *, seed: int, synchronous: bool = False) -> None:
        self.folder, self.seed, self.synchronous, self.random = folder, seed, synchronous, random.Random(seed)
        self.spec = chaos_spec(folder, "chaos", steps=10**6, asynchronous=not synchronous)
        self.url = run_url(self.spec)
        self.log = folder / "faults.jsonl"
        self.damaged = ""
        self.faults = [Fault(**json.loads(line)) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        self.machines: Machines | None = None
        self.job: Job | None = None
        self.kinds: dict[str, Callable[[], None]] = {
            "worker killed": self.kill_worker,
            "both workers killed": self.kill_both_workers,
            "killed again while starting": self.kill_twice,
            "data worker killed": self.kill_data_worker,
            "worker frozen": self.freeze_worker,
            "machine lost without notice": self.lose_machine,
            "machine preempted, 12 s": self.preempt_one,
            "both machines preempted, 12 s": self.preempt_both,
            "machine preempted, dies at once": self.preempt_and_die,
            "driver killed": self.kill_driver,
            "driver terminated": self.terminate_driver,
            "Ray head lost": self.lose_head,
            "newest checkpoint damaged": self.damage_newest,
            "storage read-only for 5 s": self.refuse_writes,
        }

    def go(self, *, kills: int, until: float) -> None:
        """Faults until there are enough or the time is over."""
        while len(self.faults) < kills and time.monotonic() < until:
            kind = self._next_kind()
            self._running()
            before = self._moving()
            fault = Fault(len(self.faults) + 1, kind, before[0], before[1])
            time.sleep(self.random.uniform(0, 1.5))
            began, self.damaged = time.monotonic(), ""
            try:
                self.kinds[kind]()
                self._running()
                fault.seconds = time.monotonic() - began + self._returned(before[1], kind)
            except AssertionError as error:
                fault.verdict = f"NOT BACK: {error}"[:2000]
            fault.damaged = self.damaged
            self.faults.append(fault)
            with self.log.open("a") as log:
                log.write(json.dumps(asdict(fault)) + "\n")
            print(f"{fault.number:3d}  {kind:32s} step {fault.before:5d}  {fault.seconds:6.1f} s  {fault.verdict[:300]}", flush=True)
            if fault.verdict != "ok":
                return

    def finish(self) -> int:
        """Stops the run in good order; the step it stopped at."""
        self._running()
        job = self._started()
        self._moving()
        job.terminate()
        assert job.ends() == 0, job.text
        step = complete(self.url)[0].step
        self.close()
        return step

    def close(self) -> None:
        """Takes everything down."""
        if self.job is not None:
            self.job.__exit__()
            self.job = None
        if self.machines is not None:
            self.machines.__exit__()
            self.machines = None

    # faults

    def kill_worker(self) -> None:
        self._one(self._workers()).kill()

    def kill_both_workers(self) -> None:
        for worker in self._workers():
            worker.kill()

    def kill_twice(self) -> None:
        before = self._workers()
        self._one(before).kill()
        old = {worker.pid for worker in before}
        self._until(lambda: bool({worker.pid for worker in self._workers()} - old), "new workers")
        time.sleep(self.random.uniform(0, 6))
        for worker in self._workers():
            if worker.pid not in old and self.random.random() < 0.7:
                worker.kill()

    def kill_data_worker(self) -> None:
        """Whatever of Ray serves the data: coordinators and tasks."""
        serving = self._ray_processes("SplitCoordinator") + self._ray_processes("ray::IDLE") + self._ray_processes("ray::ReadPictures")
        if serving:
            self._one(serving).kill()

    def freeze_worker(self) -> None:
        self._one(self._workers()).send_signal(signal.SIGSTOP)

    def lose_machine(self) -> None:
        machines = self._up()
        machines.kill(self.random.choice(machines.nodes))

    def preempt_one(self) -> None:
        self._preempt(1, seconds=12)

    def preempt_both(self) -> None:
        self._preempt(2, seconds=12)

    def preempt_and_die(self) -> None:
        machines = self._up()
        node = self.random.choice(machines.nodes)
        machines.drain(node, seconds=12)
        time.sleep(self.random.uniform(0.5, 3))
        machines.kill(node)

    def kill_driver(self) -> None:
        self._started().process.kill()
        self._ended()

    def terminate_driver(self) -> None:
        self._started().terminate()
        self._ended()

    def lose_head(self) -> None:
        machines, self.machines = self._up(), None
        machines.lose_head()
        self._started().process.kill()  # its cluster is gone: the job controller would start it again, elsewhere
        self._ended()
        machines.__exit__()

    def damage_newest(self) -> None:
        """One bit, while nobody is looking; then the workers die."""
        newest = complete(self.url)[0]
        files = sorted(Path(newest.url).glob("data-*.bin"))
        data = bytearray(files[0].read_bytes())
        self.kill_both_workers()
        data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        files[0].write_bytes(bytes(data))
        self.damaged = newest.name

    def refuse_writes(self) -> None:
        """As a store that answers 503 to every write."""
        folder = Path(self.url) / "checkpoints"
        hidden = folder.with_name("checkpoints-away")
        folder.rename(hidden)
        folder.write_bytes(b"")  # no directory can be made below a file
        time.sleep(5)
        folder.unlink()
        hidden.rename(folder)
        self._one(self._workers()).kill()

    # what the faults are made of

    def _preempt(self, count: int, *, seconds: float) -> None:
        machines = self._up()
        nodes = self.random.sample(machines.nodes, count)
        for node in nodes:
            machines.drain(node, seconds=seconds)
        deadline = time.monotonic() + seconds
        for _ in nodes:
            machines.add()  # the replacement comes while the old machine still lives
        time.sleep(max(0.0, deadline - time.monotonic()))
        for node in nodes:
            machines.kill(node)

    def _next_kind(self) -> str:
        """Every kind in turn, each round in another order; a function of the seed."""
        names, rounds = list(self.kinds), random.Random(self.seed)
        order: list[str] = []
        while len(order) <= len(self.faults):
            order += rounds.sample(names, len(names))
        return order[len(self.faults)]

    def _running(self) -> None:
        """Machines for both workers, and a driver."""
        if self.machines is None:
            self.machines = Machines()
        while len(self.machines.nodes) < 2:
            self.machines.add()
        if self.job is None:
            before = self._latest()
            self.job = Job(self.spec, self.folder, f"cluster.address={self.machines.address}")
            self._until(lambda: self._latest() > before, "a new attempt")

    def _ended(self) -> None:
        job, self.job = self._started(), None
        job.ends()
        job.__exit__()

    def _moving(self) -> tuple[int, int]:
        """Waits until the newest attempt has committed something; its newest step, and its number."""
        self._until(lambda: self._newest()[1] == self._latest(), "a new checkpoint")
        return self._newest()

    def _latest(self) -> int:
        """The number of the newest attempt; -1 before there is one."""
        return max((one.number for one in attempts(self.url)), default=-1)

    def _returned(self, attempt: int, kind: str) -> float:
        """Seconds until a later attempt has committed; a fault that ended no attempt has nothing to return from."""
        began = time.monotonic()
        harmless = kind == "data worker killed"
        self._until(lambda: self._newest()[1] > attempt or (harmless and time.monotonic() - began > 10), "the return")
        return time.monotonic() - began

    def _newest(self) -> tuple[int, int]:
        try:
            newest = max(complete(self.url), key=lambda one: (one.attempt, one.step), default=None)
        except OSError:
            return (0, 0)
        return (0, 0) if newest is None else (newest.step, newest.attempt)

    def _until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            job = self._started()
            assert job.process.poll() is None, f"the driver ended with {job.process.poll()} before {what}\n{job.text[-1500:]}"
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}\n{job.text[-1500:]}"
            time.sleep(0.2)

    def _started(self) -> Job:
        assert self.job is not None
        return self.job

    def _up(self) -> Machines:
        assert self.machines is not None
        return self.machines

    def _one(self, processes: list[psutil.Process]) -> psutil.Process:
        assert processes, "nobody to kill"
        return self.random.choice(processes)

    def _workers(self) -> list[psutil.Process]:
        return self._ray_processes("RayTrainWorker")

    def _ray_processes(self, name: str) -> list[psutil.Process]:
        return [process for process in self._up().processes() if name in command_line(process)]


def chaos_spec(folder: Path, name: str, *, steps: int, asynchronous: bool = True) -> JobSpec:
    """A tiny network under everything that must be kept: a warmed-up resampler, averages, dropout, flips, ragged slices."""
    return small_spec(
        folder,
        run={"name": name},
        data={"cpus_per_task": 0.25, "flip": True},
        model={"dropout": 0.1},
        train={"duration": f"{steps} steps"},
        checkpoint={"every": f"{SAVE_STEPS} steps", "keep_last": 3, "asynchronous": asynchronous},
        log={"every": f"{ROW_STEPS} steps", "tensorboard": False},
        resampler={"kind": "loss_second_moment", "history": 2},
        cluster={
            "workers": 2,
            "cpus_per_worker": 0.5,
            "placement": "spread",
            "hang_timeout_s": HANG_S,
            "collective_timeout_s": 60,
            "start_timeout_s": 120,
            "max_failures": 1000,
            "max_fruitless": 10,
        },
    )


def main(argv: list[str]) -> int:
    """Runs the chaos; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--synchronous", action="store_true", help="training waits for every save")
    given = parser.parse_args(argv)
    began = time.monotonic()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "pictures").exists():
        write_pictures(folder / "pictures")
    chaos = Chaos(folder, seed=given.seed, synchronous=given.synchronous)
    try:
        chaos.go(kills=given.kills, until=began + 60 * given.minutes)
        step = chaos.finish()
    finally:
        chaos.close()
    verdicts = judge(chaos, step=step)
    text = table(chaos, verdicts, step=step, seconds=time.monotonic() - began, seed=given.seed)
    print(text)
    if given.write:
        given.write.write_text(text)
    return 0 if all(good for _, good in verdicts) else 1


def judge(chaos: Chaos, *, step: int) -> list[tuple[str, bool]]:
    """What must hold, each with whether it does."""
    known = attempts(chaos.url)
    account = run_account(known)
    redone = {one.number: one.redone for one in account.attempts}
    ended_by = {fault.attempt: fault.number for fault in chaos.faults}  # of two faults in one attempt the later one: the first was borne
    for fault in chaos.faults:
        fault.redone = redone.get(fault.attempt, 0) if ended_by[fault.attempt] == fault.number else 0
    torn = 0
    flipped_here = {fault.damaged for fault in chaos.faults}
    for checkpoint in complete(chaos.url):
        if checkpoint.name in flipped_here:
            continue
        try:
            verify(checkpoint)
        except Exception:
            torn += 1
    noticed = max((fault.redone for fault in chaos.faults if fault.kind in NOTICED), default=0)
    unnoticed = [fault.redone for fault in chaos.faults if fault.kind not in NOTICED + COSTS_MORE + UNRECORDED]
    most, during = max(unnoticed, default=0), sum(redone > SAVE_STEPS for redone in unnoticed)
    allowed = "" if chaos.synchronous else f" and those done during a save; {during} of {len(unnoticed)} faults cost more than {SAVE_STEPS}"
    ended = {one.number: one.why for one in account.attempts}
    charged = [fault.number for fault in chaos.faults if fault.kind in MACHINES and ended.get(fault.attempt) in ("failed", "hung")]
    undisturbed = chaos_spec(chaos.folder, "undisturbed", steps=step)
    run_ranks(start, 2, undisturbed, timeout_s=1200, group_timeout_s=120)
    same = same_run(undisturbed, chaos.spec)
    return [
        (f"{len(chaos.faults)} faults, each followed by a return", all(fault.verdict == "ok" for fault in chaos.faults)),
        (f"most steps redone after a notice that was kept to: {noticed} (at most 1)", noticed <= 1),
        (f"most steps redone without notice: {most} (at most {SAVE_STEPS}{allowed})", most <= SAVE_STEPS * (1 if chaos.synchronous else 2)),
        (f"faults of machines that were charged to the program: {len(charged)}", not charged),
        (f"torn checkpoints among those kept: {torn}", torn == 0),
        (f"after step {step} every tensor and every row is that of an undisturbed run, bit for bit: {'yes' if same else 'NO'}", same),
        (f"unaccounted time: {100 * account.unaccounted:.2f} % of {account.total:.0f} worker-seconds", account.unaccounted <= 0.01),
    ]


def same_run(one: JobSpec, other: JobSpec) -> bool:
    """Whether every tensor and every row agrees; a run that ends by its duration has a last row that a stopped one has not."""
    first, second = final_tensors(one), final_tensors(other)
    different = [name for name in first.keys() | second.keys() if not torch.equal(first[name], second[name])]
    rows = [[row for row in final_rows(spec) if row["step"] % ROW_STEPS == 0] for spec in (one, other)]
    if different or repr(rows[0]) != repr(rows[1]):
        print(f"tensors that differ: {different}; rows: {len(rows[0])} and {len(rows[1])}")
    return not different and repr(rows[0]) == repr(rows[1])


def table(chaos: Chaos, verdicts: list[tuple[str, bool]], *, step: int, seconds: float, seed: int) -> str:
    """The page: a row a kind, what held, the run's own ledger, and on what it was run."""
    rows = []
    for kind in chaos.kinds:
        those = [fault for fault in chaos.faults if fault.kind == kind]
        if those:
            times = sorted(fault.seconds for fault in those)
            bad = sum(fault.verdict != "ok" for fault in those)
            verdict = "ok" if not bad else f"{bad} FAILED"
            redone = "unknown" if kind in UNRECORDED else max(fault.redone for fault in those)
            rows.append(f"| {kind} | {len(those)} | {redone} | {times[len(times) // 2]:.0f} | {times[-1]:.0f} | {verdict} |")
    held = "\n".join(f"- {'holds' if good else '**DOES NOT HOLD**'}: {sentence}" for sentence, good in verdicts)
    command = f"python tests/chaos.py --kills {len(chaos.faults)} --seed {seed}{' --synchronous' * chaos.synchronous} --folder DIR"
    if chaos.synchronous:
        without = f"the {SAVE_STEPS} steps between two checkpoints, for training waits here for each (`checkpoint.asynchronous: false`)"
    else:
        without = f"""the {SAVE_STEPS} steps between two checkpoints and those done while the newest is still being
written, about as many here, where a step takes milliseconds"""
    where = f"{psutil.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}, torch {torch.__version__}"
    return f"""# Chaos

`{command}`, {time.strftime("%Y-%m-%d")}, {seconds / 60:.0f} minutes, {where}.

Two workers on a Ray of several nodes on one machine, checkpoints every 20 steps. Seconds to return count from the fault to the first
checkpoint that a later attempt has committed, deadlines of preemptions and the wait for a dead driver's lease included. What ends
without notice may cost {without};
a damaged checkpoint costs one interval more, a storage that refuses writes what was done
meanwhile; what a preemption ends with notice, at most one step. A killed driver and a lost head leave nobody to record how far an
attempt had come.

| fault | count | most steps redone | seconds to return, median | longest | verdict |
|---|---|---|---|---|---|
{chr(10).join(rows)}

{held}

Two faults in one attempt: the later one is charged with what the attempt lost, the first was borne. A return is mostly Python's imports and
Ray's start of processes; a freeze has to be noticed first ({HANG_S:g} s here), a preempted machine lives its 12 s.

## The ledger of this run

```
{report_text(read_run(chaos.url)).replace(str(chaos.folder), "DIR")}
```
"""


if __name__ == "__main__":
    os.environ.setdefault("RAY_DEDUP_LOGS", "1")
    sys.exit(main(sys.argv[1:]))
