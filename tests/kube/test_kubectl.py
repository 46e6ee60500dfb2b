"""A run on Kubernetes as its user sees it: kubectl is stood in for by a program that keeps objects in files and takes notes."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.test_render import spec_with

from iddpm_ray.errors import UserError
from iddpm_ray.kube import kubectl
from iddpm_ray.runtime import send

PROGRAM = f"""#!{sys.executable}
import json, pathlib, sys
home = pathlib.Path({{home!r}})
words = sys.argv[1:]
(home / "notes").open("a").write(json.dumps(words) + "\\n")
job = home / "job.json"
if words[0] == "apply":
    (home / "applied.yaml").write_text(sys.stdin.read())
    print("configmap/x configured\\nrayjob.ray.io/cats created")
elif words[:2] == ["get", "rayjob"]:
    states = json.loads((home / "states").read_text())
    if states:
        print(json.dumps(states[0]))
        (home / "states").write_text(json.dumps(states[1:] or states[:1]))
elif words[:2] == ["get", "pods"]:
    print("head-1", end="")
elif words[0] == "exec" and "logs" in words:
    logs = json.loads((home / "logs").read_text())
    print(logs[0], end="")
    (home / "logs").write_text(json.dumps(logs[1:] or logs[:1]))
elif words[0] == "delete" and (home / "forbidden").exists():
    print("Error from server (Forbidden): no", file=sys.stderr)
    sys.exit(1)
else:
    print("done")
"""


class Stand:
    """What the stand-in knows and has heard."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.is_([])

    def is_(self, states: list[dict[str, Any]], *logs: str) -> None:
        """What the cluster says from one question to the next: states, and how far the log is."""
        (self.home / "logs").write_text(json.dumps(logs or [""]))
        (self.home / "states").write_text(json.dumps(states))

    @property
    def heard(self) -> list[list[str]]:
        notes = self.home / "notes"
        return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(PROGRAM.replace("{home!r}", repr(str(tmp_path))))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(kubectl, "POLL_S", 0.01)
    return Stand(tmp_path)


def job(deployment: str, status: str = "", *, digest: str | None = None, **more: str) -> dict[str, Any]:
    labels = {"iddpm/spec": spec_with().digest()[:16] if digest is None else digest}
    names = {} if deployment in ("", "New", "ValidationFailed") else {"jobId": "cats-1", "rayClusterName": "cats-x"}  # before any pod
    return {"metadata": {"labels": labels}, "status": {"jobDeploymentStatus": deployment, "jobStatus": status, **names, **more}}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def show(said: list[str]) -> Callable[[str], None]:
    return said.append


def test_a_new_run_is_applied_as_rendered(stand: Stand, show: Callable[[str], None]) -> None:
    kubectl.submit(spec_with(), show=show)
    applied = list(yaml.safe_load_all((stand.home / "applied.yaml").read_text()))
    assert [(one["kind"], one["metadata"]["name"]) for one in applied] == [("ConfigMap", "cats-spec"), ("RayJob", "cats")]


def test_a_run_under_way_is_found_and_not_started_again(stand: Stand, show: Callable[[str], None], said: list[str]) -> None:
    stand.is_([job("Running", "RUNNING")])
    kubectl.submit(spec_with(), show=show)
    assert [words[0] for words in stand.heard] == ["get"]
    assert said == ["cats: Running, RUNNING; already there"]


def test_another_spec_under_the_same_name_is_refused_while_the_first_runs(stand: Stand, show: Callable[[str], None]) -> None:
    stand.is_([job("Running", "RUNNING", digest="0" * 16)])
    with pytest.raises(UserError, match=r"another spec.*stop it first"):
        kubectl.submit(spec_with(), show=show)
    assert [words[0] for words in stand.heard] == ["get"]


@pytest.mark.parametrize("ended", [("Complete", "SUCCEEDED"), ("Failed", "FAILED"), ("ValidationFailed", "")])
def test_a_run_that_has_ended_is_started_again(stand: Stand, show: Callable[[str], None], ended: tuple[str, str]) -> None:
    stand.is_([job(*ended, digest="0" * 16)])
    kubectl.submit(spec_with(), show=show)
    assert [words[0] for words in stand.heard] == ["get", "delete", "apply"]


