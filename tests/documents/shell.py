"""Lines of a shell as simple commands: prompts, comments, pipes and substitutions taken apart."""

import re
import shlex
from dataclasses import dataclass, field

PROGRAMS = frozenset(
    {
        *("bash", "cd", "curl", "docker", "export", "gcloud", "git", "helm", "kubectl", "kustomize", "make", "mkdir", "nvidia-smi"),
        *("pip", "python", ".venv/bin/python", "ray", "source", "tensorboard", "watch"),
    }
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_INNER = re.compile(r"\$\(([^()]*)\)")
_OPTIONAL = re.compile(r"\[(--[\w-]+)[^\]]*\]")  # [--step N|best] of a synopsis
_OPERATORS = frozenset({"|", "||", "&&", "&", ";", "(", ")"})
SUBSTITUTED = "SUBSTITUTED"


@dataclass(frozen=True)
class Command:
    """One simple command: what the environment is given, and its words, without redirections."""

    words: tuple[str, ...]
    settings: tuple[str, ...] = ()
    text: str = field(default="", compare=False)


def lines(text: str, *, every: bool) -> list[str]:
    """The command lines of a block, those that go on over a line's end joined.

    Args:
        every: each line is one; otherwise those behind a prompt, or else those that begin with a program of ours.

    Raises:
        ValueError: a quotation is not closed.
    """
    prompted = bool(re.search(r"^\$ ", text, re.MULTILINE))
    found: list[str] = []
    rest = iter(text.splitlines())
    for line in rest:
        if prompted and not line.startswith("$ "):
            continue
        line = line.removeprefix("$ ")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not (every or prompted) and _program(line) not in PROGRAMS:
            continue
        while True:
            bare = _without_comment(line)
            if bare.endswith("\\"):
                line = bare[:-1].rstrip() + " " + next(rest, "").strip()
                continue
            try:
                shlex.split(bare)
                break
            except ValueError:
                following = next(rest, None)
                if following is None:
                    raise
                line = f"{bare}\n{following}"
        found.append(bare.strip())
    return found


def commands(line: str) -> list[Command]:
    """The simple commands of one line, those inside `$(...)` first.

    Raises:
        ValueError: it is no line of a shell.
    """
    found: list[Command] = []
    for inner in _INNER.findall(line):
        found += commands(inner)
    line = _OPTIONAL.sub(r"[\1]", line)
    lexer = shlex.shlex(_INNER.sub(SUBSTITUTED, line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    parts: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if word in _OPERATORS:
            parts.append([])
        elif word in (">", ">>", "<", ">&"):
            next(words)
        else:
            parts[-1].append(word)
    for part in filter(None, parts):
        count = next((index for index, word in enumerate(part) if not _ASSIGNMENT.fullmatch(word)), len(part))
        found.append(Command(tuple(part[count:]), tuple(part[:count]), line))
    return found


def _without_comment(line: str) -> str:
    """The line up to a # that stands for itself outside quotation marks."""
    quote = ""
    for index, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (not index or line[index - 1].isspace()):
            return line[:index].rstrip()
    return line.rstrip()


def _program(line: str) -> str:
    """The first word that is no assignment."""
    return next((word for word in line.split() if not _ASSIGNMENT.fullmatch(word)), "")
