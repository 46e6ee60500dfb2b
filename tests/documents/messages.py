"""What the program can print: every text of its source, with gaps where values stand."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
GAP = "\0"
_LOGGED = re.compile(r"%(?:\.\d)?[sdf]")


@cache
def texts() -> tuple[str, ...]:
    """Every string of the package and the programs; a value in an f-string is a gap."""
    found: list[str] = []
    for path in [*(ROOT / "iddpm_ray").rglob("*.py"), *(ROOT / "jobs").glob("*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else GAP for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | documented:
                found.append(node.value)
    return tuple(_LOGGED.sub(GAP, text) for text in found)


def is_printed(message: str) -> bool:
    """Whether a text of the program has all parts of the message, in order; `…` stands for a value."""
    parts = [part for part in message.split("…") if part.strip()]
    return bool(parts) and any(_has(text, parts, open_end=message.endswith("…")) for text in texts())


def _has(text: str, parts: list[str], *, open_end: bool) -> bool:
    """Between two parts there is at least one value, and nothing else than values between the constant pieces that are named."""
    place = 0
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        piece = part.rstrip() if last and open_end else part
        at = text.find(piece if number else piece.lstrip(), place)
        if at < 0 or (number and GAP not in text[place:at]):
            return False
        place = at + len(piece if number else piece.lstrip())
    return True
