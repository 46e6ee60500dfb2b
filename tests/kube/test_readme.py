"""Every command of k8s/README.md is one that works: its program exists, its words are known, the places it names are there."""

import re
import runpy
from pathlib import Path

import pytest

from iddpm_ray.cli import read_spec

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "k8s" / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    {line.partition("#")[0].strip() for block in re.findall(r"```(?:sh)?\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()}
    | set(re.findall(r"`((?:python|bash|kubectl) [^`]+)`", TEXT))
)
COMMANDS = [one for one in COMMANDS if re.match(r"(python|bash|kubectl) ", one)]


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 10
    assert {one.split()[0] for one in COMMANDS} == {"python", "bash", "kubectl"}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_the_readme(command: str) -> None:
    program, *words = command.split()
    if program == "bash":
        assert (ROOT / words[0]).is_file()
    elif program == "kubectl":
        assert words[0] in ("apply", "get")
        assert all((ROOT / word).is_dir() for word in words if word.startswith("k8s/"))
    else:
        assert (ROOT / words[0]).is_file()
        if words[0] == "jobs/cluster.py":
            names = runpy.run_path(str(ROOT / "jobs" / "cluster.py"))
            wanted = names["parser"](None).parse_args(words[1:])
            assert wanted.command in ("lint", "render", "plan", "preflight", "submit", "status", "stop", "drill")


def test_the_tree_that_is_shown_is_the_tree_that_is_there() -> None:
    shown = re.search(r"```\n(base/.*?)```", TEXT, re.DOTALL)
    assert shown is not None
    folders = re.findall(r"^(\w+)/", shown[1], re.MULTILINE)
    assert sorted(folders) == sorted(path.name for path in (ROOT / "k8s").iterdir() if path.is_dir())
    for name in re.findall(r"(spot-120s|monitoring-\w+)", shown[1]):
        assert (ROOT / "k8s" / "components" / name / "kustomization.yaml").is_file()


def test_the_examples_are_specs() -> None:
    for name in re.findall(r"k8s/examples/[\w-]+\.yaml", TEXT):
        assert read_spec(str(ROOT / name)).kube.image
