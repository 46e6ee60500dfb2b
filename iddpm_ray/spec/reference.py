"""The reference of all fields as a page for people, made from the schema alone: `python jobs/train.py --reference > docs/spec.md`."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from iddpm_ray.spec.fields import SpecField, as_plain, fields_of, section_paths
from iddpm_ray.spec.schema import json_schema
from iddpm_ray.spec.spec import JobSpec

Data = Mapping[str, Any]

_COLUMNS = ("field", "type", "default", "unit", "mark", "what it is")
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
_HEAD = """\
# Every field of a spec

Made from the schema by `python jobs/train.py --reference`; a test holds this page against it.

A spec is a YAML file of sections. A field is written `section: {field: value}` in the file and `section.field=value` on the
command line; what is left out has its default. `needed` has none. Unknown keys are refused.

* **identity** fields decide what is computed. A run directory whose saved spec differs in one of them is another run, and the
  start is refused, with the difference. The digest that checkpoints carry is made of them.
* **may change** fields may have another value at the next start; `--dry-run` shows what changed since the last one.

A *duration* is a number and a unit: `5000 steps`, `2M samples`, `1.5k steps`, `3 epochs`, and, where the type says *or clock
time*, `15 min` or `2 h`. `k`, `M` and `B` stand for 10^3, 10^6 and 10^9.

At the top of a file `preset: NAME` names a recipe that the rest is laid over:
{presets}.

Rules between fields are in `iddpm_ray/spec/checks.py`; `--dry-run` applies them all and starts nothing.
"""


def reference(*, presets: Sequence[str]) -> str:
    """Every field with type, default, unit, mark and description, as Markdown, a table a section.

    Args:
        presets: names that the key `preset` may have.
    """
    schema = json_schema(presets=presets)
    parts = [_HEAD.replace("{presets}", textwrap.fill(", ".join(f"`{name}`" for name in presets), width=140, break_on_hyphens=False))]
    for path in section_paths(JobSpec):
        section, described = _section(schema, path)
        rows = [_row(field, section["properties"]) for field in fields_of(JobSpec) if field.path.rpartition(".")[0] == path]
        lines = [f"## {path}", "", f"{described[0].upper()}{described[1:]}.", "", _line(_COLUMNS), _line(["---"] * len(_COLUMNS)), *rows]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _section(schema: Data, path: str) -> tuple[Data, str]:
    """The definition of a section and what it is, in words."""
    here, described = schema, ""
    for name in path.split("."):
        part = here["properties"][name]
        one = next((choice for choice in part.get("anyOf", ()) if "$ref" in choice), part)
        here, described = schema["$defs"][one["$ref"].rpartition("/")[2]], part["description"]
    return here, described


def _row(field: SpecField, properties: Data) -> str:
    name = field.path.rpartition(".")[2]
    default = "needed" if field.required else f"`{_written(as_plain(field.default))}`"
    cells = [f"`{name}`", type_in_words(properties[name]), default, field.unit, field.mark.replace("_", " "), field.description]
    return _line([cell.replace("|", "\\|") for cell in cells])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _written(value: Any) -> str:
    """A value as a file would hold it; durations and other text without quotes, where YAML needs none."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list):
        return f"[{', '.join(_written(one) for one in value)}]"
    return json.dumps(value)


def type_in_words(part: Data) -> str:
    """What values a field may have: `whole number, at least 1`, or null."""
    if "anyOf" in part:
        return ", or ".join(type_in_words(one) for one in part["anyOf"])
    if "enum" in part or "const" in part:
        return ", ".join(f"`{one}`" for one in part.get("enum", [part.get("const")]))
    if isinstance(part.get("type"), list):
        return ", or ".join(type_in_words({**part, "type": kind}) for kind in part["type"])
    match part:
        case {"type": "string", "pattern": pattern} if "samples" in pattern:
            return "duration or clock time" if "hours" in pattern else "duration"
        case {"type": "array", "prefixItems": items}:
            kinds = [type_in_words(one) for one in items]
            return f"list of {len(items)}, each a {kinds[0]}" if len(set(kinds)) == 1 else f"list [{', '.join(kinds)}]"
        case {"type": "array", "items": items}:
            return f"list of {type_in_words(items).replace('number', 'numbers', 1)}"
        case _:
            bounds = [f"{words} {part[name]}" for name, words in _BOUNDS.items() if name in part and not _silent(part, name)]
            return ", ".join([_WORDS[part["type"]], *bounds])


def _silent(part: Data, name: str) -> bool:
    """Whether a bound says nothing to a person: what 64 bits hold."""
    return name == "exclusiveMaximum" and part[name] >= 2**63
