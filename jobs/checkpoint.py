"""Looks after the checkpoints of a run: `python jobs/checkpoint.py ls|verify|rm RUN [NAME|STEP]`."""

import argparse
import sys
from collections.abc import Sequence

from iddpm_ray import storage
from iddpm_ray.checkpoint import inventory
from iddpm_ray.checkpoint.lease import check_free
from iddpm_ray.errors import CheckpointError, UserError
from iddpm_ray.runtime.hold import STALE_S


def main(argv: Sequence[str]) -> int:
    """Lists, verifies or removes; returns 0, 1 if a checkpoint is damaged, or 2 if what was asked for cannot be done."""
    wanted = _parser().parse_args(argv)
    run_url = storage.absolute(wanted.run)
    try:
        items = inventory.inventory(run_url)
        chosen = items if wanted.which is None else inventory.pick(items, wanted.which)
        if wanted.command == "ls":
            print(inventory.describe(chosen))
            return 0
        if wanted.command == "verify":
            return _verify(chosen)
        if not wanted.force:
            _check_idle(run_url)
        for item in chosen:
            inventory.remove(run_url, item, items=items, force=wanted.force)
            print(f"{item.checkpoint.name}: removed, {item.bytes:,} bytes")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # every store raises its own kinds
        print(f"error: {storage.shown(run_url)}: {storage.reason(error)}", file=sys.stderr)
        return 2
    return 0


def _check_idle(run_url: str) -> None:
    """Raises:
    CheckpointError: a driver holds the run, which may read or sweep what is removed.
    """
    try:
        check_free(run_url, stale_after_s=STALE_S)
    except CheckpointError as error:
        raise CheckpointError(error.what, value=error.value, fix=f"{error.fix}; --force removes it all the same") from None


def _verify(items: list[inventory.Item]) -> int:
    damaged = 0
    for item in items:
        wrong = inventory.damage(item)
        damaged += wrong is not None
        sound = f"sound, {len(item.stored.sizes)} files, {item.bytes:,} bytes" if item.stored.marked else "partial, nobody reads it"
        print(f"{item.checkpoint.name}: {wrong or sound}", flush=True)
    print(f"{damaged} of {len(items)} damaged")
    return 1 if damaged else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="ls|verify|rm")
    run = "directory of the run, at any fsspec URL: {run.output_dir}/{run.name}"
    which = "one checkpoint, by name (step-00001000.a0003) or step (1000)"
    listing = commands.add_parser("ls", help="what is there: step, attempt, bytes, age, whether complete, whether the run consists of it")
    verifying = commands.add_parser("verify", help="read and hash every file; exit code 1 if something is damaged")
    removing = commands.add_parser(
        "rm", help="unmark a checkpoint, then delete it; not the newest sound one, nor what an attempt began from"
    )
    for command in (listing, verifying):
        command.add_argument("run", metavar="RUN", help=run)
        command.add_argument("which", metavar="NAME|STEP", nargs="?", help=f"{which}; all of them if left out")
    removing.add_argument("run", metavar="RUN", help=run)
    removing.add_argument("which", metavar="NAME|STEP", help=which)
    removing.add_argument(
        "--force", action="store_true", help="remove it even if a driver has the run, the run goes on from it, or an attempt began from it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
