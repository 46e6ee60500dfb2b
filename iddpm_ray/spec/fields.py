"""The fields of the spec as a list: dotted path, mark, unit, description, so that other modules need not know the sections."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from iddpm_ray.spec.mark import Mark


@dataclass(frozen=True)
class SpecField:
    """One field that holds a value.

    Attributes:
        path: as in a file or on the command line, `optim.lr`.
        attributes: the same as Python attributes, which differ where Python reserves a word.
        annotation: the type; constraints are in pydantic's own metadata.
        default: where the field is not required.
        later: left out of the digest at its default, see `mark.identity`.
    """

    path: str
    attributes: tuple[str, ...]
    mark: Mark
    unit: str
    description: str
    required: bool
    annotation: Any
    default: Any
    later: bool


def fields_of(model: type[BaseModel]) -> tuple[SpecField, ...]:
    """Every value field of a spec and its sections, in the order they are written."""
    return tuple(_walk(model, (), ()))


def section_paths(model: type[BaseModel]) -> tuple[str, ...]:
    """Dotted paths of everything that holds fields: `optim`, `cluster.mesh`."""
    paths = (field.path.split(".")[:-1] for field in fields_of(model))
    return tuple(dict.fromkeys(".".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1)))


def value_of(spec: BaseModel, field: SpecField) -> Any:
    """The field's value in a spec."""
    value: Any = spec
    for attribute in field.attributes:
        value = getattr(value, attribute)
    return value


def as_plain(value: object) -> Any:
    """A field's value as JSON and YAML can hold it: lists for tuples, text for durations."""
    if isinstance(value, tuple):
        return [as_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value + 0.0  # -0.0 and 0.0 are one value
    return str(value)


def _walk(model: type[BaseModel], path: tuple[str, ...], attributes: tuple[str, ...]) -> Iterator[SpecField]:
    for attribute, info in model.model_fields.items():
        here = (*path, info.alias or attribute)
        inner = _section(info)
        if inner is not None:
            yield from _walk(inner, here, (*attributes, attribute))
            continue
        extra = info.json_schema_extra
        assert isinstance(extra, dict), f"{'.'.join(here)} is not declared with identity() or may_change()"
        yield SpecField(
            path=".".join(here),
            attributes=(*attributes, attribute),
            mark=extra["mark"],  # type: ignore[arg-type] pydantic types the values as JSON
            unit=str(extra["unit"]),
            description=info.description or "",
            required=info.is_required(),
            annotation=info.annotation,
            default=None if info.is_required() else info.get_default(call_default_factory=True),
            later=bool(extra["later"]),
        )


def _section(info: FieldInfo) -> type[BaseModel] | None:
    kinds = [kind for kind in (info.annotation, *get_args(info.annotation)) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return kinds[0] if kinds else None
