"""Spec files: a plain subset of YAML 1.2 in, readable YAML out, the same spec again from what was written."""

import re
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from iddpm_ray.errors import SpecError
from iddpm_ray.spec.fields import as_plain, fields_of, value_of
from iddpm_ray.spec.problems import from_validation, refuse
from iddpm_ray.spec.spec import JobSpec

LONGEST = 2**20  # characters of a spec file
DEEPEST = 20  # levels of nesting

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Scalars of YAML 1.2 (1e-4 is a number; yes, on and 12:30 are text); no anchors, aliases, tags or repeated keys."""

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 PyYAML's own class attribute
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "anchor", None) is not None:
            raise _refused("an anchor or alias (& or *)", event, fix="write the value out, or put it in quotes if it is text")
        if getattr(event, "tag", None) is not None:
            raise _refused(f"the tag {event.tag}", event, fix="leave it out: types come from the fields")
        self._depth += 1
        if self._depth > DEEPEST:
            raise _refused(f"more than {DEEPEST} levels of nesting", event, fix="a spec has at most four")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != f"{_TAG}str":
                raise _refused("a key that is no text", key, fix="keys are names of fields")
            if key.value in seen:
                raise _refused(f"the key {key.value} twice", key, fix="keep one of them")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper, which quotes text that YAML 1.1 would take for something else; here also what only YAML 1.2 would."""

    yaml_implicit_resolvers = {key: list(value) for key, value in yaml.SafeDumper.yaml_implicit_resolvers.items()}  # noqa: RUF012 PyYAML's own class attribute

    def ignore_aliases(self, data: object) -> bool:
        return True


for _tag, _pattern, _first in (
    ("null", _NULL, ["~", "n", "N", ""]),
    ("bool", _BOOL, list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _whole = re.compile(rf"(?:{_pattern.pattern})\Z")
    _Loader.add_implicit_resolver(_TAG + _tag, _whole, _first)
    _Dumper.add_implicit_resolver(_TAG + _tag, _whole, _first)

_Loader.add_constructor(f"{_TAG}int", lambda loader, node: int(node.value))
_Loader.add_constructor(f"{_TAG}float", lambda loader, node: float(re.sub(r"\.(?=inf|nan)", "", node.value.lower())))
_Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence(f"{_TAG}seq", data, flow_style=True)
)  # a list of numbers reads best on one line


def parse_yaml(text: str, *, source: str = "the spec") -> dict[str, Any]:
    """The mapping that a spec file holds; an empty file is an empty mapping.

    Args:
        source: what to call the file in messages.

    Raises:
        SpecError: with line and column where the text is no such file.
    """
    value = parse_value(text, source=source)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SpecError(f"{source} holds a {_kind(value)}", fix="a spec is a mapping of sections, such as\nrun:\n  name: first")
    return value


def parse_value(text: str, *, source: str) -> Any:
    """Any value in YAML, as on the command line.

    Raises:
        SpecError: if it is none.
    """
    if len(text) > LONGEST:
        raise SpecError(f"{source} has {len(text)} characters", fix=f"a spec has at most {LONGEST}; is this the right file?")
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.YAMLError as error:
        raise SpecError(f"{source} is not YAML ({_first_line(error)})", fix="mind indentation, colons and quotes") from None
    except (_Refused, ValueError, RecursionError) as error:
        raise SpecError(f"{source} {error}" if isinstance(error, _Refused) else f"{source} is not a spec ({error})") from None
    finally:
        if loader is not None:
            loader.dispose()


def load_text(text: str, *, source: str = "the spec") -> JobSpec:
    """A spec from a complete YAML file.

    Raises:
        SpecError: names every field that is missing, unknown or wrong.
    """
    return load_mapping(parse_yaml(text, source=source))


def load_mapping(given: Mapping[str, Any]) -> JobSpec:
    """A spec from its plain values; a section that is null counts as empty.

    Raises:
        SpecError: names every field that is missing, unknown or wrong.
    """
    sections = set(JobSpec.model_fields)
    filled = {key: {} if value is None and key in sections else value for key, value in given.items()}
    try:
        return JobSpec.model_validate(filled)
    except ValidationError as error:
        refuse(from_validation(error, given=filled, model=JobSpec))
        raise AssertionError("pydantic refused without saying why") from error


def to_mapping(spec: JobSpec) -> dict[str, Any]:
    """The spec's plain values, every field of every section."""
    mapping: dict[str, Any] = {}
    for field in fields_of(JobSpec):
        place = mapping
        *above, leaf = field.path.split(".")
        for part in above:
            place = place.setdefault(part, {})
        place[leaf] = as_plain(value_of(spec, field))
    return mapping


def dump_yaml(spec: JobSpec) -> str:
    """The whole resolved spec as YAML, with its digest in the first line; `load_text` makes an equal spec of it."""
    return f"# resolved spec, identity digest {spec.digest()}\n{dump_mapping(to_mapping(spec))}"


def dump_mapping(mapping: Mapping[str, Any]) -> str:
    """Plain values as YAML that `parse_yaml` reads as the same."""
    return yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=2**20)


class _Refused(Exception):
    """Something of YAML that a spec does not use."""


def _refused(what: str, at: Any, *, fix: str) -> _Refused:
    mark = at.start_mark
    return _Refused(f"holds {what} at line {mark.line + 1}, column {mark.column + 1}: {fix}")


def _first_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return problem if mark is None else f"{problem}, line {mark.line + 1}, column {mark.column + 1}"


def _kind(value: object) -> str:
    return {list: "list", str: "text", bool: "yes or no"}.get(type(value), "number")
