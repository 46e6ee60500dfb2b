"""A spec file says what it seems to say; what is written is read again as the same spec; anything else is refused with a place."""

import math

import pytest
import yaml
from spec.alternatives import ALTERNATIVES, both, nested, spec_with

from iddpm_ray.errors import SpecError
from iddpm_ray.spec.text import dump_yaml, load_mapping, load_text, parse_yaml, to_mapping

REQUIRED = "run: {name: a, output_dir: /r}\ndata: {path: /d}\ntrain: {duration: 5 steps}\n"


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_text(text)
    return str(caught.value)


@pytest.mark.parametrize("path", ALTERNATIVES)
def test_what_is_written_is_read_again_as_the_same_spec(path):
    for spec in both(path):
        again = load_text(dump_yaml(spec))
        assert again == spec
        assert again.digest() == spec.digest()


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "no",
        "on",
        "null",
        "~",
        "1e-4",
        "1",
        "1.0",
        ".5",
        "5.",
        "0x10",
        "010",
        "0o7",
        "12:30",
        "2020-01-01",
        ".inf",
        "true",
        "TRUE",
        "=",
        "<<",
        "1_000",
        "+1",
    ],
)
def test_text_that_looks_like_something_else_stays_text(text):
    spec = spec_with({"run.output_dir": text, "data.image_column": text})
    again = load_text(dump_yaml(spec))
    assert (again.run.output_dir, again.data.image_column) == (text, text)
    assert yaml.safe_load(dump_yaml(spec))["run"]["output_dir"] == text  # for readers of YAML 1.1 as well


@pytest.mark.parametrize(
    "text",
    ["a: b", "a #b", "'quoted'", '"x"', "- a", "{a}", "[a]", "*a", "&a", "!a", "%a", "@a", "`a", "|", ">", "ümläut", "a" * 300, "b\\c"],
)
def test_text_with_marks_of_yaml_stays_text(text):
    assert load_text(dump_yaml(spec_with({"data.path": text}))).data.path == text


@pytest.mark.parametrize("value", [1e-4, 1e-300, 0.1, 1 / 3, 123456789.125, 1e22, math.pi, 5e-324])
def test_floats_round_trip_exactly(value):
    assert load_text(dump_yaml(spec_with({"optim.lr": value}))).optim.lr == value


def test_written_file_opens_with_the_digest():
    spec = spec_with({})
    assert dump_yaml(spec).splitlines()[0] == f"# resolved spec, identity digest {spec.digest()}"


def test_written_mapping_is_plain():
    mapping = to_mapping(spec_with({"optim.warmup": "1M samples", "sample.every": "2 epochs"}))
    assert mapping["optim"]["warmup"] == "1M samples"
    assert mapping["optim"]["betas"] == [0.9, 0.999]
    assert "from" in mapping["init"]
    assert load_mapping(mapping) == spec_with({"optim.warmup": "1M samples", "sample.every": "2 epochs"})


