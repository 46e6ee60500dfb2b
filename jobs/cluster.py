"""A run on a cluster: `python jobs/cluster.py render|lint|plan|preflight|submit|status|stop|drill ...`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from iddpm_ray import cli, signals
from iddpm_ray.errors import UserError
from iddpm_ray.kube.command import parser


def main(argv: Sequence[str]) -> int:
    """Does what is asked; returns 0, 1 if it found something wrong, 2 if it could not be done, 130 if interrupted."""
    try:
        return _do(parser(__doc__).parse_args(argv))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what runs on the cluster goes on", file=sys.stderr)
        return 130


def _do(wanted: argparse.Namespace) -> int:
    if wanted.command == "lint":
        from iddpm_ray.kube.lint import report

        return report(Path(wanted.path), show=_say)
    if wanted.command == "drill":
        from iddpm_ray.runtime.drill import drill

        address = wanted.address or os.environ.get("RAY_ADDRESS")
        made = drill(wanted.run_url, address=address, seconds=wanted.seconds, patience_s=wanted.patience, node=wanted.node, show=_say)
        _say(made.describe())
        return 0
    spec = cli.parse(wanted.spec).spec
    assert spec is not None, "flags that only print are no words of this program"
    if wanted.command == "render":
        from iddpm_ray.kube.render import cluster, job, to_yaml

        print(to_yaml(cluster(spec) if wanted.cluster else job(spec)), end="")
        return 0
    if wanted.command == "plan":
        from iddpm_ray.report.outlook import Known, outlook

        outlook(spec, Known(wanted.step_seconds, wanted.from_run, wanted.reclaims_per_day, wanted.return_seconds), show=_say)
        return 0
    if wanted.command == "preflight":
        from iddpm_ray.runtime.preflight import report as report_flight

        return report_flight(spec, show=_say)
    from iddpm_ray.runtime import send

    address = wanted.address or os.environ.get("RAY_API_SERVER_ADDRESS") or None
    match wanted.command:
        case "submit":
            return send.submit(spec, address=address, working_dir=wanted.working_dir, detach=wanted.detach, show=_say)
        case "stop":
            return send.stop(spec, address=address, forget=wanted.forget, show=_say)
        case _:
            return send.status(spec, address=address, show=_say)


def _say(text: str) -> None:
    if text:
        print(text, flush=True)


if __name__ == "__main__":
    signals.run_main(main)
