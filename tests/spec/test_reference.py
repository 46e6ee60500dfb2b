"""docs/spec.md is what the schema says, field by field."""

import re
from pathlib import Path

import pytest

from iddpm_ray import cli, presets
from iddpm_ray.spec.fields import fields_of, section_paths
from iddpm_ray.spec.reference import reference, type_in_words
from iddpm_ray.spec.schema import json_schema
from iddpm_ray.spec.spec import JobSpec

PAGE = Path(__file__).parents[2] / "docs" / "spec.md"
TEXT = reference(presets=presets.names())


def test_the_committed_page_is_the_schemas():
    assert PAGE.read_text(encoding="utf-8") == TEXT, "make it again: python jobs/train.py --reference > docs/spec.md"


def test_the_option_prints_the_page():
    assert cli.parse(["--reference"]).text == TEXT.removesuffix("\n")


def test_every_field_has_a_row_that_says_everything():
    rows = {}
    for heading, body in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL):
        for line in body.splitlines():
            if line.startswith("| `"):
                cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
                rows[f"{heading}.{cells[0].strip('`')}"] = cells
    assert sorted(rows) == sorted(field.path for field in fields_of(JobSpec))
    for field in fields_of(JobSpec):
        _, kind, default, unit, mark, described = rows[field.path]
        assert kind, field.path
        assert (default == "needed") == field.required
        assert (unit, mark) == (field.unit, field.mark.replace("_", " "))
        assert described.replace("\\|", "|") == field.description


def test_every_section_has_a_heading():
    assert re.findall(r"^## (\S+)$", TEXT, re.MULTILINE) == list(section_paths(JobSpec))


@pytest.mark.parametrize(
    ("section", "name", "words"),
    [
        ("CheckpointSpec", "every", "duration or clock time"),
        ("OptimSpec", "anneal", "duration, or null"),
        ("OptimSpec", "microbatch", "whole number, at least 1, or `auto`, or null"),
        ("ClusterSpec", "workers", "whole number, at least 1, or list of 2, each a whole number, at least 1"),
        ("DataSpec", "channels", "`1`, `3`"),
        ("RunSpec", "seed", "whole number, at least 0"),
        ("OptimSpec", "ema_rates", "list of numbers, at least 0, below 1"),
    ],
)
def test_a_type_in_words(section, name, words):
    schema = json_schema(presets=presets.names())
    assert type_in_words(schema["$defs"][section]["properties"][name]) == words
