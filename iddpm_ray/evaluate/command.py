"""What the programs that look at trained networks share: how they end, and the options that mean the same in each; no torch."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from iddpm_ray import storage
from iddpm_ray.errors import SpecError, UserError

WEIGHTS = "directory of a run, of one checkpoint, or a file of weights (.pt, .safetensors), at any fsspec URL"
GOES_ON = "the same command goes on from what is done"


def run_program(program: Callable[[argparse.Namespace], int], parser: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Runs a program on its command line; what a person has to mend is one line.

    Returns:
        the exit code: what the program returns, 2 for something to mend, 130 if it was interrupted.
    """
    try:
        return program(parser.parse_args(argv))
    except Exception as error:  # every store raises its own kinds
        said = in_words(error)
        if said is None:
            raise
        print(f"error: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; {GOES_ON}", file=sys.stderr)
        return 130


def in_words(error: Exception) -> str | None:
    """What a person has to mend, or what a store or file system refuses; None for a fault of the program."""
    if isinstance(error, UserError):
        return str(error)
    if not isinstance(error, OSError) and not storage.is_transient(error):
        return None
    where = error.filename if isinstance(error, OSError) and isinstance(error.filename, str) else None
    why = storage.reason(error)
    return why if where is None or where in why else f"{storage.shown(where)}: {why}"


def check_urls(wanted: argparse.Namespace, *names: str) -> None:
    """Refuses credentials in a URL that will be saved and shown.

    Raises:
        SpecError: names the option.
    """
    for name in names:
        url = getattr(wanted, name)
        if url and storage.carries_credentials(url):
            fix = "leave them to the environment: a URL is saved and shown"
            raise SpecError(f"{name} holds credentials", value=storage.shown(url), fix=fix)


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Which weights: --step, --ema, --spec; each None where nothing is said."""
    parser.add_argument("--step", type=step, metavar="N|newest|best", help="which checkpoint of a run (newest)")
    parser.add_argument("--ema", type=average, metavar="RATE|raw", help="which average of the weights (what the run's section sample says)")
    parser.add_argument("--spec", metavar="FILE", help="of a file of weights: the spec of its run (spec.yaml beside it)")


def add_pool(parser: argparse.ArgumentParser) -> None:
    """Who does the work: --workers, --cpus-per-worker, --gpus-per-worker, --threads, --address."""
    parser.add_argument("--workers", type=at_least(0), default=1, metavar="N", help="Ray actors; 0: work in this process (1)")
    parser.add_argument("--cpus-per-worker", type=share, default=1.0, metavar="N", help="(1)")
    parser.add_argument("--gpus-per-worker", type=share, default=0.0, metavar="N", help="(0)")
    parser.add_argument(
        "--threads", type=at_least(1), default=1, metavar="N", help="of torch in each worker; another number rounds otherwise (1)"
    )
    parser.add_argument("--address", help="of a Ray cluster (that of the job, else an embedded Ray)")


def pool_options(wanted: argparse.Namespace) -> dict[str, Any]:
    """What `add_pool` took, as `runtime.chunks.Pool` wants it."""
    names = {"workers": "workers", "cpus": "cpus_per_worker", "gpus": "gpus_per_worker", "threads": "threads", "address": "address"}
    return {name: getattr(wanted, option) for name, option in names.items()}


def way(said: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Fields of section `sample` as a command line sets them, and what then says nothing any more set aside: the run's eta under another
    method than DDIM, its interval without guidance.

    Args:
        prefix: of the options' names: `base-`.

    Raises:
        SpecError: eta is given for another method.
    """
    fields = dict(said)
    if fields.get("method") not in (None, "ddim"):
        if fields.get("eta"):
            raise SpecError(f"--{prefix}eta", value=fields["eta"], fix=f"has an effect with --{prefix}method ddim alone")
        fields["eta"] = 0.0
    if fields.get("guidance") == 1.0:
        fields.setdefault("guidance_interval", None)
    return fields


def step(text: str) -> int | str:
    """A step, `newest` or `best`."""
    if text in ("newest", "best"):
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"should be a step, newest or best (got {text})")
    return int(text)


def average(text: str) -> str:
    """`raw`, or the rate of an average."""
    try:
        return "raw" if text == "raw" else str(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"should be raw, or a rate such as 0.9999 (got {text})") from None


def share(text: str) -> float:
    """So many CPUs or GPUs."""
    return number(text, least=0)


def number(text: str, *, least: float) -> float:
    """A finite number that is not below the least."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"should be a number, at least {least:g} (got {text})")
    return value


def at_least(least: int) -> Callable[[str], int]:
    """A whole number that is not below the least."""

    def whole(text: str) -> int:
        if not text.lstrip("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"should be a whole number, at least {least} (got {text})")
        return int(text)

    return whole
