"""Durations and intervals as people write them: `5000 steps`, `2M samples`, `3 epochs`, `15 min`."""

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from iddpm_ray.errors import SpecError

Unit = Literal["steps", "samples", "epochs", "minutes"]

UNITS: dict[str, tuple[Unit, int]] = {
    "step": ("steps", 1),
    "steps": ("steps", 1),
    "sample": ("samples", 1),
    "samples": ("samples", 1),
    "epoch": ("epochs", 1),
    "epochs": ("epochs", 1),
    "min": ("minutes", 1),
    "minute": ("minutes", 1),
    "minutes": ("minutes", 1),
    "h": ("minutes", 60),
    "hour": ("minutes", 60),
    "hours": ("minutes", 60),
}
FACTORS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}
LARGEST = 10**15  # keeps samples within 64 bits at any batch
_CLOCKED = r"^[0-9]+(\.[0-9]+)?[kKMB]?\s*(steps?|samples?|epochs?)$"
_TIMED = r"^[0-9]+(\.[0-9]+)?[kKMB]?\s*(steps?|samples?|epochs?|min|minutes?|h|hours?)$"
_WRITTEN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKMB]?)\s*([A-Za-z]*)")


@dataclass(frozen=True)
class Duration:
    """A length of a run, or the distance between two events of it.

    Attributes:
        amount: how many; whole for steps and samples.
        unit: minutes are wall-clock time and may only say when to save and when to stop.
    """

    amount: float
    unit: Unit

    def __str__(self) -> str:
        number = Decimal(repr(self.amount))
        if self.unit == "minutes":
            return f"{_plain(number)} min"
        millions = number.scaleb(-6)
        if millions >= 1 and millions == round(millions, 3):
            return f"{_plain(millions)}M {self.unit}"
        return f"{_plain(number)} {self.unit if number != 1 else self.unit.removesuffix('s')}"

    def samples(self, global_batch: int, rows_per_epoch: int) -> int:
        """The same length in samples.

        Raises:
            SpecError: for minutes, which are no number of samples.
        """
        match self.unit:
            case "steps":
                return int(self.amount) * global_batch
            case "samples":
                return int(self.amount)
            case "epochs":
                exact = Decimal(repr(self.amount)) * rows_per_epoch
                return max(int(exact.to_integral_value(ROUND_HALF_UP)), 1 if self.amount > 0 else 0)
            case "minutes":
                raise SpecError(f"{self} is wall-clock time", fix="say it in steps, samples or epochs")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _validate, serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema())
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": _TIMED, "examples": ["5000 steps", "2M samples", "3 epochs", "15 min"]}


def parse_duration(text: str) -> Duration:
    """Reads `1.5k steps`, `2M samples`, `3 epochs`, `15 min`, `2 h`.

    Raises:
        ValueError: says what is wrong with the text.
    """
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        raise ValueError('should be a number and a unit, such as "5000 steps", "2M samples" or "3 epochs"')
    digits, factor, word = found.groups()
    if not word:
        raise ValueError(f'needs a unit: "{digits}{factor} steps", "{digits}{factor} samples" or "{digits}{factor} epochs"')
    if word not in UNITS:
        raise ValueError(f"has the unit {word!r}; known are steps, samples, epochs, and where wall-clock time may decide min and h")
    unit, scale = UNITS[word]
    amount = Decimal(digits) * FACTORS[factor] * scale
    if unit in ("steps", "samples") and amount != amount.to_integral_value():
        raise ValueError(f"should be a whole number of {unit}")
    if amount > LARGEST:
        raise ValueError(f"should be at most {LARGEST:.0e} {unit}")
    return Duration(float(amount), unit)


def crossed(before: int, after: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, after]; all three in samples. No interval is missed, whatever the batch."""
    return after // every > before // every


def _validate(value: object) -> Duration:
    if isinstance(value, Duration):
        return value
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'needs a unit: "{value} steps", "{value} samples" or "{value} epochs"')
    raise ValueError('should be text such as "5000 steps"')


def _plain(number: Decimal) -> str:
    text = format(number.normalize(), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _positive(duration: Duration) -> Duration:
    if duration.amount <= 0:
        raise ValueError("should be longer than nothing")
    return duration


def _on_the_clock(duration: Duration) -> Duration:
    if duration.unit == "minutes":
        raise ValueError(
            "cannot be wall-clock time, which may only decide when to save and when to stop: say it in steps, samples or epochs"
        )
    return duration


def _schema(pattern: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": list(examples)})


TimedInterval = Annotated[Duration, AfterValidator(_positive), _schema(_TIMED, "5000 steps", "2M samples", "3 epochs", "15 min", "2 h")]
"""Longer than nothing; wall-clock time allowed: when to save, when to stop."""

Interval = Annotated[
    Duration, AfterValidator(_positive), AfterValidator(_on_the_clock), _schema(_CLOCKED, "1000 steps", "100k samples", "1 epoch")
]
"""Longer than nothing, never wall-clock time."""

Span = Annotated[Duration, AfterValidator(_on_the_clock), _schema(_CLOCKED, "0 steps", "500 steps", "1M samples")]
"""May be nothing at all, never wall-clock time."""
