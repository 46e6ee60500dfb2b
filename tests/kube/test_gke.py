"""The commands under k8s/gke are what their programs know: run against stand-ins that take notes, and read by gcloud's own linter."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from iddpm_ray.cli import read_spec
from iddpm_ray.kube import render
from iddpm_ray.kube.machines import MACHINES
from iddpm_ray.kube.rules_time import WINDOWS
from iddpm_ray.kube.shape import shape

GKE = Path(__file__).parents[2] / "k8s" / "gke"
SCRIPTS = sorted(path for path in GKE.glob("*.sh") if path.name != "variables.sh")
NOTE = """#!/bin/bash
{ printf '%q ' "$(basename "$0")" "$@"; echo; } >> "$NOTES"
case "$*" in
*"buckets describe"*|*"repositories describe"*) [ "$THERE" = yes ] || exit 1;;
*"buckets create"*|*"repositories create"*) [ "$THERE" = no ] || exit 1;;
esac
echo 12345
"""
ALLOCATABLE = {"e2-standard-4": 3.92}  # CPUs for pods, as Google reserves the rest


def commands(script: Path, folder: Path, *, there: bool = False) -> list[str]:
    """What a script would run, in order.

    Args:
        there: whether bucket and repository exist, which cannot be created a second time.
    """
    programs, notes = folder / "bin", folder / f"{script.stem}.notes"
    programs.mkdir(exist_ok=True)
    for name in ("gcloud", "helm", "docker", "kubectl"):
        (programs / name).write_text(NOTE)
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "NOTES": str(notes), "THERE": "yes" if there else "no"}
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return notes.read_text().splitlines()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_runs_through_with_every_variable_set(script: Path, tmp_path: Path) -> None:
    made = commands(script, tmp_path)
    assert made
    assert not [line for line in made if "''" in line]


def test_the_pools_are_those_that_pods_ask_for(tmp_path: Path) -> None:
    made = [line.split() for line in commands(GKE / "cluster.sh", tmp_path) if "node-pools" in line]
    assert len(made) == 2
    for words in made:
        machine = MACHINES[words[words.index("--machine-type") + 1]]
        assert machine.gpu is not None
        assert f"type={machine.gpu.label}\\,count={machine.gpus}" in words[words.index("--accelerator") + 1]
        assert words[words.index("--min-nodes") + 1] == "0"
    assert ["--spot" in words for words in made] == [True, False]


@pytest.mark.parametrize("name", ["cats", "digits-cpu"])
def test_every_example_finds_the_pools_that_it_asks_for(name: str, tmp_path: Path) -> None:
    """Otherwise its pods would stay Pending on the very cluster that the commands here make."""
    path = GKE.parent / "examples" / f"{name}.yaml"
    spec = read_spec(str(path))
    made = [line.split() for line in commands(GKE / "cluster.sh", tmp_path) if "--machine-type" in line]
    pools = {(words[words.index("--machine-type") + 1], "--spot" in words) for words in made}
    kinds = {"spot": (True,), "spot-first": (True, False), "on-demand": (False,)}[spec.kube.capacity]
    assert {(spec.kube.machine, spot) for spot in kinds} <= pools


def test_the_pool_of_small_machines_has_room_for_the_first_run(tmp_path: Path) -> None:
    """The head of the cluster that stays, that of the run, and its workers, each on a machine of its own; and a further head."""
    (pool,) = [line.split() for line in commands(GKE / "cluster.sh", tmp_path) if " clusters create " in line]
    spec = read_spec(str(GKE.parent / "examples" / "digits-cpu.yaml"))
    small, (_, job) = pool[pool.index("--machine-type") + 1], render.job(spec)
    assert spec.kube.machine == small
    cluster = job["spec"]["rayClusterSpec"]
    head = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    beside = cluster["autoscalerOptions"]["resources"]["requests"]["cpu"]
    needs = [float(head) + float(beside.removesuffix("m")) / 1000] * 3 + [shape(spec).cpus] * shape(spec).pods
    assert all(ALLOCATABLE[small] / 2 < need <= ALLOCATABLE[small] for need in needs), "no two share a machine"
    assert len(needs) <= int(pool[pool.index("--max-nodes") + 1])


@pytest.mark.parametrize("name", ["bucket", "image"])
def test_what_is_there_is_left_and_the_rest_is_done(name: str, tmp_path: Path) -> None:
    """These two are run again: for an account that lacks its right, and for each new image."""
    first = commands(GKE / f"{name}.sh", tmp_path)
    again = commands(GKE / f"{name}.sh", tmp_path, there=True)[len(first) :]  # the notes go on
    (made,) = [line for line in first if " create " in line]
    assert again == [line for line in first if line != made]


def test_the_accounts_of_the_bucket_are_those_of_the_pods(tmp_path: Path) -> None:
    made = commands(GKE / "bucket.sh", tmp_path)
    base = list(yaml.safe_load_all((GKE.parent / "base" / "serviceaccounts.yaml").read_text()))
    for account in base:
        assert any(f"/subject/ns/iddpm/sa/{account['metadata']['name']}" in line for line in made)
    assert json.loads((GKE / "lifecycle.json").read_text())["rule"]


def test_the_long_window_is_the_one_that_lint_knows() -> None:
    kubelet = yaml.safe_load((GKE / "nodepool-spot-120s.yaml").read_text())["kubeletConfig"]
    assert kubelet["shutdownGracePeriodSeconds"] - kubelet["shutdownGracePeriodCriticalPodsSeconds"] == max(WINDOWS)


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed: the flags of the commands are not checked")
def test_gcloud_knows_every_command_and_flag(tmp_path: Path) -> None:
    lines = [line for script in SCRIPTS for line in commands(script, tmp_path) if line.startswith("gcloud ")]
    assert len(lines) > 10
    assert _wrong(lines, tmp_path) == []
    broken = [line.replace("--project", "--projekt").replace("--spot", "--spott") for line in lines if "node-pools" in line]
    assert len(_wrong(broken, tmp_path)) == len(broken)


def _wrong(lines: list[str], folder: Path) -> list[str]:
    """Commands that gcloud does not know, or flags of them; its linter lets some flags through, but lists those it knows."""
    file = folder / "commands.json"
    file.write_text(json.dumps([{"command_string": line.strip()} for line in dict.fromkeys(lines)]))
    command = ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={file}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    verdicts = json.loads(done.stdout)
    assert len(verdicts) == len(set(lines)), done.stderr
    wrong = []
    for verdict in verdicts:
        known = {f"--{name}" for name in _names(verdict.get("args_structure"))}
        odd = [flag for flag in verdict.get("command_args", {}) if flag.startswith("--") and flag not in known]
        if odd or not verdict["success"]:
            wrong.append(f"{verdict['command_string']}: {odd} {verdict['error_message']}")
    return wrong


def _names(structure: object) -> list[str]:
    if isinstance(structure, dict):
        own = [structure["name"]] if isinstance(structure.get("name"), str) else []
        return own + [name for value in structure.values() for name in _names(value)]
    return [name for value in structure for name in _names(value)] if isinstance(structure, list) else []
