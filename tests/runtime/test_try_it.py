"""The page docs/cluster.md as a newcomer follows it: its commands, in its order, on this machine. The transcript is shown under `-s`."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from processes import free_ports, kill_all_with

from iddpm_ray.checkpoint.attempts import attempts
from iddpm_ray.evaluate.digits import export_digits

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8").partition("## Try it on one machine")[2].partition("\n## ")[0]
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines() if line[:2] == "$ "]


@dataclass
class Shell:
    """A shell in a directory of its own, whose Ray has a scratch of its own."""

    folder: Path
    environment: dict[str, str]
    ports: dict[str, str]
    client_port: str
    said: dict[str, str] = field(default_factory=dict)

    def type(self, command: str) -> str:
        """Runs a command to its end; what it printed."""
        given = command
        for port, free in self.ports.items():
            command = command.replace(port, free)
        command = command.replace("ray start --head", f"ray start --head --ray-client-server-port={self.client_port}")
        if command.startswith("export "):
            self.environment |= dict(word.split("=", 1) for word in command.split()[1:])
            print(f"\n$ {given}", flush=True)
            return ""
        words = ["/bin/bash", "-c", command]
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        print(f"\n$ {given}\n{done.stdout}", end="", flush=True)
        assert done.returncode == 0, done.stdout
        self.said[given] = done.stdout
        return done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    for name in ("jobs", "k8s"):
        (tmp_path / name).symlink_to(ROOT / name)
    export_digits(tmp_path / "demo" / "digits")
    spec = re.search(r"```yaml\n# practice.yaml\n(.*?)```", PAGE, re.DOTALL)
    assert spec is not None
    (tmp_path / "practice.yaml").write_text(spec[1])
    scratch = tempfile.mkdtemp(prefix="rt", dir="/tmp")  # sockets need a short path
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}",
        "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": scratch,
        "RAY_worker_niceness": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    free = [str(port) for port in free_ports(4)]
    try:
        yield Shell(tmp_path, environment, dict(zip(("6379", "8265", "52365"), free[:3], strict=True)), free[3])
    finally:
        kill_all_with("RAY_TMPDIR", scratch)
        shutil.rmtree(scratch, ignore_errors=True)


def test_the_page_shows_every_command_of_a_cluster() -> None:
    shown = {found[1] for command in COMMANDS if (found := re.match(r"python jobs/cluster\.py (\w+)", command))}
    assert shown >= {"plan", "render", "preflight", "submit", "status", "drill", "stop"}
    assert COMMANDS[-1] == "ray stop"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_page_can_be_followed(shell: Shell) -> None:
    for command in COMMANDS[:-1]:  # `ray stop` would end every Ray of this machine
        if " drill " in command:
            _until_it_steps(shell)
        shell.type(command)
    said = {command.split()[2]: text for command, text in shell.said.items() if command.startswith("python jobs/cluster.py")}
    assert re.search(r"^hours +\d", said["plan"], re.MULTILINE)
    assert "kind: RayJob" in said["render"]
    assert len(re.findall(r"^\w+ +(?:ok|warning) +", said["preflight"], re.MULTILINE)) == 10
    assert "submitted as job practice-" in said["submit"]
    assert "newest checkpoint step-" in said["status"]
    redone = re.search(r"^steps redone +(\d+)$", said["drill"], re.MULTILINE)
    assert redone is not None
    assert int(redone[1]) <= 1
    assert "SUCCEEDED" in said["stop"] or "STOPPED" in said["stop"]
    assert [one.end and one.end["why"] for one in attempts(str(shell.folder / "demo" / "runs" / "practice"))] == ["preempted", "stopped"]


def _until_it_steps(shell: Shell) -> None:
    deadline = time.monotonic() + 400
    while "newest checkpoint" not in shell.type("python jobs/cluster.py status practice.yaml"):
        assert time.monotonic() < deadline
        time.sleep(5)
