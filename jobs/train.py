"""Trains a diffusion model from a job spec: `python jobs/train.py spec.yaml`, or `ray job submit -- python jobs/train.py spec.yaml`."""

import sys

from iddpm_ray import cli
from iddpm_ray.errors import UserError
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import dump_yaml


def main(argv: list[str]) -> int:
    """Parses, plans, and runs until finished or stopped.

    Returns:
        the exit code: 0 finished, or stopped and saved; 2 something to mend; 130 interrupted before there was a run to save.
    """
    try:
        command = cli.parse(argv)
        if command.text is not None:  # --help, --schema, --reference, --list-presets
            print(command.text)
            return 0
        assert command.spec is not None
        return _train(command.spec, dry_run=command.dry_run)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the run took its signals over, or after it gave them back
        print("interrupted", file=sys.stderr)
        return 130


def _train(spec: JobSpec, *, dry_run: bool) -> int:
    from iddpm_ray.plan import make_plan  # torch is imported only once the spec has been accepted
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
    sys.exit(main(sys.argv[1:]))
