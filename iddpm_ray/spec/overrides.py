"""`section.key=value` on the command line: the value is read as what the field is."""

import re
from collections.abc import Collection, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from iddpm_ray import storage
from iddpm_ray.errors import SpecError
from iddpm_ray.spec.duration import Duration
from iddpm_ray.spec.fields import SpecField, fields_of, section_paths
from iddpm_ray.spec.names import suggestion
from iddpm_ray.spec.problems import Problem, refuse
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import parse_value

_YES, _NO = ("true", "yes", "on"), ("false", "no", "off")
_NULL = ("null", "none", "~")
_ITEM = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^,]*?))\s*(?:,|\Z)""")  # of a list of texts; only in quotes may it hold a comma


def override(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Plain values of a spec with one of them set; the others, and `given` itself, stay as they are.

    Args:
        text: `path=value`, cut at the first `=`; a section takes a mapping, which is laid over it, section by section.

    Raises:
        SpecError: if there is no such field, or the value cannot be read as its type.
    """
    path, _, value = text.partition("=")
    known = {field.path: field for field in fields_of(JobSpec)}
    sections = section_paths(JobSpec)
    if path in sections:
        inner = parse_value(value, source=path)
        if not isinstance(inner, dict):
            first = next(field for field in known if field.startswith(f"{path}."))
            refuse(
                [
                    Problem(
                        path,
                        inner,
                        f"is a section: set a field of it, such as {first}=VALUE, or give a mapping",
                    )
                ]
            )
        return _laid_over(given, tuple(path.split(".")), inner, sections=sections)
    if path not in known:
        raise SpecError(
            path,
            value=None if value.lstrip()[:1] in ("[", "{") else "***" if storage.is_secret_name(path) else storage.without_secrets(value),
            fix=f"no such field{suggestion(path, fields=tuple(known), sections=sections)}",
        )
    return _placed(given, tuple(path.split(".")), _read(value, known[path]))


def is_field(path: str) -> bool:
    """Whether a dotted path names a field."""
    return any(field.path == path for field in fields_of(JobSpec))


def field_suggestion(word: str) -> str:
    """`: did you mean optim.lr?` for a word that is, or resembles, the name of a field; otherwise nothing."""
    text = suggestion(word, fields=tuple(field.path for field in fields_of(JobSpec)), sections=section_paths(JobSpec))
    return "" if "the sections are" in text else text


def _laid_over(given: Mapping[str, Any], path: tuple[str, ...], inner: Mapping[str, Any], *, sections: Collection[str]) -> dict[str, Any]:
    """The values with those of a section laid over them; a section inside it that is null changes nothing."""
    result: dict[str, Any] = {**given}
    for key, item in inner.items():
        where = (*path, key)
        is_section = ".".join(map(str, where)) in sections
        if is_section and isinstance(item, Mapping):
            result = _laid_over(result, where, item, sections=sections)
        elif not (is_section and item is None):
            result = _placed(result, where, item)
    return result


def _placed(given: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    key, *rest = path
    if not rest:
        return {**given, key: value}
    below = given.get(key)
    return {**given, key: _placed(below if isinstance(below, Mapping) else {}, tuple(rest), value)}


def _read(value: str, field: SpecField) -> Any:
    """The value as the field's type has it; what fits no type is left for the spec to refuse by name."""
    kinds = _kinds(field.annotation)
    stripped = value.strip()
    if NoneType in kinds and stripped.lower() in _NULL:
        return None
    if bool in kinds:
        if stripped.lower() not in (*_YES, *_NO):
            raise SpecError(field.path, value=stripped, fix="should be true or false (yes, no, on and off will do)")
        return stripped.lower() in _YES
    if tuple in kinds and (stripped.startswith("[") or "," in stripped or not kinds & {int, str}):
        return _read_list(stripped, field)
    if kinds & {int, float}:
        return parse_value(stripped, source=field.path)
    return value


def _read_list(value: str, field: SpecField) -> Any:
    inner = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    if str in _item_kinds(field.annotation):
        found = [item for item in _ITEM.finditer(inner) if item.group().strip(" \t,")]
        return [next(text for text in item.groups() if text is not None) for item in found]
    return parse_value(f"[{inner}]", source=field.path)


def _kinds(annotation: Any) -> set[type]:
    """The plain types that a field may have; a choice counts as the type of its words, a duration as text."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return set().union(*(_kinds(part) for part in get_args(annotation)))
    if origin is Literal:
        return {type(word) for word in get_args(annotation)}
    if annotation is Duration:
        return {str}
    return {origin or annotation}


def _item_kinds(annotation: Any) -> set[type]:
    if get_origin(annotation) is tuple:
        return set().union(*(_kinds(part) for part in get_args(annotation) if part is not Ellipsis))
    return set().union(*(_item_kinds(part) for part in get_args(annotation)), set())
