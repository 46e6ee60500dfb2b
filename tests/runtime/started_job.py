"""`jobs/train.py` as a person starts it: a process, its lines as they come, its Ray's scratch, and what it left running."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from processes import command_line

from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import dump_yaml

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600.0
KEPT = ("RAY_AUTH_MODE", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER")


class Job:
    """One `python jobs/train.py spec.yaml ...` in a process group of its own."""

    def __init__(self, spec: JobSpec, folder: Path, *changes: str) -> None:
        path = folder / f"{spec.run.name}.yaml"
        path.write_text(dump_yaml(spec))
        self.scratch = Path(tempfile.mkdtemp(prefix="rj", dir="/tmp"))  # sockets need a short path
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_") or name in KEPT}
        environment |= {"RAY_TMPDIR": str(self.scratch), "RAY_worker_niceness": "0", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "jobs/train.py", str(path), *changes],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes():
            if process.is_running():
                process.kill()
        self.process.wait(30)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        """All that was shown so far."""
        return "\n".join(self.lines)

    def shows(self, pattern: str) -> re.Match[str]:
        """Waits for a line."""
        self.until(lambda: re.search(pattern, self.text, re.MULTILINE) is not None or self.process.poll() is not None, pattern)
        found = re.search(pattern, self.text, re.MULTILINE)
        assert found is not None, f"ended with {self.process.poll()} without {pattern!r}:\n{self.text}"
        return found

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Waits until something is so."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}\n{self.text}"
            time.sleep(0.1)

    def ends(self, *, within_s: float = PATIENCE_S) -> int:
        """Waits for the exit code; a job that stands is made to show the stacks of its threads."""
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self._reader.join(10)
            raise AssertionError(f"no end within {within_s:g} s\n{self.text}") from None
        self._reader.join(10)
        assert self.process.returncode is not None
        return self.process.returncode

    def processes(self) -> list[psutil.Process]:
        """The job's own process and all of its Ray's, found by the scratch that only they know."""
        mine = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("RAY_TMPDIR") == str(self.scratch) and process.status() != psutil.STATUS_ZOMBIE:
                    mine.append(process)
            except psutil.Error:
                continue
        return mine

    def workers(self) -> list[psutil.Process]:
        """The processes of the ranks."""
        return [process for process in self.processes() if "RayTrainWorker" in command_line(process)]

    def interrupt(self) -> None:
        """Ctrl-C as a terminal delivers it: to every process of the group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def terminate(self) -> None:
        """SIGTERM to the job's process alone."""
        self.process.terminate()

    def nothing_is_left(self) -> bool:
        """Whether, a little after its end, none of its processes runs."""
        deadline = time.monotonic() + 30
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        return not self.processes()
