"""What the project says of itself is true: commands, pins, presets, licence."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from iddpm_ray import cli
from iddpm_ray.spec.spec import JobSpec

ROOT = Path(__file__).parent.parent
SOURCES = ("iddpm_ray", "jobs", "tests", "docs", "k8s", "images", ".ci")
PARTS = {"pydantic-core": "pydantic"}  # released together, the one pins the other
TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".json", ".sh", ""}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project_files() -> list[Path]:
    top = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in TEXT]
    below = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in TEXT]
    return [path for path in top + below if "__pycache__" not in path.parts]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), flags=re.MULTILINE))


def pins() -> dict[str, str]:
    lines = [line for line in read("constraints.txt").splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def requirements(*extras: str) -> list[Requirement]:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    texts = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    return [requirement for requirement in map(Requirement, texts) if requirement.name != "iddpm_ray"]


def test_every_make_command_of_the_readme_exists() -> None:
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", read("README.md") + read(".ci/run")))
    assert {"demo", "test", "test-all", "check", "bench"} <= named
    assert named <= make_targets()


def test_every_target_is_declared_phony() -> None:
    declared = re.search(r"^\.PHONY:(.*)$", read("Makefile"), flags=re.MULTILINE)
    assert declared is not None
    assert set(declared.group(1).split()) == make_targets()


def test_every_program_of_the_readme_exists() -> None:
    programs = set(re.findall(r"\b(jobs/\w+\.py|tests/[\w/]+\.py)", read("README.md") + read("Makefile") + read("docs/architecture.md")))
    assert programs
    assert [name for name in sorted(programs) if not (ROOT / name).is_file()] == []


def test_ci_runs_exactly_the_readmes_test_command() -> None:
    commands = [line for line in read(".ci/run").splitlines() if line and not line.startswith("#")]
    assert commands == ["set -eu", 'cd "$(dirname "$0")/.."', "make test"]
    assert re.search(r"^make test\b", read("README.md"), flags=re.MULTILINE)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_presets_named_in_the_readme_exist() -> None:
    named = {name for text in (read("README.md"), read("jobs/demo.py")) for name in re.findall(r"--preset[\s\",]+([\w-]+)", text)}
    assert {"digits", "imagenet64-uncond"} <= named
    assert [name for name in sorted(named) if not (ROOT / "iddpm_ray" / "presets" / f"{name}.yaml").is_file()] == []


def test_the_readmes_spec_is_accepted(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", read("README.md"), flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "cats.yaml").write_text(block)
    spec = cli.parse([str(tmp_path / "cats.yaml")]).spec
    assert spec is not None
    assert spec.run.name == "cats"


def test_the_readmes_sections_are_the_specs() -> None:
    table = read("README.md").partition("### The spec")[2].partition("\n###")[0]
    named = [name for line in table.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert named == list(JobSpec.model_fields)


def test_files_linked_from_the_readme_exist() -> None:
    linked = re.findall(r"\]\((?!https?://)([^)#]+)\)", read("README.md"))
    assert "LICENSE" in linked
    assert [name for name in linked if not (ROOT / name).exists()] == []


def test_the_changelog_has_an_unreleased_section_with_something_in_it() -> None:
    _, _, rest = read("CHANGELOG.md").partition("## [Unreleased]")
    section = rest.split("\n## ")[0]
    assert re.search(r"^### (Added|Changed|Deprecated|Removed|Fixed|Security)$", section, flags=re.MULTILINE)
    assert re.search(r"^- \S", section, flags=re.MULTILINE)


def test_the_licence_is_mit() -> None:
    assert read("LICENSE").startswith("MIT License\n\nCopyright (c)")
    assert 'license = "MIT"' in read("pyproject.toml")


def test_no_file_names_a_place_of_one_machine() -> None:
    places = re.compile("|".join(f"/{place}/" for place in ("home", "root", "work", "Users", "opt/pypi", "opt/wheels")))
    found = {
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in project_files()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        for match in [places.search(line)]
        if match and "/home/ray" not in line  # the home of Ray's own images
    }
    assert found == set()


def test_pins_are_exact_and_name_no_registry() -> None:
    for line in read("constraints.txt").splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line), line
    assert pins()["torch"] == "2.13.0"


@pytest.mark.parametrize(
    "requirement", requirements("s3", "demo", "convert", "wandb", "mlflow", "test"), ids=lambda requirement: requirement.name
)
def test_every_requirement_is_pinned_within_its_range(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_every_package_imported_by_the_product_is_a_requirement() -> None:
    declared = {canonicalize_name(requirement.name) for requirement in requirements("s3", "demo", "convert", "wandb", "mlflow")}
    providers = packages_distributions()
    undeclared: set[str] = set()
    for path in [*(ROOT / "iddpm_ray").rglob("*.py"), *(ROOT / "jobs").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"iddpm_ray"}:
                if not declared & {PARTS.get(name, name) for name in map(canonicalize_name, providers.get(top, []))}:
                    undeclared.add(f"{path.relative_to(ROOT)}: {top}")
    assert undeclared == set()
