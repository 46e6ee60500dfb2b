"""A Ray head with its three places of metrics, and a real Prometheus that scrapes them under our alert rules, as in a cluster."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from processes import free_ports, kill_all_with

from iddpm_ray.kube.alerts import groups

ROOT = Path(__file__).parents[1]
PATIENCE_S = 600.0
CLUSTER = "here"


@dataclass(frozen=True)
class Head:
    """A running head.

    Attributes:
        address: for `RAY_ADDRESS`.
        scraped: ports by the names that the pods give them.
        environment: of programs that join it.
    """

    address: str
    scraped: Mapping[str, int]
    environment: dict[str, str]

    def train(self, *words: str, log: Path) -> subprocess.Popen[bytes]:
        """`python jobs/train.py ...` on this Ray."""
        with open(log, "w") as out:
            command = [sys.executable, "jobs/train.py", *words]
            environment = {**self.environment, "RAY_ADDRESS": self.address}
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True)


@contextmanager
def started_head(*, cpus: int = 4, gpus: int = 1) -> Iterator[Head]:
    """A head on ports of its own; its GPUs are a number that Ray believes."""
    scratch = tempfile.mkdtemp(prefix="rm", dir="/tmp")  # sockets need a short path
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port", "metrics-export-port")
    *ports, autoscaler, dashboard = free_ports(len(names) + 2)
    options = dict(zip(names, ports, strict=True))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "disabled",
        "RAY_TMPDIR": scratch,
        "RAY_worker_niceness": "0",
        "RAY_agent_register_timeout_ms": "200000",
        "AUTOSCALER_METRIC_PORT": str(autoscaler),
        "DASHBOARD_METRIC_PORT": str(dashboard),
        "OMP_NUM_THREADS": "1",
    }
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
    command += ["--disable-usage-stats", f"--temp-dir={scratch}", "--object-store-memory=100000000"]
    command += [f"--{name}={port}" for name, port in options.items()]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        scraped = {"metrics": options["metrics-export-port"], "as-metrics": autoscaler, "dash-metrics": dashboard}
        until(lambda: all("# HELP" in fetch(port) for port in scraped.values()), what=f"all metrics of the head {scraped}")
        yield Head(f"127.0.0.1:{options['port']}", scraped, environment)
    finally:
        kill_all_with("RAY_TMPDIR", scratch)
        shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus, by its HTTP API."""

    url: str

    def ask(self, path: str, **parameters: Any) -> Any:
        """The field `data` of an answer."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def now(self, expr: str) -> list[dict[str, Any]]:
        """What an expression is at this moment: series, each with `metric` and `value`."""
        return self.ask("query", query=expr)["result"]

    def value(self, expr: str) -> float | None:
        """The only value of an expression; None if it has none."""
        found = self.now(expr)
        assert len(found) < 2, found
        return float(found[0]["value"][1]) if found else None

    def names(self) -> set[str]:
        """Every metric that was ever scraped."""
        return set(self.ask("label/__name__/values"))


@contextmanager
def started_prometheus(folder: Path, scraped: Mapping[str, int], *, interval: str = "1s") -> Iterator[Prometheus]:
    """A Prometheus that scrapes these ports, with the label that pods bring, and judges by the alert rules."""
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{target}"], "labels": {"ray_cluster": CLUSTER}}]}
        for name, target in scraped.items()
    ]
    settings = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": ["rules.yaml"],
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    rules = groups()
    rules["groups"][0]["interval"] = interval
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    command = ["prometheus", "--config.file=prometheus.yaml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}"]
    with open(folder / "prometheus.log", "w") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        one = Prometheus(f"http://127.0.0.1:{port}")

        def up() -> bool:
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            try:
                return len(one.now("up == 1")) == len(jobs)
            except (urllib.error.URLError, OSError):
                return False

        until(up, what="Prometheus and all it scrapes")
        yield one
    finally:
        process.terminate()
        process.wait(30)


def fetch(port: int) -> str:
    """What is scraped there; empty where nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return ""


def until(true: Callable[[], bool], *, what: str, patience_s: float = PATIENCE_S) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, f"not within {patience_s:g} s: {what}"
        time.sleep(0.5)
