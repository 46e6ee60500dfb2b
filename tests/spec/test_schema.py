"""The JSON Schema accepts every file the program accepts, and tells an editor what each field is."""

import jsonschema
import pytest
from spec.alternatives import ALTERNATIVES, spec_with

from iddpm_ray import presets
from iddpm_ray.spec.fields import fields_of
from iddpm_ray.spec.schema import json_schema
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import parse_yaml, to_mapping

SCHEMA = json_schema(presets=presets.names())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", ALTERNATIVES)
def test_resolved_specs_are_accepted(path):
    alternative = ALTERNATIVES[path]
    VALIDATOR.validate(to_mapping(spec_with({**alternative.given, path: alternative.value})))


@pytest.mark.parametrize("name", presets.names())
def test_file_on_a_preset_is_accepted(name):
    own = {**parse_yaml(presets.text(name)), "preset": name, "run": {"name": "a"}, "log": None}
    VALIDATOR.validate(own)


@pytest.mark.parametrize(
    "change",
    [
        {"optim": {"learning_rate": 1}},
        {"optim": {"lr": "1e-4"}},
        {"optim": {"warmup": "5 min"}},
        {"train": {"duration": "5"}},
        {"train": {}},
        {"run": {"name": "a"}},
        {"preset": "nothing"},
        {"zzz": 1},
        {"model": {"kind": "vae"}},
    ],
    ids=str,
)
def test_wrong_files_are_not_accepted(change):
    assert not VALIDATOR.is_valid({**to_mapping(spec_with({})), **change})


def test_every_field_is_described_with_unit_and_mark():
    described = 0
    for section in SCHEMA["$defs"].values():
        for name, field in section["properties"].items():
            if name == "mesh":
                continue
            assert field["description"].endswith(f"[{field['unit']}; {field['mark'].replace('_', ' ')}]"), name
            described += 1
    assert described == len(fields_of(JobSpec))


def test_durations_are_text_with_a_pattern():
    every = SCHEMA["$defs"]["CheckpointSpec"]["properties"]["every"]
    assert every["type"] == "string"
    assert every["default"] == "1000 steps"
    assert "15 min" in every["examples"]
    assert "min" not in SCHEMA["$defs"]["LogSpec"]["properties"]["every"]["pattern"]
