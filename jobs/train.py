"""Trains a diffusion model from a job spec: `python jobs/train.py spec.yaml`, or `ray job submit -- python jobs/train.py spec.yaml`."""

import sys
from typing import TYPE_CHECKING

from iddpm_ray import signals
from iddpm_ray.errors import UserError

if TYPE_CHECKING:
    from iddpm_ray.spec.spec import JobSpec


NOTHING_BEGUN = "interrupted: nothing was begun; the same command starts the run, or goes on with it"


def main(argv: list[str]) -> int:
    """Parses, plans, and runs until finished or stopped.

    Returns:
        the exit code: 0 finished, or stopped and saved; 2 something to mend; 130 SIGINT or SIGTERM before there was a run to save.
    """
    try:
        from iddpm_ray import cli  # whatever takes time is imported once signals are heard

        command = cli.parse(argv)
        if command.text is not None:  # --help, --schema, --reference, --list-presets
            print(command.text)
            return 0
        assert command.spec is not None
        return _train(command.spec, dry_run=command.dry_run)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(NOTHING_BEGUN, file=sys.stderr)
        return signals.INTERRUPTED


def _train(spec: "JobSpec", *, dry_run: bool) -> int:
    from iddpm_ray.plan import make_plan  # torch is imported only once the spec has been accepted
    from iddpm_ray.spec.text import dump_yaml
    from iddpm_ray.train.directory import inspect_run

    opening = inspect_run(spec)
    if dry_run:
        from iddpm_ray.runtime.cluster import here

        plan = make_plan(spec, opening.manifest, begins=opening.describe()).describe()
        print("\n".join(filter(None, [dump_yaml(spec), plan, here(spec)])))
        return 0
    from iddpm_ray.runtime.launch import run

    ending = run(opening)
    print(ending.describe(opening.url))
    return 0


if __name__ == "__main__":
    signals.run_main(main, interrupted=NOTHING_BEGUN)
