"""The command line: a preset or a file, then fields; help and lists; errors that say what to type."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from iddpm_ray import cli, presets
from iddpm_ray.errors import SpecError, UserError
from iddpm_ray.spec.text import dump_yaml, load_text

ROOT = Path(__file__).parents[1]
OPEN = ["run.name=a", "run.output_dir=/r", "data.path=/d"]
FILE = "run: {name: a, output_dir: /r}\ndata: {path: /d}\ntrain: {duration: 5 steps}\n"


def refusal(*argv: str) -> str:
    with pytest.raises(SpecError) as caught:
        cli.parse(argv)
    return str(caught.value)


@pytest.fixture
def spec_file(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(FILE)
    return path


def test_preset_then_fields():
    command = cli.parse(["--preset", "imagenet64-uncond", *OPEN, "optim.lr=3e-4"])
    assert command.spec is not None
    assert (command.spec.optim.lr, command.spec.model.num_res_blocks) == (3e-4, 3)
    assert (command.source, command.dry_run, command.text) == ("preset imagenet64-uncond", False, None)
    assert command.overrides == (*OPEN, "optim.lr=3e-4")


def test_order_of_words_does_not_matter_except_among_fields(spec_file):
    first = cli.parse([str(spec_file), "optim.lr=1", "optim.lr=2", "--dry-run"])
    second = cli.parse(["--dry-run", "optim.lr=1", str(spec_file), "optim.lr=2"])
    assert first == second
    assert first.spec is not None
    assert first.spec.optim.lr == 2
    assert first.dry_run


def test_preset_with_equals_sign():
    assert cli.parse(["--preset=digits", *OPEN]) == cli.parse(["--preset", "digits", *OPEN])


def test_fields_alone_are_a_spec():
    assert cli.parse([*OPEN, "train.duration=5 steps"]).spec == load_text(FILE)


def test_file_is_read_from_a_path_and_from_a_url(spec_file):
    with fsspec.open("memory://specs/spec.yaml", "w") as file:
        file.write(FILE)  # type: ignore[union-attr]
    assert (
        cli.parse([str(spec_file)]).spec
        == cli.parse([f"file://{spec_file}"]).spec
        == cli.parse(["memory://specs/spec.yaml"]).spec
        == load_text(FILE)
    )
    assert cli.parse([str(spec_file)]).source == str(spec_file)


def test_url_with_an_equals_sign_is_a_file(tmp_path):
    folder = tmp_path / "kind=spec"
    folder.mkdir()
    (folder / "x=1.yaml").write_text(FILE)
    assert cli.parse([f"{folder}/x=1.yaml"]).spec == load_text(FILE)


def test_file_may_build_on_a_preset(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("preset: cifar10-vlb\nrun: {name: a, output_dir: /r}\ndata: {path: /d}\noptim: {lr: 5e-5}\nmodel:\n")
    spec = cli.parse([str(path), "model.dropout=0.1"]).spec
    assert spec is not None
    assert (spec.optim.lr, spec.optim.ema_rates, spec.diffusion.loss, spec.model.dropout, spec.data.image_size) == (
        5e-5,
        (0.9999,),
        "rescaled_kl",
        0.1,
        32,
    )
    assert cli.read_spec(str(path), overrides=["model.dropout=0.1"]) == spec


def test_resolved_spec_is_a_spec_file(tmp_path):
    spec = cli.parse(["--preset", "digits", *OPEN]).spec
    assert spec is not None
    (tmp_path / "spec.yaml").write_text(dump_yaml(spec))
    assert cli.parse([str(tmp_path / "spec.yaml")]).spec == spec


def test_byte_order_mark_is_no_part_of_a_file(tmp_path):
    (tmp_path / "spec.yaml").write_bytes(b"\xef\xbb\xbf" + FILE.encode())
    assert cli.read_spec(str(tmp_path / "spec.yaml")) == load_text(FILE)


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_shows_usage_and_examples(flag):
    text = cli.parse(["nonsense", flag]).text
    assert text is not None
    for words in ("usage:", "--preset NAME", "section.key=value", "--dry-run", "--schema", "--list-presets", "ray job submit"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 130


def test_examples_of_the_help_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cats.yaml").write_text(FILE)
    examples = [shlex.split(line)[2:] for line in cli.HELP.splitlines() if line.startswith("  python jobs/train.py")]
    assert len(examples) == 3
    for argv in examples:
        assert cli.parse(argv).spec is not None


def test_list_of_presets_names_each_with_a_line():
    text = cli.parse(["--list-presets"]).text
    assert text is not None
    assert [line.split()[0] for line in text.splitlines()] == list(presets.names())
    assert all(presets.summary(name) in text for name in presets.names())


def test_schema_is_json():
    text = cli.parse(["--schema"]).text
    assert text is not None
    assert json.loads(text)["properties"]["preset"]["enum"] == list(presets.names())


def test_missing_values_are_named_with_a_command_that_would_do():
    message = refusal("--preset", "digits", "data.image_column=my picture", "run.name=a")
    assert "run.output_dir: required" in message
    assert "data.path: required" in message
    command = message.splitlines()[-1].removeprefix("for example: ")
    assert command.startswith("python jobs/train.py --preset digits 'data.image_column=my picture' run.name=a ")
    assert cli.parse(shlex.split(command)[2:]).spec is not None


def test_one_missing_value_is_named_with_a_command_too():
    message = refusal(*OPEN)
    assert "train.duration: required" in message
    assert cli.parse(shlex.split(message.splitlines()[-1].removeprefix("for example: "))[2:]).spec is not None


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "nothing to train: give a spec file, or --preset NAME"),
        (["--dry-run"], "nothing to train"),
        (["--preset"], "--preset needs a name: one of cifar10, "),
        (["--preset", "--dry-run"], "--preset needs a name"),
        (["--preset", "digit"], "there is no preset digit: did you mean digits?"),
        (["--preset", "digits", "--preset", "cifar10"], "--preset was given twice"),
        (["--dryrun"], "there is no option --dryrun: did you mean dry-run?"),
        (["--lr", "1e-4"], "there is no option --lr: a field is set as section.key=value, without dashes: did you mean optim.lr?"),
        (["--batch_size=4"], "without dashes: here this is train.global_batch"),
        (["--optim.lr=1e-4"], "there is no option --optim.lr=1e-4: a field is set without dashes: optim.lr=1e-4"),
        (["--qqqq"], "there is no option --qqqq: the options are --dry-run, "),
        (["a.yaml", "b.yaml"], "two spec files were given, a.yaml and b.yaml: give the path or URL of one YAML file"),
        (["optim.lr", "1e-4"], "two spec files were given, optim.lr and 1e-4: a field is set as optim.lr=1e-4"),
        (["a.yaml", "--preset", "digits"], "both a spec file and --preset were given: write `preset: digits` at the top of a.yaml instead"),
        (["/nowhere/a.yaml"], "cannot read the spec /nowhere/a.yaml (it does not exist): give the path or URL"),
        (["memory://nowhere/a.yaml"], "cannot read the spec memory://nowhere/a.yaml (it does not exist)"),
        (["digits"], "cannot read the spec digits (it does not exist): a preset is given as --preset digits"),
        (["optim.lr"], "cannot read the spec optim.lr (it does not exist): a field is set as optim.lr=VALUE"),
        (["/"], "cannot read the spec / ("),
        ([*OPEN, "optim.lerning_rate=3"], "optim.lerning_rate (got 3): no such field"),
    ],
)
def test_wrong_command_is_refused_with_what_to_type(argv, says):
    assert says in refusal(*argv)


def test_unknown_scheme_is_refused():
    with pytest.raises(UserError, match="nosuch"):
        cli.parse(["nosuch://a/b.yaml"])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xfe\x00r", "is not text: a spec is a YAML file in UTF-8"),
        (b"preset: nothing", "there is no preset nothing"),
        (b"preset: 5", "preset (got 5): should be one of cifar10, "),
        (b"- a", "holds a list: a spec is a mapping"),
        (b"preset: digits\noptim: 5", "optim (got 5): is a section"),
    ],
)
def test_wrong_file_is_refused_by_name(tmp_path, data, says):
    path = tmp_path / "wrong.yaml"
    path.write_bytes(data)
    assert says in refusal(str(path))


def test_reading_a_command_line_needs_neither_torch_nor_ray():
    """What is wrong with a spec is said at once, before anything heavy is imported."""
    program = """
import sys
from iddpm_ray import cli
assert cli.parse(["--preset", "digits", "run.name=a", "run.output_dir=/r", "data.path=/d", "--dry-run"]).spec is not None
assert cli.parse(["--schema"]).text
print(sorted({"torch", "ray", "numpy", "pyarrow"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr
