"""The command line of `jobs/convert.py`, and what it says of weights that do not know themselves."""

import argparse
import json
import shlex
from collections.abc import Sequence
from typing import Literal

from iddpm_ray import presets, storage
from iddpm_ray.cli import read_spec
from iddpm_ray.convert.flags import Converted, parse_command, to_spec
from iddpm_ray.convert.model import Given, Model, flat
from iddpm_ray.convert.source import open_model
from iddpm_ray.errors import DataError, SpecError
from iddpm_ray.spec.overrides import override
from iddpm_ray.spec.text import parse_yaml, to_mapping

SOURCE = "a run, one of its checkpoints, a .pt or .safetensors file, a folder of diffusers, or hf://org/name@revision; at any fsspec URL"


def parse(argv: Sequence[str], options: argparse.ArgumentParser) -> argparse.Namespace:
    """A command line, without the program's name; what stands behind `--` is left in `words`.

    Args:
        options: what `parser` gave.
    """
    own, words = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    wanted, fields = options.parse_known_args(list(own))  # fields may stand behind options, which argparse would not take
    if any(word.startswith("-") for word in fields) or (fields and wanted.command == "inspect"):
        options.error(f"unrecognized arguments: {' '.join(fields)}")
    wanted.fields, wanted.words = [*getattr(wanted, "fields", []), *fields], list(words)
    return wanted


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of `jobs/convert.py`."""
    made = argparse.ArgumentParser(description=description)
    commands = made.add_subparsers(dest="command", required=True, metavar="import|export|inspect|flags")
    importing = commands.add_parser("import", help="weights of others as a .safetensors file that knows its spec, or in any other format")
    exporting = commands.add_parser(
        "export", help="a run or file as OpenAI's .pt, a folder of diffusers, or .safetensors with a model card"
    )
    inspecting = commands.add_parser("inspect", help="what a source tells of its network")
    flags = commands.add_parser("flags", help="command lines of improved-diffusion and guided-diffusion as a spec")
    inspecting.add_argument("source", metavar="SOURCE", help=SOURCE)
    for command in (importing, exporting):
        command.add_argument("source", metavar="SOURCE", help=SOURCE)
        command.add_argument(
            "to", metavar="TO", help="NAME.safetensors (with its card NAME.md), NAME.pt as OpenAI's, or a folder for diffusers"
        )
        command.add_argument(
            "--step", type=_step, default="newest", metavar="N|newest|best|NAME", help="of a run, which checkpoint (newest)"
        )
        command.add_argument(
            "--weights", metavar="raw|RATE", default="raw", help="of a run, the raw weights or an average, such as 0.9999 (raw)"
        )
        command.add_argument("--preset", metavar="NAME", help="what the file does not tell is as in this recipe")
        command.add_argument("--spec", metavar="FILE", help="what the file does not tell is as in this spec")
        command.add_argument("--flags", metavar="TEXT", help="what the file does not tell is as these flags of OpenAI's programs say")
        command.add_argument("--classes", metavar="FILE", help="names of the classes: a JSON list, or one a line")
        command.add_argument("--respacing", metavar="TEXT", help="for diffusers: export the process shortened so, such as ddim1000")
        command.add_argument(
            "--tolerance", type=float, default=1e-4, help="for diffusers: difference borne, as a share of the largest output"
        )
        command.add_argument("--overwrite", action="store_true", help="replace what is at TO")
    for command in (importing, exporting, flags):
        command.add_argument("fields", metavar="section.key=value", nargs="*", help="what the file or the flags do not tell")
        command.add_argument("--from", dest="dialect", choices=("improved", "guided"), default="improved", help="whose flags (improved)")
        command.add_argument("--program", metavar="NAME", help="of which program, such as image_sample (image_train)")
    flags.add_argument(
        "--processes", type=_processes, metavar="N", help="processes that the command is started with; batch_size is each one's"
    )
    flags.epilog = "python jobs/convert.py flags --processes 8 run.name=a -- --image_size 64 --num_channels 128 ..."
    return made


def open_wanted(wanted: argparse.Namespace, *, which: int | str) -> Model:
    """The network that `import` and `export` name, with what the command line says of it.

    Args:
        which: of a run, the checkpoint.

    Raises:
        SpecError, DataError, CheckpointError: name what cannot be had, or is not said.
    """
    weights, given = _weights(wanted.weights), _given(wanted)
    classes = [] if wanted.classes is None else _names(wanted.classes)
    return open_model(wanted.source, given=given, which=which, weights=weights, classes=classes, classes_source=wanted.classes or "")


def spec_of_flags(wanted: argparse.Namespace) -> Converted:
    """The spec that `flags` asks for.

    Raises:
        SpecError: a flag cannot be had, with the reason, or the command itself says another number of processes.
    """
    command = parse_command(wanted.words, dialect=wanted.dialect, program=wanted.program)
    if wanted.processes is not None and command.processes not in (None, wanted.processes):
        fix = f"the command itself starts {command.processes}: leave the option out, or change the command"
        raise SpecError("--processes", value=wanted.processes, fix=fix)
    return to_spec(command, processes=wanted.processes, given=_overrides(wanted.fields))


def _step(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _processes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"should be a whole number, at least 1 (got {text})")
    return int(text)


def _weights(text: str) -> Literal["raw"] | float:
    try:
        return "raw" if text == "raw" else float(text)
    except ValueError:
        raise SpecError("--weights", value=text, fix="should be raw or a rate, such as 0.9999") from None


def _given(wanted: argparse.Namespace) -> Given:
    """What is said of weights that do not know themselves; at most one whole spec."""
    values = _overrides(wanted.fields)
    bases = [name for name in ("preset", "spec", "flags") if getattr(wanted, name) is not None]
    if len(bases) > 1:
        raise SpecError(f"--{bases[0]} and --{bases[1]} were both given", fix="give the one that says more, and fields besides")
    if wanted.preset is not None:
        return Given(values, parse_yaml(presets.text(wanted.preset), source=wanted.preset), f"preset {wanted.preset}")
    if wanted.spec is not None:
        return Given(values, to_mapping(read_spec(wanted.spec)), storage.shown(wanted.spec))
    if wanted.flags is not None:
        try:
            words = shlex.split(wanted.flags)
        except ValueError as error:
            raise SpecError("--flags", value=wanted.flags, fix=f"{str(error).lower()}: quote as a shell does") from None
        command = parse_command(words, dialect=wanted.dialect, program=wanted.program)
        return Given(values, to_spec(command, processes=1).mapping(), "--flags")
    return Given(values)


def _overrides(words: Sequence[str]) -> dict[str, object]:
    mapping: dict[str, object] = {}
    for word in words:
        if "=" not in word:
            raise SpecError(f"{word} is no section.key=value", fix="such as data.image_size=64")
        mapping = override(mapping, word)
    return flat(mapping)


def _names(url: str) -> list[str]:
    """Class names out of a JSON list, or a text with one a line.

    Raises:
        DataError: it cannot be read, or is neither.
    """
    shown, fix = storage.shown(url), "name a file with a name a line, or a JSON list of names"
    try:
        text = storage.read_bytes(url).decode()
    except UnicodeDecodeError:
        raise DataError(f"{shown} is not text", fix=fix) from None
    except Exception as error:  # as above
        raise DataError(f"cannot read the classes in {shown} ({storage.reason(error)})", fix=fix) from None
    if not text.lstrip().startswith("["):
        return [line.strip() for line in text.splitlines() if line.strip()]
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = [None]
    if not all(isinstance(name, str | int) for name in names):
        raise DataError(f"{shown} is no JSON list of names", fix=fix)
    return [str(name) for name in names]
