"""What is not true on a page: commands, specs and manifests that do not work; links, files, fields and options that are not there."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from documents import markdown, tables
from documents.own_programs import Page
from documents.programs import flaws
from documents.shell import PROGRAMS, commands, lines

from iddpm_ray import cli, presets
from iddpm_ray.errors import UserError
from iddpm_ray.kube.lint import judge
from iddpm_ray.kube.objects import is_manifest, read_objects
from iddpm_ray.spec.fields import fields_of
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping, parse_yaml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "k8s" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELLS = ("sh", "console")
NEEDED: dict[str, Any] = {"run": {"name": "a", "output_dir": "b"}, "data": {"path": "c"}, "train": {"duration": "1 steps"}}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def wrong_commands(text: str, scratch: Path) -> list[str]:
    """What is wrong with the commands of a page, each with the line of its block or the words around it."""
    about, found = page(text, scratch), []
    for block in markdown.blocks(text):
        if block.language in ("", *SHELLS):
            try:
                told = lines(block.text, every=block.language == "sh")
                found += [f"line {block.line}: {one.text}: {flaw}" for line in told for one in commands(line) for flaw in flaws(one, about)]
            except ValueError as error:
                found.append(f"line {block.line}: {error}")
    for span in spoken(text):
        found += [f"`{span}`: {flaw}" for one in commands(span) for flaw in flaws(one, about, loose=True)]
    return found


def spoken(text: str) -> list[str]:
    """Commands in running text; several in one, as in render|lint, are no command."""
    return [span for span in markdown.spans(text) if " " in span and span.split()[0] in PROGRAMS and "|" not in span and "'" not in span]


def page(text: str, scratch: Path) -> Page:
    variables = set(re.findall(r"^export (\w+)=", text_of(ROOT / "k8s" / "gke" / "variables.sh"), re.MULTILINE))
    assigned = re.findall(r"^(?:\$ )?(?:export .*|[A-Z]\w*=.*)", text, re.MULTILINE)
    variables |= {variable for line in assigned for variable in re.findall(r"\b([A-Z]\w*)=", line)} | {"HOME", "PWD"}
    return Page(specs() | shown_in(text), frozenset(variables), scratch)


@cache
def specs() -> dict[str, str]:
    """The examples by name, and the specs that pages show under another one."""
    shown = {one: block for path in reversed(PAGES) for one, block in shown_in(text_of(path)).items()}
    return shown | {f"{one}.yaml": text_of(ROOT / "k8s" / "examples" / f"{one}.yaml") for one in ("cats", "digits-cpu")}


def shown_in(text: str) -> dict[str, str]:
    """The YAML blocks of a page that begin with a comment of their name."""
    blocks = [block.text for block in markdown.blocks(text) if block.language == "yaml"]
    return {found[1]: block for block in blocks if (found := re.match(r"# (\S+\.yaml)\n", block))}


def wrong_yaml(text: str) -> list[str]:
    found: list[str] = []
    for block in markdown.blocks(text):
        if block.language != "yaml":
            continue
        try:
            objects = read_objects(block.text, source="the block")
            if all(is_manifest(one) for one in objects):
                found += [str(finding) for finding in judge(objects, where=f"line {block.line}")]
            elif all(one.get("kind") in ("Kustomization", "Component") for one in objects):
                found += [
                    f"line {block.line}: {one} is not there" for one in _named(objects) if not list((ROOT / "k8s").rglob(Path(one).name))
                ]
            else:
                load_mapping(_laid_over(parse_yaml(block.text)))
        except UserError as error:
            found.append(f"line {block.line}: {error}")
    return found


def _named(objects: list[dict[str, Any]]) -> list[str]:
    return [one for each in objects for key in ("resources", "components") for one in each.get(key) or []]


def _laid_over(given: dict[str, Any]) -> dict[str, Any]:
    """A part of a spec as a whole one; a value that ends in ... is not said."""
    below = parse_yaml(presets.text(given.pop("preset"))) if "preset" in given else {}
    whole: dict[str, Any] = {section: dict(values) for section, values in {**NEEDED, **below}.items()}
    for section, values in given.items():
        if not isinstance(values, dict):
            whole[section] = values
            continue
        said = {key: value for key, value in values.items() if not (isinstance(value, str) and value.endswith("..."))}
        whole[section] = {**NEEDED.get(section, {}), **whole.get(section, {}), **said}
    if whole.get("checkpoint", {}).get("keep_best") or whole.get("evaluate", {}).get("every"):
        whole["evaluate"].setdefault("inception_sha256", "0" * 64)
    if "classifier" in str(whole.get("evaluate", {}).get("features")):
        whole["data"].setdefault("labels", "folder")
    return whole


def broken_links(path: Path, text: str) -> list[str]:
    found: list[str] = []
    for link in markdown.links(text):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (path.parent / target).resolve() if target else path
        if not file.exists() or not file.is_relative_to(ROOT):
            found.append(f"{link} leads nowhere")
        elif anchor and (file.suffix != ".md" or anchor not in markdown.anchors(text if file == path else text_of(file))):
            found.append(f"{link}: no such heading")
    return found


def lost_places(text: str) -> list[str]:
    """Files, and tests in them, that running text names in code and that are not there."""
    found: list[str] = []
    for span in markdown.spans(text):
        file, _, test = span.partition("::")
        if not re.fullmatch(r"(docs|iddpm_ray|jobs|k8s|tests)/[\w./-]+", file) or file.endswith("/"):
            continue
        if not (ROOT / file).exists():
            found.append(f"{file} is not there")
        elif test and f"def {test}(" not in text_of(ROOT / file):
            found.append(f"{file} has no {test}")
    return found


def unknown_names(text: str) -> list[str]:
    """Fields and options that running text names in code, and that neither the spec, a module nor a program has."""
    fields, sections = {field.path for field in fields_of(JobSpec)}, "|".join(JobSpec.model_fields)
    found: list[str] = []
    for span in markdown.spans(text):
        field = re.match(rf"((?:{sections})\.[a-z_][a-z_.0-9]*)(?:[=:]|$)", span)
        if field and field[1] not in fields and not (ROOT / "iddpm_ray" / f"{field[1].replace('.', '/')}.py").is_file():
            found.append(f"there is no field {field[1]}")
        option = re.match(r"(--[a-z][\w-]*)", span)
        if option and option[1] not in options():
            found.append(f"no program has the option {option[1]}")
    return found


@cache
def options() -> frozenset[str]:
    """Every option of every program of ours, by its source, and what the tables allow of others."""
    programs = [*(ROOT / "jobs").glob("*.py"), *(ROOT / "iddpm_ray").rglob("*.py"), ROOT / "tests/chaos.py", ROOT / "tests/bench/bench.py"]
    ours = "".join(map(text_of, programs))
    others = {one for table in (tables.KUBECTL, tables.GCLOUD, tables.HELM, tables.DOCKER) for known in table.values() for one in known}
    ways = re.findall(r"f\"--\{prefix\}([\w-]+)\"", ours)
    prefixed = {f"--{prefix}{way}" for prefix in ("", "base-") for way in ways}
    return frozenset({*re.findall(r"\"(--[a-z][\w-]*)\"", ours), *cli.FLAGS, *others, *prefixed, "--job-id"})


def quoted(text: str) -> list[str]:
    """What a runbook says that the program prints: code of several words in a paragraph with **Says**, unless it is a command."""
    told = [part for part in markdown.prose(text).split("\n\n") if "**Says**" in part or "**says**" in part]
    found = [span for part in told for span in markdown.spans(part)]
    return [span for span in found if (" " in span or "…" in span) and span != "…" and span.split()[0] not in PROGRAMS]
