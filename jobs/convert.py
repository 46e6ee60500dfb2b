"""Moves networks to and from other formats, and flags into a spec: `python jobs/convert.py import|export|inspect|flags ...`."""

import argparse
import sys
from collections.abc import Sequence

from iddpm_ray import storage
from iddpm_ray.checkpoint.found import steps_of
from iddpm_ray.convert.command import open_wanted, parse, parser, spec_of_flags
from iddpm_ray.convert.source import describe
from iddpm_ray.convert.write import write_model
from iddpm_ray.evaluate.best import best_step
from iddpm_ray.evaluate.command import in_words


def main(argv: Sequence[str]) -> int:
    """Converts; returns 0, or 2 if what was asked for cannot be done."""
    wanted = parse(argv, parser(__doc__))
    try:
        match wanted.command:
            case "flags":
                print(spec_of_flags(wanted).yaml(), end="")
            case "inspect":
                print(describe(wanted.source))
            case _:
                _convert(wanted)
    except Exception as error:  # every store raises its own kinds
        said = in_words(error)
        if said is None:
            raise
        print(f"error: {said}", file=sys.stderr)
        return 2
    return 0


def _convert(wanted: argparse.Namespace) -> None:
    which = wanted.step if wanted.step != "best" else best_step(wanted.source, steps=[one.step for one in steps_of(wanted.source)])
    model = open_wanted(wanted, which=which)
    print(f"from {model.origin}", flush=True)
    write_model(
        model,
        wanted.to,
        say=lambda line: print(line, flush=True),
        overwrite=wanted.overwrite,
        respacing=wanted.respacing,
        tolerance=wanted.tolerance,
        use_up=True,
    )
    print(f"wrote {storage.shown(wanted.to)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
