"""What a Markdown page holds: fenced blocks, code in running text, links, and the anchors of its headings as GitHub makes them."""

import re
from dataclasses import dataclass

_FENCE = re.compile(r"^( *)(```+)([^\n`]*)\n(.*?)^\1\2[ ]*$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the lines in it, and the line of the page that it begins at."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """Every fenced block."""
    return [Block(one[3].strip(), one[4], page[: one.start()].count("\n") + 1) for one in _FENCE.finditer(page)]


def prose(page: str) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page)


def spans(page: str) -> list[str]:
    """Code in running text, each on one line."""
    return [" ".join(one[2].split()) for one in _SPAN.finditer(prose(page))]


def links(page: str) -> list[str]:
    """Targets of links and pictures."""
    return _LINK.findall(_SPAN.sub("", prose(page)))


def anchors(page: str) -> set[str]:
    """What may stand behind # in a link to the page."""
    found: dict[str, int] = {}
    made: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = found[slug] = found.get(slug, -1) + 1
        made.add(slug if not count else f"{slug}-{count}")
    return made
