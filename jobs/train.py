"""Trains a diffusion model from a job spec: `python jobs/train.py spec.yaml`, or `ray job submit -- python jobs/train.py spec.yaml`."""

import sys

from iddpm_ray import cli
from iddpm_ray.errors import UserError


def main(argv: list[str]) -> int:
    """Parses, plans, and runs until finished or stopped; returns the exit code."""
    try:
        command = cli.parse(argv)
        if command.text is not None:  # --schema, --list-presets
            print(command.text)
            return 0
        return _train(command)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _train(command: cli.ParsedCommand) -> int:
    from iddpm_ray.plan import make_plan  # torch is imported only once the spec has been accepted

    assert command.spec is not None
    plan = make_plan(command.spec)
    if command.dry_run:
        print(plan.describe())
        return 0
    from iddpm_ray.runtime.launch import run

    ending = run(plan)
    print(ending.describe())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
