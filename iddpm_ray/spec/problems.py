"""What is wrong with a spec, all of it at once, in the user's words: the field, its value, and what would do."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from iddpm_ray import storage
from iddpm_ray.errors import SpecError
from iddpm_ray.spec.fields import SpecField, fields_of, section_paths
from iddpm_ray.spec.names import suggestion

_SHOWN = 80  # characters of a value worth repeating
_READ = 2000  # and worth looking for secrets in
NOTHING = object()  # where there is no value to show


@dataclass(frozen=True)
class Problem:
    """One field, the value it has, and what would do instead."""

    path: str
    value: Any
    fix: str

    def __str__(self) -> str:
        return f"{self.path}: {self.fix}" if self.value is NOTHING else f"{self.path} (got {shown(self.value, path=self.path)}): {self.fix}"


def refuse(problems: Sequence[Problem]) -> None:
    """Raises one SpecError that names every problem; does nothing if there is none.

    Raises:
        SpecError: one problem a line.
    """
    if len(problems) == 1:
        only = problems[0]
        raise SpecError(only.path, value=None if only.value is NOTHING else shown(only.value, path=only.path), fix=only.fix)
    if problems:
        raise SpecError(f"the job spec has {len(problems)} problems:" + "".join(f"\n  {problem}" for problem in problems))


def shown(value: object, *, path: str = "") -> str:
    """A value as a file would hold it, cut to a readable length and without secrets: also where they do not belong."""
    if storage.is_secret_name(path.rpartition(".")[2]):
        return "***"
    try:
        text = json.dumps(_redacted(value), ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
    text = storage.without_secrets(text[:_READ])
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _redacted(value: object) -> object:
    """The value with `***` for whatever stands below a name of secrets, however deep."""
    if isinstance(value, Mapping):
        return {str(key): "***" if storage.is_secret_name(str(key)) else _redacted(item) for key, item in value.items()}
    return [_redacted(item) for item in value] if isinstance(value, list | tuple) else value


def from_validation(error: ValidationError, *, given: Mapping[str, Any], model: type[BaseModel]) -> list[Problem]:
    """pydantic's list of errors as ours, one a field.

    Args:
        given: what was validated.
        model: the spec's class.
    """
    known = {field.path: field for field in fields_of(model)}
    sections = section_paths(model)
    grouped: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        loc = detail["loc"]
        too_few = detail["type"] == "missing" and isinstance(loc[-1], int)
        grouped.setdefault(_path(loc[:-1] if too_few else loc, known), []).append(detail)
    problems: list[Problem] = []
    for path, details in grouped.items():
        kind = details[0]["type"]
        required = _required_below(path, known.values())
        if kind == "missing" and required:
            problems += [Problem(field.path, NOTHING, f"required: {field.description}") for field in required]
        elif kind == "extra_forbidden":
            given_there = details[0]["input"]
            value = NOTHING if isinstance(given_there, Mapping | list | tuple) else given_there  # nobody knows what that may hold
            problems.append(Problem(path, value, f"no such field{suggestion(path, fields=tuple(known), sections=sections)}"))
        elif path in sections:
            problems.append(
                Problem(path, details[0]["input"], f"is a section: write its fields below it, such as {_first_below(path, known)}")
            )
        else:
            problems.append(_of_field(path, details, given=given, field=known.get(path.split("[")[0])))
    return problems


def _of_field(path: str, details: Sequence[ErrorDetails], *, given: Mapping[str, Any], field: SpecField | None) -> Problem:
    value = _at(given, path)
    wants = list(dict.fromkeys(_want(detail) for detail in details))
    if any(not want.startswith("should be ") for want in wants):
        text = "; ".join(wants)
    else:
        text = "should be " + " or ".join(want.removeprefix("should be ") for want in wants)
    if field is not None and "[" not in path and type(None) in get_args(field.annotation):
        text += " or null"
    if isinstance(value, int | float) and any(detail["type"] == "string_type" for detail in details):
        text += f", in quotes: {json.dumps(str(value).lower() if isinstance(value, bool) else str(value))}"
    return Problem(path, value, text)


def _want(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "int_type" | "int_from_float" | "int_parsing":
            return "should be a whole number"
        case "float_type" | "float_parsing":
            return "should be a number"
        case "bool_type" | "bool_parsing":
            return "should be true or false"
        case "string_type":
            return "should be text"
        case "string_too_short" | "string_pattern_mismatch" if "pattern" not in context:
            return "should not be empty"
        case "string_pattern_mismatch":
            return f"should match {context['pattern']}"
        case "finite_number":
            return "should be a finite number"
        case "literal_error":
            return "should be " + str(context["expected"]).replace("'", "")
        case "greater_than":
            return f"should be greater than {_limit(context['gt'])}"
        case "greater_than_equal":
            return f"should be at least {_limit(context['ge'])}"
        case "less_than":
            return f"should be less than {_limit(context['lt'])}"
        case "less_than_equal":
            return f"should be at most {_limit(context['le'])}"
        case "tuple_type" | "list_type":
            return "should be a list"
        case "too_short":
            return f"should be a list of at least {context['min_length']}"
        case "too_long":
            return f"should be a list of at most {context['max_length']}"
        case "missing":
            return f"should be a list of {_needed(detail)}"
        case "value_error":
            return str(context["error"])
        case _:
            message = detail["msg"]
            return message[:1].lower() + message[1:].replace("Input ", "")


def _limit(value: float) -> str:
    return f"{value:g}" if abs(value) < 10**6 else str(value)


def _needed(detail: ErrorDetails) -> str:
    last = detail["loc"][-1]
    return f"at least {last + 1} values" if isinstance(last, int) else "more values"


def _path(loc: Sequence[int | str], known: Mapping[str, SpecField]) -> str:
    """Where an error is, as a user writes it; below a field, numbers are places in a list and words name the alternatives tried."""
    path, field_found, tried = "", False, False
    for part in loc:
        if not field_found:
            path = f"{path}.{part}" if path else str(part)
            field_found = path in known
        elif isinstance(part, str):
            tried = True
        elif not tried:
            path = f"{path}[{part}]"
    return path


def _required_below(path: str, fields: Iterable[SpecField]) -> list[SpecField]:
    return [field for field in fields if field.required and (field.path == path or field.path.startswith(f"{path}."))]


def _first_below(path: str, known: Mapping[str, SpecField]) -> str:
    return next(field for field in known if field.startswith(f"{path}."))


def _at(given: object, path: str) -> object:
    for part in path.replace("[", ".").replace("]", "").split("."):
        if isinstance(given, Mapping):
            given = given.get(part, NOTHING)
        elif isinstance(given, list | tuple) and part.isdigit() and int(part) < len(given):
            given = given[int(part)]
        else:
            return given
    return given
