"""JSON Schema of a spec file, for editors that complete and check while one types."""

from collections.abc import Sequence
from typing import Any

from iddpm_ray.spec.duration import Duration
from iddpm_ray.spec.spec import JobSpec


def json_schema(*, presets: Sequence[str]) -> dict[str, Any]:
    """Schema of a file: every field with its description, unit and mark. A file that names a preset need not repeat what the preset says.

    Args:
        presets: names that the key `preset` may have.
    """
    schema = JobSpec.model_json_schema(by_alias=True)
    required: dict[str, list[str]] = {}
    for name, part in schema["properties"].items():
        required[name] = schema["$defs"][part["$ref"].rpartition("/")[2]].pop("required", [])
    for section in schema["$defs"].values():
        for field in section["properties"].values():
            _describe(field)
    sections = {
        name: {"anyOf": [{"$ref": part["$ref"]}, {"type": "null"}], "description": part["description"]}
        for name, part in schema["properties"].items()
    }
    preset = {"type": "string", "enum": list(presets), "description": "published recipe to build on; what the file says wins"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "iddpm_ray job spec",
        "description": "Everything a training run is told.",
        "type": "object",
        "additionalProperties": False,
        "properties": {"preset": preset, **sections},
        "if": {"not": {"required": ["preset"]}},
        "then": {"required": schema["required"], "properties": {name: {"required": fields} for name, fields in required.items() if fields}},
        "$defs": schema["$defs"],
    }


def _describe(field: dict[str, Any]) -> None:
    """Says unit and mark where an editor shows them, and durations as text."""
    field.pop("title", None)
    if "unit" in field:
        field["description"] = f"{field['description']} [{field['unit']}; {field['mark'].replace('_', ' ')}]"
    default = field.get("default")
    if isinstance(default, dict) and set(default) == {"amount", "unit"}:
        field["default"] = str(Duration(**default))
