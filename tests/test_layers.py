"""The house: which part may import which, where Ray and torch may be, no cycles, no file too long; and proof that the judge sees."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEVELS = (
    ("errors", "signals", "storage", "spec", "presets", "cli", "kube"),
    ("stats", "diffusion", "models", "data"),
    ("parallel", "checkpoint"),
    ("build", "plan", "convert", "sinks", "train", "evaluate", "report"),
    ("runtime",),
    ("jobs",),
)
"""Imports go to a lower level or, inside a level, to a part listed before."""

PLACES = {part: (level, place) for level, parts in enumerate(LEVELS) for place, part in enumerate(parts)}
LONGEST, LONGEST_JOB = 400, 100


@dataclass(frozen=True)
class Import:
    """One import of one module, wherever in the file it stands."""

    line: int
    target: str


def violations(root: Path) -> list[str]:
    """Everything in `root/iddpm_ray` and `root/jobs` that breaks a rule of the house."""
    files = {_module(path, root): path for folder in ("iddpm_ray", "jobs") for path in sorted((root / folder).rglob("*.py"))}
    found: list[str] = []
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        text = path.read_text(encoding="utf-8")
        where = str(path.relative_to(root))
        imports = list(_imports(ast.parse(text, filename=where), module, is_package=path.name == "__init__.py"))
        most = LONGEST_JOB if where.startswith("jobs") else LONGEST
        found += [f"{where}: {text.count(chr(10))} lines, at most {most} are readable"] * (text.count("\n") > most)
        found += _of_module(module, where, imports)
        own = {_nearest(one.target, files) for one in imports} - {None, module}
        graph[module] = {target for target in own if target is not None}
    found += [f"cycle: {' -> '.join(cycle)}" for cycle in _cycles(graph)]
    return found


def _of_module(module: str, where: str, imports: list[Import]) -> Iterator[str]:
    part = _part(module)
    if part == "":
        yield from (
            f"{where}:{one.line} imports {one.target}: the package itself imports nothing of its own"
            for one in imports
            if _part(one.target)
        )
        return
    if part not in PLACES:
        yield f"{where}: {part} is no part of the house"
        return
    level = PLACES[part][0]
    for one in imports:
        other = _part(one.target)
        if other and other != part:
            if other not in PLACES:
                yield f"{where}:{one.line} imports {one.target}: {other} is no part of the house"
            elif PLACES[other] > PLACES[part]:
                yield f"{where}:{one.line} imports {one.target}: {part} may not know {other}"
        outside = one.target.split(".")[0]
        if outside == "ray" and part not in ("runtime", "jobs"):
            yield f"{where}:{one.line} imports {one.target}: only runtime and jobs may know Ray"
        if outside == "torch" and level == 0:
            yield f"{where}:{one.line} imports {one.target}: level 0 has no torch"
        if f"{one.target}.".startswith("torch.distributed.") and level == 1:
            yield f"{where}:{one.line} imports {one.target}: level 1 has no torch.distributed"
        if outside == "tests":
            yield f"{where}:{one.line} imports {one.target}: nothing stands on tests"


def _imports(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[Import]:
    """All modules that a file names: in import statements at any depth, by import_module, and as `torch.distributed`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (Import(node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                base = _absolute(node, module, is_package=is_package)
                yield from (Import(node.lineno, f"{base}.{alias.name}" if alias.name != "*" else base) for alias in node.names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"), args=[ast.Constant(str(name)), *_]
            ):
                yield Import(node.lineno, name)
            case ast.Attribute(value=ast.Name(id="torch"), attr="distributed"):
                yield Import(node.lineno, "torch.distributed")


def _absolute(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    above = module.split(".")[: len(module.split(".")) - node.level + is_package]
    return ".".join([*above, *([node.module] if node.module else [])])


def _module(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _part(module: str) -> str:
    """The part of the house that a module belongs to; empty for the package itself and for other people's modules."""
    words = module.split(".")
    if words[0] == "jobs":
        return "jobs"
    return words[1] if words[0] == "iddpm_ray" and len(words) > 1 and not words[1].startswith("__") else ""


def _nearest(target: str, files: Mapping[str, Path]) -> str | None:
    """The file that an import names: a module, or the one that holds the name."""
    while target:
        if target in files:
            return target
        target = target.rpartition(".")[0]
    return None


def _cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Modules that import each other round, a path for each knot."""
    cycles: list[list[str]] = []
    knotted: set[str] = set()
    for start in sorted(graph):
        if start not in knotted and (path := _way_back(start, graph)):
            cycles.append(path)
            knotted.update(path)
    return cycles


def _way_back(start: str, graph: Mapping[str, set[str]]) -> list[str]:
    paths = [[start]]
    seen: set[str] = set()
    while paths:
        path = paths.pop(0)
        for target in sorted(graph.get(path[-1], ())):
            if target == start:
                return [*path, start]
            if target not in seen:
                seen.add(target)
                paths.append([*path, target])
    return []


def test_house_is_in_order():
    assert violations(ROOT) == []


def test_house_is_not_empty():
    modules = [_module(path, ROOT) for path in (ROOT / "iddpm_ray").rglob("*.py")]
    assert {_part(module) for module in modules} >= {"errors", "spec", "presets", "cli"}
    assert len(modules) > 20


CLEAN = {
    "iddpm_ray/__init__.py": '__version__ = "1"\n',
    "iddpm_ray/errors.py": "import json\n",
    "iddpm_ray/storage/__init__.py": "from iddpm_ray.storage.files import read\n",
    "iddpm_ray/storage/files.py": "import fsspec\nfrom . import urls\n",
    "iddpm_ray/storage/urls.py": "from iddpm_ray.errors import UserError\n",
    "iddpm_ray/spec/spec.py": "from iddpm_ray import storage\nfrom iddpm_ray.errors import SpecError\n",
    "iddpm_ray/cli.py": "from iddpm_ray.spec.spec import JobSpec\n",
    "iddpm_ray/stats/report.py": "import torch\n",
    "iddpm_ray/diffusion/loss.py": "import torch\nfrom iddpm_ray import stats\nfrom iddpm_ray.stats import report\n",
    "iddpm_ray/parallel/gather.py": "import torch.distributed as dist\nfrom torch import distributed\n",
    "iddpm_ray/build.py": "from iddpm_ray.diffusion import loss\nfrom iddpm_ray.spec.spec import JobSpec\n",
    "iddpm_ray/plan.py": "from iddpm_ray import build\n",
    "iddpm_ray/train/loop.py": "from iddpm_ray.plan import make_plan\nfrom iddpm_ray.parallel.gather import gather\n",
    "iddpm_ray/runtime/launch.py": "import ray\nfrom ray.train import ScalingConfig\nfrom iddpm_ray.train import loop\n",
    "jobs/train.py": "import ray\nfrom iddpm_ray.runtime import launch\nfrom iddpm_ray import cli\n",
}


def house(root: Path, **changes: str) -> Path:
    """A small house in order, with files replaced or added."""
    for name, text in {**CLEAN, **changes}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_small_house_is_in_order(tmp_path):
    assert violations(house(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("iddpm_ray/spec/spec.py", "import torch\n", "iddpm_ray/spec/spec.py:1 imports torch: level 0 has no torch"),
        (
            "iddpm_ray/cli.py",
            "def f():\n    from torch.nn import Module\n",
            "iddpm_ray/cli.py:2 imports torch.nn.Module: level 0 has no torch",
        ),
        ("iddpm_ray/errors.py", "import ray\n", "only runtime and jobs may know Ray"),
        ("iddpm_ray/train/loop.py", "import ray.train\n", "only runtime and jobs may know Ray"),
        ("iddpm_ray/train/loop.py", "if True:\n    from ray import train\n", "iddpm_ray/train/loop.py:2 imports ray.train: only runtime"),
        ("iddpm_ray/train/loop.py", "import importlib\nimportlib.import_module('ray')\n", "only runtime and jobs may know Ray"),
        ("iddpm_ray/train/loop.py", "ray = __import__('ray')\n", "only runtime and jobs may know Ray"),
        ("iddpm_ray/stats/report.py", "import torch.distributed\n", "level 1 has no torch.distributed"),
        ("iddpm_ray/stats/report.py", "from torch import distributed as d\n", "level 1 has no torch.distributed"),
        ("iddpm_ray/stats/report.py", "from torch.distributed import all_reduce\n", "level 1 has no torch.distributed"),
        ("iddpm_ray/stats/report.py", "import torch\ntorch.distributed.barrier()\n", "report.py:2 imports torch.distributed: level 1"),
        ("iddpm_ray/errors.py", "from iddpm_ray import storage\n", "errors may not know storage"),
        ("iddpm_ray/spec/spec.py", "from iddpm_ray import presets\n", "spec may not know presets"),
        (
            "iddpm_ray/spec/spec.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from iddpm_ray.cli import x\n",
            "spec may not know cli",
        ),
        ("iddpm_ray/stats/report.py", "from iddpm_ray.diffusion.loss import x\n", "stats may not know diffusion"),
        ("iddpm_ray/stats/report.py", "from ..parallel import gather\n", "stats may not know parallel"),
        ("iddpm_ray/stats/__init__.py", "from ..train.loop import x\n", "stats may not know train"),
        ("iddpm_ray/parallel/gather.py", "from iddpm_ray.checkpoint import save\n", "parallel may not know checkpoint"),
        ("iddpm_ray/build.py", "from iddpm_ray import plan\n", "build may not know plan"),
        ("iddpm_ray/train/loop.py", "from iddpm_ray.evaluate import x\n", "train may not know evaluate"),
        ("iddpm_ray/train/loop.py", "import iddpm_ray.runtime.launch\n", "train may not know runtime"),
        ("iddpm_ray/runtime/launch.py", "from jobs.train import main\n", "runtime may not know jobs"),
        ("iddpm_ray/train/loop.py", "from iddpm_ray.helpers import x\n", "helpers is no part of the house"),
        ("iddpm_ray/utils.py", "", "iddpm_ray/utils.py: utils is no part of the house"),
        ("iddpm_ray/utils/a.py", "", "utils is no part of the house"),
        ("iddpm_ray/__init__.py", "from iddpm_ray.errors import UserError\n", "the package itself imports nothing of its own"),
        ("jobs/train.py", "from tests import golden\n", "nothing stands on tests"),
        ("iddpm_ray/build.py", "\n" * 401, "401 lines, at most 400"),
        ("jobs/train.py", "\n" * 101, "101 lines, at most 100"),
        (
            "iddpm_ray/storage/urls.py",
            "def f():\n    from iddpm_ray.storage.files import read\n",
            "cycle: iddpm_ray.storage.files -> iddpm_ray.storage.urls -> iddpm_ray.storage.files",
        ),
        (
            "iddpm_ray/storage/urls.py",
            "from iddpm_ray import storage\n",
            "cycle: iddpm_ray.storage -> iddpm_ray.storage.files -> iddpm_ray.storage.urls",
        ),
    ],
)
def test_one_planted_violation_is_found(tmp_path, name, text, says):
    found = violations(house(tmp_path, **{name: text}))
    if not says.startswith("cycle"):
        found = [line for line in found if not line.startswith("cycle")]  # an import upwards may close a circle as well
    assert len(found) == 1, found
    assert says in found[0]
