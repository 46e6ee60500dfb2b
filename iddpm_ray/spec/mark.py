"""How a field of the spec is declared: default, one line of description, unit, and whether it is part of the run's identity."""

from typing import Any, Literal, TypedDict, Unpack

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Mark = Literal["identity", "may_change"]
REQUIRED: Any = ...


class Section(BaseModel):
    """A part of the spec: frozen, unknown keys refused, no conversion between types (a quoted "1" is no number)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class Limits(TypedDict, total=False):
    """The constraints of pydantic that fields here use."""

    ge: float
    gt: float
    le: float
    lt: float
    min_length: int
    pattern: str
    alias: str


def identity(default: Any, description: str, *, unit: str, later: bool = False, **limits: Unpack[Limits]) -> Any:
    """A field that decides what is computed: a run directory with another value is another run.

    Args:
        unit: what the value counts or is: `samples`, `pixels`, `text`, `choice`, `yes or no`.
        later: came when there were runs without it, whose digest it must not change: left out of the digest at its default.
        limits: constraints of the value, and the name in a file where Python reserves it.
    """
    return _field(default, description, unit=unit, mark="identity", limits=limits, later=later)


def may_change(default: Any, description: str, *, unit: str, **limits: Unpack[Limits]) -> Any:
    """A field that a run may be continued with at another value: where, how fast, how often, how long."""
    return _field(default, description, unit=unit, mark="may_change", limits=limits)


def _field(default: Any, description: str, *, unit: str, mark: Mark, limits: Limits, later: bool = False) -> Any:
    return Field(default, description=description, json_schema_extra={"unit": unit, "mark": mark, "later": later}, **limits)


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


AsTuple = BeforeValidator(_as_tuple)
"""Lets a YAML list stand for a tuple, which is what a frozen spec holds."""
