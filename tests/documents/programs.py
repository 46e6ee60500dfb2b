"""Whether a command of the documents is one that works: its program is there, and knows every word and option that it is given."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from documents import tables
from documents.own_programs import PLACEHOLDER, ROOT, Page, python
from documents.shell import SUBSTITUTED, Command, commands

from iddpm_ray.errors import UserError

TREE = tuple(sorted(f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".") and path.name != "demo"))


def flaws(command: Command, page: Page, *, loose: bool = False) -> list[str]:
    """What is wrong with a command; nothing if it works.

    Args:
        loose: it stands in running text, where words may be left out.
    """
    words = [*command.words]
    loose = loose or any(PLACEHOLDER.search(word) for word in words)
    found = [*_unset(command, page), *_missing(words)]
    if not words:
        return found
    try:
        found += _CHECKS.get(words[0], _unknown)(words, page, loose)
    except UserError as error:
        found.append(str(error))
    return found


def _unknown(words: list[str], page: Page, loose: bool) -> list[str]:
    return [f"{words[0]} is no program that the documents use"]


def _unset(command: Command, page: Page) -> Iterator[str]:
    for name in re.findall(r"\$\{?([A-Za-z_]\w*)", command.text):
        if name not in page.variables:
            yield f"${name} is set nowhere: k8s/gke/variables.sh does not, nor does the page before"


def _missing(words: Sequence[str]) -> Iterator[str]:
    """Places of our tree that are not there."""
    for word in words:
        for part in re.split(r"[=:,]", word):
            bare = part.removeprefix("./")
            if bare.startswith(TREE) and not re.search(r"[*$<>{]|[A-Z]{3}", bare) and not (ROOT / bare).exists():
                yield f"{bare} is not there"


def _make(words: list[str], page: Page, loose: bool) -> list[str]:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    return [f"make has no target {word}" for word in words[1:] if "=" not in word and not word.startswith("-") and word not in targets]


def _ray(words: list[str], page: Page, loose: bool) -> list[str]:
    from ray.scripts.scripts import cli as ray  # seconds

    here: Any = ray
    given, behind = (words[1 : words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words[1:], [])
    while isinstance(here, click.Group) and given and not given[0].startswith("-"):
        name = given.pop(0)
        if name not in here.commands:
            return [f"ray has no command {name}"]
        here = here.commands[name]
    try:
        here.make_parser(click.Context(here)).parse_args(given)
    except click.UsageError as error:
        return [f"{' '.join(words[:3])}: {error.format_message()}"]
    if not behind:
        return []
    return [one for inner in commands(" ".join(behind)) for one in flaws(inner, page, loose=loose)]


def _kubectl(words: list[str], page: Page, loose: bool) -> list[str]:
    inner = words[words.index("--") + 1 :] if "--" in words else []
    given = words[1 : words.index("--")] if "--" in words else words[1:]
    found = _by_table("kubectl", given, tables.KUBECTL)
    kinds = [word for word in given[1:2] if given[0] in ("get", "describe", "delete") and word[0] not in "-$"]
    for kind in [one for word in kinds for one in word.split("/")[0].split(",")]:
        if kind.lower() not in tables.KINDS:
            found.append(f"kubectl knows no {kind}")
    if inner:
        found += flaws(Command(tuple(inner)), page, loose=loose)
    return found


def _by_table(program: str, given: Sequence[str], table: Mapping[str, set[str]]) -> list[str]:
    """The longest words of the table that the command begins with, then its options."""
    plain = [word for word in given if not word.startswith("-")]
    name = next((" ".join(plain[:count]) for count in (5, 4, 3, 2, 1) if " ".join(plain[:count]) in table), None)
    if name is None:
        return [f"{program} {' '.join(plain[:3])} is not in the table of what the documents may use"]
    asked = [word.partition("=")[0] for word in given if re.match(r"--?[a-z]", word)]
    return [f"{program} {name} has no option {one}" for one in asked if one not in table[name]]


def _bash(words: list[str], page: Page, loose: bool) -> list[str]:
    return [] if (ROOT / words[1]).is_file() else [f"{words[1]} is not there"]


def _nothing(words: list[str], page: Page, loose: bool) -> list[str]:
    """A program that every machine has, of which only the places are checked."""
    return []


_CHECKS = {
    "python": python,
    ".venv/bin/python": python,
    "make": _make,
    "ray": _ray,
    "bash": _bash,
    "kubectl": _kubectl,
    "gcloud": lambda words, page, loose: _by_table("gcloud", words[1:], tables.GCLOUD),
    "helm": lambda words, page, loose: _by_table("helm", words[1:], tables.HELM),
    "docker": lambda words, page, loose: _by_table("docker", words[1:], tables.DOCKER),
    "watch": lambda words, page, loose: flaws(Command(tuple(words[1:])), page, loose=loose),
    **dict.fromkeys(
        (
            "base64",
            "cat",
            "cd",
            "cp",
            "curl",
            "df",
            "export",
            "git",
            "grep",
            "head",
            "ls",
            "mkdir",
            "nvidia-smi",
            "pip",
            "source",
            "tensorboard",
            SUBSTITUTED,
        ),
        _nothing,
    ),
}
