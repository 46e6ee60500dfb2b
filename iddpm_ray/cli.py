"""The command line of a run: a preset or a spec file, then `section.key=value`; what comes later wins."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iddpm_ray import presets, storage
from iddpm_ray.errors import SpecError, UserError
from iddpm_ray.spec import problems
from iddpm_ray.spec.checks import CREDENTIALS
from iddpm_ray.spec.names import closest
from iddpm_ray.spec.overrides import field_suggestion, is_field, override
from iddpm_ray.spec.reference import reference
from iddpm_ray.spec.schema import json_schema
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping, parse_yaml

HELP = """\
Trains a diffusion model from a job spec.

usage: python jobs/train.py [SPEC | --preset NAME] [section.key=value ...] [--dry-run]

  SPEC                 a YAML file, at a path or any URL (gs://, s3://, https://); its key `preset` names a recipe to build on
  --preset NAME        a published recipe; give run.name, run.output_dir and data.path with it
  section.key=value    sets one field; what comes later wins
                       lists: optim.ema_rates=0.99,0.9999 or [0.99, 0.9999]   nothing: optim.clip_norm=null
                       yes or no: data.flip=true   durations: train.duration="2M samples"   mappings: cluster.mesh={data: 4}
  --dry-run            print the resolved spec and what it would cost; start nothing
  --list-presets       print the recipes
  --schema             print the JSON Schema of a spec: every field, its unit, whether it may change between starts
  --reference          print the same as a page to read, docs/spec.md
  --help               print this

examples:
  python jobs/train.py cats.yaml
  python jobs/train.py cats.yaml cluster.workers=4 optim.lr=3e-4 --dry-run
  python jobs/train.py --preset imagenet64-uncond run.name=first run.output_dir=gs://bucket/runs data.path=gs://bucket/images
  ray job submit -- python jobs/train.py gs://bucket/cats.yaml

The same command again goes on from the newest complete checkpoint."""

FLAGS = ("--dry-run", "--help", "--list-presets", "--preset", "--reference", "--schema")
_EXAMPLES = {"run.name": "first", "run.output_dir": "runs", "data.path": "path/to/images", "train.duration": "100k steps"}
_OVERRIDE = re.compile(r"([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class ParsedCommand:
    """What a command line asks for.

    Attributes:
        spec: the resolved spec; None where there is only `text` to print.
        source: where it came from, in words.
        overrides: `section.key=value` as given.
        dry_run: print the plan and stop.
        text: what to print instead of running: help, schema, reference, list of presets.
    """

    spec: JobSpec | None = None
    source: str = ""
    overrides: tuple[str, ...] = ()
    dry_run: bool = False
    text: str | None = None


def parse(argv: Sequence[str]) -> ParsedCommand:
    """Reads a command line, without the program's name.

    Raises:
        SpecError: if it asks for nothing, for two things, or for a run that cannot be.
    """
    words = _Words.of(argv)
    if "--help" in words.flags:
        return ParsedCommand(text=HELP)
    if "--schema" in words.flags:
        return ParsedCommand(text=json.dumps(json_schema(presets=presets.names()), indent=2))
    if "--reference" in words.flags:
        return ParsedCommand(text=reference(presets=presets.names()).rstrip("\n"))
    if "--list-presets" in words.flags:
        width = max(map(len, presets.names()))
        return ParsedCommand(text="\n".join(f"{name:<{width}}  {presets.summary(name)}" for name in presets.names()))
    if words.spec is None and words.preset is None and not words.overrides:
        raise SpecError("nothing to train", fix="give a spec file, or --preset NAME; --help shows how, --list-presets shows the recipes")
    if words.spec is not None and words.preset is not None:
        raise SpecError(
            "both a spec file and --preset were given",
            fix=f"write `preset: {words.preset}` at the top of {storage.shown(words.spec)} instead",
        )
    given, source = _base(words)
    for text in words.overrides:
        given = override(given, text)
    return ParsedCommand(_complete(given, argv), source, words.overrides, "--dry-run" in words.flags)


def read_spec(url: str, *, overrides: Sequence[str] = ()) -> JobSpec:
    """A spec from a file of any fsspec scheme, with `section.key=value` on top.

    Raises:
        SpecError: if the file cannot be read, or is no spec.
    """
    given = _read(url)
    for text in overrides:
        given = override(given, text)
    return load_mapping(given)


@dataclass(frozen=True)
class _Words:
    """The words of a command line by kind."""

    spec: str | None
    preset: str | None
    overrides: tuple[str, ...]
    flags: frozenset[str]

    @classmethod
    def of(cls, argv: Sequence[str]) -> "_Words":
        spec: str | None = None
        preset: str | None = None
        overrides: list[str] = []
        flags: set[str] = set()
        words = iter(argv)
        for word in words:
            flag, _, value = word.partition("=")
            if word in ("-h", "--help"):
                flags.add("--help")
            elif flag == "--preset":
                if preset is not None:
                    raise SpecError("--preset was given twice", fix="a run has one")
                preset = value or next(words, "")
                if not preset or preset.startswith("-"):
                    raise SpecError("--preset needs a name", fix=f"one of {', '.join(presets.names())}")
            elif word in FLAGS:
                flags.add(word)
            elif word.startswith("-"):
                raise _unknown_option(word)
            elif _OVERRIDE.fullmatch(word):
                overrides.append(word)
            elif spec is None:
                spec = word
            else:
                raise SpecError(f"two spec files were given, {storage.shown(spec)} and {storage.shown(word)}", fix=_hint(spec, value=word))
        return cls(spec, preset, tuple(overrides), frozenset(flags))


def _unknown_option(word: str) -> SpecError:
    word = storage.without_secrets(word)
    name, _, value = word.lstrip("-").partition("=")
    if "." in name:
        return SpecError(f"there is no option {word}", fix=f"a field is set without dashes: {name}={value or 'VALUE'}")
    fields = field_suggestion(name)
    near = closest(name, [flag.lstrip("-") for flag in FLAGS])
    if fields and not near:
        return SpecError(f"there is no option {word}", fix=f"a field is set as section.key=value, without dashes{fields}")
    return SpecError(f"there is no option {word}", fix=f"{near}the options are {', '.join(FLAGS)}; a field is set as section.key=value")


def _base(words: _Words) -> tuple[dict[str, Any], str]:
    if words.preset is not None:
        return parse_yaml(presets.text(words.preset), source=f"preset {words.preset}"), f"preset {words.preset}"
    if words.spec is not None:
        return _read(words.spec), storage.shown(words.spec)
    return {}, "the command line"


def _read(url: str) -> dict[str, Any]:
    """The mapping in a file, laid over the preset that it names."""
    shown = storage.shown(url)
    if storage.carries_credentials(url):
        raise SpecError("the URL of the spec", value=shown, fix=CREDENTIALS)
    try:
        data = storage.read_bytes(url)
    except UserError:
        raise
    except Exception as error:  # every store raises its own kinds; all of them mean that there is no spec
        raise SpecError(f"cannot read the spec {shown} ({storage.reason(error)})", fix=_hint(url)) from None
    try:
        given = parse_yaml(data.decode("utf-8-sig"), source=shown)
    except UnicodeDecodeError:
        raise SpecError(f"{shown} is not text", fix="a spec is a YAML file in UTF-8") from None
    name = given.pop("preset", None)
    if name is None:
        return given
    if not isinstance(name, str):
        raise SpecError("preset", value=problems.shown(name), fix=f"should be one of {', '.join(presets.names())}")
    return _merged(parse_yaml(presets.text(name), source=f"preset {name}"), given)


def _hint(url: str, *, value: str = "VALUE") -> str:
    if url in presets.names():
        return f"a preset is given as --preset {url}"
    if is_field(url):
        return f"a field is set as {url}={value}"
    return "give the path or URL of one YAML file that this machine can read"


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping laid over another, section by section; a section that is null changes nothing."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(under, value)
        elif not (isinstance(under, Mapping) and value is None):
            merged[key] = value
    return merged


def _complete(given: Mapping[str, Any], argv: Sequence[str]) -> JobSpec:
    """The spec, or an error with a command that would do if only required values are missing."""
    try:
        return load_mapping(given)
    except SpecError as error:
        missing = [path for path in _EXAMPLES if re.search(rf"^\s*{re.escape(path)}: required", str(error), re.MULTILINE)]
        if not missing:
            raise
        command = f"python jobs/train.py {shlex.join([*argv, *(f'{path}={_EXAMPLES[path]}' for path in missing)])}"
        raise SpecError(f"{error}\nfor example: {storage.without_secrets(command)}") from None
