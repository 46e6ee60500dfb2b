"""Whether a command that begins with `python` works: script, options, overrides and spec, held against the programs themselves."""

import argparse
import ast
import contextlib
import re
import runpy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from documents import tables

from iddpm_ray import cli, presets, storage
from iddpm_ray.kube import render
from iddpm_ray.spec.overrides import override

ROOT = Path(__file__).parents[2]
PLACEHOLDER = re.compile(r"^\[|\.\.\.|^…$")


@dataclass(frozen=True)
class Page:
    """What the commands of a page may lean on.

    Attributes:
        specs: files by name, as text: those that a page shows, and the examples.
        variables: of the shell, that are set.
        scratch: an empty folder.
    """

    specs: Mapping[str, str] = field(default_factory=dict)
    variables: frozenset[str] = frozenset()
    scratch: Path = ROOT


def python(words: list[str], page: Page, loose: bool) -> list[str]:
    match words[1:]:
        case ["-c", code, *_]:
            return _code(code)
        case ["-m", module, *_]:
            known = module in tables.MODULES or (ROOT / f"{module.replace('.', '/')}.py").is_file()
            return [] if known else [f"python -m {module} is not used here"]
        case [script, *given] if script.endswith(".py"):
            if not (ROOT / script).is_file():
                return [f"{script} is not there"]
            match script:
                case "jobs/train.py":
                    return _train(given, page, loose)
                case "jobs/convert.py" if not loose:
                    return _convert(given)
                case _ if script.startswith("jobs/"):
                    return _argparse(script, given, page, loose)
                case _:
                    return _options_of_source(script, given)
        case _:
            return [f"python {' '.join(words[1:])}: no script"]


def _train(given: list[str], page: Page, loose: bool) -> list[str]:
    given = [word for word in given if not PLACEHOLDER.search(word)]
    names = [word for word in given if word.endswith((".yaml", ".yml")) and "=" not in word]
    for name in names:
        if "://" in name:
            given.remove(name)
            given += ["run.name=a", "run.output_dir=b", "data.path=c", "train.duration=1 steps"]
        else:
            path = _spec_file(name, page)
            if isinstance(path, str):
                return [path]
            given[given.index(name)] = str(path)
    if loose:
        cli._Words.of(given)
        for word in given:
            if "=" in word and not word.startswith("-"):
                override({}, word)
        return []
    cli.parse(given)
    return []


def _spec_file(name: str, page: Page) -> Path | str:
    """The file, or what is wrong with it."""
    if (ROOT / name).is_file():
        return ROOT / name
    text = page.specs.get(name)
    if text is None:
        return f"no page shows a spec {name}, and there is no such file"
    path = page.scratch / Path(name).name
    path.write_text(text, encoding="utf-8")
    return path


@cache
def _parser(script: str) -> argparse.ArgumentParser | None:
    names = runpy.run_path(str(ROOT / script))
    if "parser" in names:  # declared beside the part of the package that the program belongs to
        return names["parser"](None)
    made = names.get("_parser")
    return None if made is None else made()


def _argparse(script: str, given: list[str], page: Page, loose: bool) -> list[str]:
    parser = _parser(script)
    if parser is None:
        return [f"{script} takes no options: {' '.join(given)}"] if given else []
    wrong = _odd_options(parser, given)
    if wrong or loose:
        return wrong
    try:
        with _raising():
            wanted = parser.parse_args(given)
    except _Refused as error:
        return [f"{script}: {error}"]
    if script == "jobs/cluster.py" and isinstance(getattr(wanted, "spec", None), list):
        return _cluster(wanted, page)
    return []


def _cluster(wanted: argparse.Namespace, page: Page) -> list[str]:
    if "://" in wanted.spec[0]:
        return []
    if "=" in wanted.spec[0] or wanted.spec[0].startswith("--"):
        return [f"{wanted.spec[0]} is no spec file"]
    path = _spec_file(wanted.spec[0], page)
    if isinstance(path, str):
        return [path]
    spec = cli.parse([str(path), *(re.sub(r"\$\w+", "x", word) for word in wanted.spec[1:])]).spec  # a variable has some value
    assert spec is not None
    to_a_ray = wanted.command == "submit" and (wanted.address or "RAY_API_SERVER_ADDRESS" in page.variables)
    if wanted.command in ("render", "submit") and not (to_a_ray and storage.is_local(spec.run.output_dir)):
        render.job(spec)
    return []


def _convert(given: list[str]) -> list[str]:
    own, words = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    parser = _parser("jobs/convert.py")
    assert parser is not None
    if wrong := _odd_options(parser, own):
        return wrong
    try:
        with _raising():
            wanted, more = parser.parse_known_args(own)
    except _Refused as error:
        return [f"jobs/convert.py: {error}"]
    for word in [*getattr(wanted, "fields", []), *more]:
        override({}, word)
    if (name := getattr(wanted, "preset", None)) is not None and name not in presets.names():
        return [f"there is no preset {name}"]
    return ["no flags behind --"] if wanted.command == "flags" and not words else []


class _Refused(Exception):
    """A command line that argparse does not take."""


@contextlib.contextmanager
def _raising() -> Iterator[None]:
    def error(self: argparse.ArgumentParser, message: str) -> None:
        raise _Refused(message)

    before, argparse.ArgumentParser.error = argparse.ArgumentParser.error, error  # type: ignore[method-assign] put back below
    try:
        yield
    finally:
        argparse.ArgumentParser.error = before


def _odd_options(parser: argparse.ArgumentParser, given: Sequence[str]) -> list[str]:
    """Long options that the parser, or the sub-command that is named, does not have; argparse itself would take beginnings of them."""
    known = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = next((word for word in given if not word.startswith("-")), None)
            if chosen is None or (chosen not in action.choices and "|" not in chosen):
                return [f"there is no command {chosen}; there are {', '.join(action.choices)}"]
            for name, inner in action.choices.items():
                known |= set(inner._option_string_actions) if name in chosen.split("|") else set()
    asked = [word.strip("[]").partition("=")[0] for word in given if re.match(r"\[?--\w", word)]
    return [f"there is no option {name}" for name in asked if name not in known]


def _options_of_source(script: str, given: Sequence[str]) -> list[str]:
    """Options of a program that is costly to import, out of its source."""
    text = (ROOT / script).read_text(encoding="utf-8")
    known = set(re.findall(r"add_argument\(\s*\"(--[\w-]+)\"", text))
    return [f"{script} has no option {word}" for word in given if word.startswith("--") and word.partition("=")[0] not in known]


def _code(code: str) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("iddpm_ray"):
            file = ROOT / f"{str(node.module).replace('.', '/')}.py"
            defined = file.read_text(encoding="utf-8") if file.is_file() else ""
            found += [f"{node.module} has no {one.name}" for one in node.names if not re.search(rf"\b{one.name}\b", defined)]
    return found