@pytest.mark.parametrize(("text", "value"), [("1e-4", 1e-4), ("1E-4", 1e-4), (".0001", 1e-4), ("1", 1.0), ("+1.5e2", 150.0), ("5.", 5.0)])
def test_numbers_of_yaml_1_2_are_numbers(text, value):
    assert load_text(f"{REQUIRED}optim: {{lr: {text}}}").optim.lr == value


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("optim: {lr: 'fast'}", 'optim.lr (got "fast"): should be a number'),
        ("optim: {lr: '1e-4'}", 'optim.lr (got "1e-4"): should be a number'),
        ("optim: {lr: true}", "optim.lr (got true): should be a number"),
        ("optim: {lr: 0}", "optim.lr (got 0): should be greater than 0"),
        ("optim: {lr: .inf}", "optim.lr (got Infinity): should be a finite number"),
        ("optim: {lr: .nan}", "optim.lr (got NaN): should be a finite number"),
        ("optim: {lr: null}", "optim.lr (got null): should be a number"),
        ("optim: {lr: [1]}", "optim.lr (got [1]): should be a number"),
        ("model: {num_channels: '32'}", 'model.num_channels (got "32"): should be a whole number'),
        ("model: {num_channels: 32.0}", "model.num_channels (got 32.0): should be a whole number"),
        ("model: {num_channels: true}", "model.num_channels (got true): should be a whole number"),
        ("model: {num_heads: 0}", "model.num_heads (got 0): should be at least 1"),
        ("model: {dropout: 1}", "model.dropout (got 1): should be less than 1"),
        ("model: {class_cond: 'true'}", 'model.class_cond (got "true"): should be true or false'),
        ("model: {class_cond: yes}", 'model.class_cond (got "yes"): should be true or false'),
        ("model: {class_cond: 1}", "model.class_cond (got 1): should be true or false"),
        ("model: {channel_mult: []}", "model.channel_mult (got []): should be a list of at least 1 or null"),
        ("diffusion: {respacing: true}", 'diffusion.respacing (got true): should be text, in quotes: "true"'),
        ("log: {csv: null}", "log.csv (got null): should be true or false"),
        ("optim: {precision: fp32}", 'optim.precision (got "fp32"): should be float32, bf16 or fp16'),
        ("optim: {microbatch: half}", 'optim.microbatch (got "half"): should be a whole number or auto or null'),
        ("optim: {microbatch: 0}", "optim.microbatch (got 0): should be at least 1 or auto or null"),
        ("optim: {betas: [0.9]}", "optim.betas (got [0.9]): should be a list of at least 2 values"),
        ("optim: {betas: [0.9, 1.5]}", "optim.betas[1] (got 1.5): should be less than 1"),
        ("optim: {betas: 0.9}", "optim.betas (got 0.9): should be a list"),
        ("cluster: {workers: two}", 'cluster.workers (got "two"): should be a whole number or a list'),
        ("cluster: {workers: [1, 2, 3]}", "cluster.workers (got [1, 2, 3]): should be a whole number or a list of at most 2"),
        ("cluster: {mesh: 4}", "cluster.mesh (got 4): is a section: write its fields below it, such as cluster.mesh.data"),
        ("optim: 3", "optim (got 3): is a section: write its fields below it, such as optim.lr"),
        ("log: {every: 5}", 'log.every (got 5): needs a unit: "5 steps", "5 samples" or "5 epochs"'),
        ("log: {every: 0 steps}", 'log.every (got "0 steps"): should be longer than nothing'),
        ("log: {every: 5 min}", 'log.every (got "5 min"): cannot be wall-clock time'),
        ("sample: {every: 5 h}", 'sample.every (got "5 h"): cannot be wall-clock time'),
        ("optim: {warmup: 5 min}", 'optim.warmup (got "5 min"): cannot be wall-clock time'),
        ("init: {sha256: abc}", 'init.sha256 (got "abc"): should match ^[0-9a-f]{64}$'),
        ("data: {path: x, image_size: [64]}", "data.image_size (got [64]): "),
        ("data: {path: x, background: [0, 0, 256]}", "data.background[2] (got 256): should be at most 255"),
        ("data: {path: x, channels: 4}", "data.channels (got 4): should be 1 or 3"),
        ("data: {path: 5}", 'data.path (got 5): should be text, in quotes: "5"'),
        ("run: {name: a, output_dir: r, seed: -1}", "run.seed (got -1): should be at least 0"),
        (
            "run: {name: a, output_dir: r, seed: 9223372036854775808}",
            "run.seed (got 9223372036854775808): should be less than 9223372036854775808",
        ),
        ("train: {duration: 5 steps, global_batch: 0}", "train.global_batch (got 0): should be at least 1"),
    ],
)
def test_wrong_value_is_named_with_what_would_do(setting, says):
    section = setting.partition(":")[0]
    lines = [line for line in REQUIRED.splitlines() if not line.startswith(f"{section}:")]
    assert says in refusal("\n".join([*lines, setting]))


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("optim: {learning_rate: 1}", "optim.learning_rate (got 1): no such field: here this is optim.lr"),
        ("optim: {wieght_decay: 1}", "optim.wieght_decay (got 1): no such field: did you mean optim.weight_decay?"),
        ("optm: {lr: 1}", "optm: no such field: did you mean the section optim?"),
        ("lr: 1e-4", "lr (got 0.0001): no such field: did you mean optim.lr?"),
        ("model: {global_batch: 3}", "model.global_batch (got 3): no such field: did you mean train.global_batch?"),
        ("model: {schedule: cosine}", 'model.schedule (got "cosine"): no such field: did you mean diffusion.schedule or optim.schedule?'),
        ("cluster: {mesh: {dta: 1}}", "cluster.mesh.dta (got 1): no such field: did you mean cluster.mesh.data?"),
        ("cluster: {fsdp: 2}", "cluster.fsdp (got 2): no such field: did you mean cluster.mesh.fsdp?"),
        ("log: {zzz: 1}", "log.zzz (got 1): no such field: log has every, timestep_bins, "),
        ("zzz: 1", "zzz (got 1): no such field: the sections are run, data, model, "),
        ("init: {from_: x}", "init.from_"),
    ],
)
def test_unknown_key_is_named_with_the_one_that_was_meant(setting, says):
    assert says in refusal(REQUIRED + setting)