@pytest.mark.parametrize(("end", "code"), [(("Complete", "SUCCEEDED"), 0), (("Complete", "STOPPED"), 0), (("Failed", "FAILED"), 1)])
def test_states_and_log_are_shown_once_until_the_end(
    stand: Stand, show: Callable[[str], None], said: list[str], end: tuple[str, str], code: int
) -> None:
    running, over = job("Running", "RUNNING"), job(*end, message="over")
    stand.is_([job("Initializing"), running, running, over], "step 1\nst", "step 1\nstep 2\n", "step 1\nstep 2\nlast words")
    assert kubectl.follow(spec_with(), show=show) == code
    states = ["cats: Initializing", "cats: Running, RUNNING", f"cats: {end[0]}, {end[1]}, over"]
    assert said == [*states[:2], "step 1", "step 2", "last words", states[2]]


def test_what_ended_a_job_is_shown_before_it_is_tried_again(stand: Stand, show: Callable[[str], None], said: list[str]) -> None:
    again = job("Running", "RUNNING", jobId="cats-2")
    states = [job("Running", "RUNNING"), job("Retrying", "FAILED"), job("New"), again, job("Complete", "SUCCEEDED", jobId="cats-2")]
    stand.is_(states, "step 1\n", "step 1\nerror: full\n", "step 2\n", "step 2\nfinished at step 3\n")
    assert kubectl.follow(spec_with(), show=show) == 0
    assert [line for line in said if not line.startswith("cats: ")] == ["step 1", "error: full", "step 2", "finished at step 3"]


def test_stop_asks_ray_and_waits_and_deletes_nothing(stand: Stand, show: Callable[[str], None]) -> None:
    stand.is_([job("Running", "RUNNING"), job("Running", "RUNNING"), job("Complete", "STOPPED")])
    assert kubectl.stop(spec_with(), show=show) == 0
    asked = [words for words in stand.heard if "stop" in words]
    assert [words[words.index("--") + 1 :] for words in asked] == [["ray", "job", "stop", "--no-wait", "cats-1"]]
    assert not [words for words in stand.heard if words[0] == "delete"]


@pytest.mark.parametrize("state", [job(""), job("Initializing"), job("Running"), job("Retrying", "FAILED"), job("Suspended")])
def test_a_run_that_nobody_can_ask_yet_is_deleted(stand: Stand, show: Callable[[str], None], state: dict[str, Any]) -> None:
    stand.is_([state, job("Complete", "STOPPED")])
    assert kubectl.stop(spec_with(), show=show) == 0
    assert [words[:3] for words in stand.heard if words[0] != "get"] == [["delete", "rayjob", "cats"]]


@pytest.mark.parametrize("states", [[], [job("Complete", "SUCCEEDED")], [job("Failed", "FAILED")], [job("ValidationFailed")]])
def test_the_objects_of_a_run_that_has_ended_can_be_deleted(
    stand: Stand, show: Callable[[str], None], states: list[dict[str, Any]]
) -> None:
    stand.is_(states)
    assert send.stop(spec_with(), address=None, forget=True, show=show) == 0
    assert [words[:2] for words in stand.heard if words[0] != "get"] == [["delete", "rayjob,configmap"]]


def test_a_run_under_way_is_stopped_before_its_objects_are_deleted(stand: Stand, show: Callable[[str], None]) -> None:
    running = job("Running", "RUNNING")
    stand.is_([running, running, job("Complete", "STOPPED")])
    assert send.stop(spec_with(), address=None, forget=True, show=show) == 0
    assert [words[0] for words in stand.heard if "stop" in words or words[0] == "delete"] == ["exec", "delete"]


def test_forgetting_is_refused_where_there_is_nothing_to_delete() -> None:
    with pytest.raises(UserError, match=r"--forget deletes objects of Kubernetes.*RAY_API_SERVER_ADDRESS"):
        send.stop(spec_with(), address="http://127.0.0.1:1", forget=True, show=print)


def test_what_kubectl_refuses_is_one_sentence(stand: Stand, show: Callable[[str], None]) -> None:
    (stand.home / "forbidden").write_text("")
    stand.is_([job("Failed", "FAILED")])
    with pytest.raises(UserError, match=r"kubectl delete rayjob cats fails \(got Error from server \(Forbidden\): no\)"):
        kubectl.submit(spec_with(), show=show)


def test_without_kubectl_there_is_another_way(monkeypatch: pytest.MonkeyPatch, show: Callable[[str], None]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"kubectl is not installed.*--address"):
        kubectl.submit(spec_with(), show=show)
