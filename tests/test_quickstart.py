"""docs/quickstart.md, followed to the letter: every command of the page, in its order, on the pictures that it proposes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import markdown
from documents.shell import lines

from iddpm_ray.sinks.jsonl import read_rows

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
NOT_HERE = ("git ", "cd ", "make ", "source ", "tensorboard ")  # the environment is there, and a server would not end

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def commands() -> Iterator[str]:
    for block in markdown.blocks(PAGE):
        if block.language == "sh":
            yield from (line for line in lines(block.text, every=True) if not line.startswith(NOT_HERE))


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    """Every command succeeds, what is shown of the plan is what is printed, and the run's directory holds what the table says."""
    (spec,) = [block.text for block in markdown.blocks(PAGE) if block.language == "yaml"]
    (tmp_path / "first.yaml").write_text(spec)
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    said: dict[str, str] = {}
    for command in commands():
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        print(f"$ {command}\n{done.stdout[-3000:]}{done.stderr[-2000:]}", flush=True)
        assert done.returncode == 0, command
        said[command] = done.stdout
    plan = next(block.text for block in markdown.blocks(PAGE) if not block.language)
    assert plan in said["python jobs/train.py first.yaml --dry-run"]
    assert "finished at step 400" in said["python jobs/train.py first.yaml"]
    again = said['python jobs/train.py first.yaml train.duration="600 steps"']
    assert "resuming step 400 of" in again
    assert "finished at step 600" in again
    assert read_rows(str(tmp_path / "runs/first/metrics/train.jsonl"))[-1]["step"] == 600
    assert _missing(tmp_path / "runs" / "first") == []


def _missing(run: Path) -> list[str]:
    """Files and folders of the page's table that the run does not have; what only `optim.compile` makes is left out."""
    table = PAGE.partition("| in `runs/first` |")[2]
    named = [name for line in table.splitlines() if line.startswith("| ") for name in re.findall(r"`([\w./-]+)`", line.split("|")[1])]
    assert len(named) > 10
    places = [run, *sorted((run / "checkpoints").iterdir())]
    kept = {name.replace("step-00000400.a0001", "") for name in named} - {"compiled/"}
    return [name for name in sorted(kept) if not any((place / name).exists() for place in places)]