def test_every_flag_of_the_original_is_led_to_a_field(golden_flags):
    at_home = set()
    for flag in golden_flags:
        message = refusal(f"{REQUIRED}{flag}: 1")
        assert "the sections are" not in message, flag
        at_home.add(message)
    assert len(at_home) == len(golden_flags) > 25


def test_every_wrong_field_is_named_at_once():
    message = refusal("run: {nam: a}\noptim: {lr: x, betas: [0.9, 2]}\nmodel: {num_heads: none}\n")
    assert message.startswith("the job spec has 8 problems:\n")
    for path in ("run.nam ", "run.name", "run.output_dir", "data.path", "train.duration", "optim.lr", "optim.betas[1]", "model.num_heads"):
        assert f"\n  {path}" in message


def test_required_values_are_named_with_what_they_are():
    message = refusal("")
    for path in ("run.name", "run.output_dir", "data.path", "train.duration"):
        assert f"\n  {path}: required: " in message


def test_section_with_nothing_in_it_is_empty():
    assert load_text(f"{REQUIRED}optim:\nmodel: null\n") == load_text(REQUIRED)


def test_long_values_are_cut_in_messages():
    message = refusal(f"{REQUIRED}optim: {{lr: {'x' * 10_000}}}")
    assert len(message) < 200


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]", "the spec holds a list: a spec is a mapping"),
        ("just words", "the spec holds a text: a spec is a mapping"),
        ("a: &x 1", "holds an anchor or alias (& or *) at line 1, column 4"),
        ("a: 1\nb: *x", "holds an anchor or alias (& or *) at line 2, column 4"),
        ("a: 1\na: 2", "holds the key a twice at line 2, column 1"),
        ("run: {name: a, name: b}", "holds the key name twice at line 1, column 16"),
        ("1: 2", "holds a key that is no text at line 1, column 1"),
        ("[a]: 2", "holds a key that is no text"),
        ("true: 2", "holds a key that is no text"),
        ("a: !!python/object/apply:os.system [ls]", "holds the tag tag:yaml.org,2002:python/object/apply:os.system at line 1, column 4"),
        ("a: !!str 5", "holds the tag"),
        ("a: [1", "the spec is not YAML ("),
        ("a: b: c", "the spec is not YAML (mapping values are not allowed here, line 1, column 5)"),
        ("a\tb: {", "the spec is not YAML ("),
        ("a: 1\n---\nb: 2", "the spec is not YAML (but found another document"),
        ("a: \x00", "the spec is not YAML ("),
        ("[" * 50 + "]" * 50, "more than 20 levels of nesting"),
        ("[" * 5000, "more than 20 levels of nesting"),
        ("a: " + "9" * 5000, "the spec is not a spec ("),
        ("#" * (2**20 + 1), "has 1048577 characters"),
    ],
)
def test_other_yaml_is_refused_with_its_place(text, says):
    assert says in refusal(text)


def test_alias_bomb_is_refused_before_it_grows():
    bomb = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(24))
    assert "anchor or alias" in refusal(bomb)


def test_keys_of_yaml_that_merge_are_just_unknown():
    assert "<<" in refusal(f"{REQUIRED}<<: {{optim: {{lr: 1}}}}")


def test_source_is_named():
    with pytest.raises(SpecError, match=r"^gs://bucket/x.yaml holds a list"):
        parse_yaml("[1]", source="gs://bucket/x.yaml")


def test_nested_settings_equal_a_file():
    assert load_mapping(nested({"run.name": "a", "run.output_dir": "/r", "data.path": "/d", "train.duration": "5 steps"})) == load_text(
        REQUIRED
    )
