"""A run on a cluster: `python jobs/cluster.py render|lint|plan|preflight|submit|status|stop|drill ...`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from iddpm_ray import cli
from iddpm_ray.errors import UserError


def main(argv: Sequence[str]) -> int:
    """Does what is asked; returns 0, 1 if it found something wrong, 2 if it could not be done, 130 if interrupted."""
    try:
        return _do(_parser().parse_args(argv))
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, words: str, *, spec: bool = True, address: bool = False) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=words, description=words)
        if spec:
            one.add_argument("spec", nargs="+", metavar="SPEC", help="a spec file at a path or URL, then section.key=value")
        if address:
            one.add_argument("--address", help="job API of a Ray, http://HOST:8265 (RAY_API_SERVER_ADDRESS); without one, kubectl is used")
        return one

    one = command("render", "print the objects of a run: ConfigMap and RayJob")
    one.add_argument("--cluster", action="store_true", help="print a RayCluster for `ray job submit` instead")
    one = command("lint", "judge manifests without a cluster; exit code 1 if anything is found", spec=False)
    one.add_argument("path", nargs="?", default="k8s", help="a directory with kustomizations and manifests, or a file (k8s)")
    one = command("plan", "what a run will take: machines, hours, cost, reclaims; refuses what does not fit")
    one.add_argument("--step-seconds", type=float, help="of a step, if known (from the GPU's peak rate)")
    one.add_argument("--from", dest="from_run", metavar="RUN", help="directory of a run whose steps took as long")
    one.add_argument("--reclaims-per-day", type=float, default=1.0, help="of one spot machine (1)")
    one.add_argument("--return-seconds", type=float, default=300.0, help="that a reclaim costs; `drill` measures it (300)")
    command("preflight", "try everything on the cluster that would end or slow the run; exit code 1 if something fails")
    one = command("submit", "start the run, or find it running, and show its log; again after its end, it resumes", address=True)
    one.add_argument("--detach", action="store_true", help="do not wait for the end")
    one.add_argument("--working-dir", help="send this directory along (with --address, where the machines have no code)")
    command("status", "where the run is", address=True)
    one = command("stop", "ask the run to save and end, and wait for it", address=True)
    one.add_argument("--forget", action="store_true", help="then delete its objects from Kubernetes, ended or not; its directory stays")
    one = command("drill", "take a machine away from a live run, with notice, and measure what that costs", spec=False)
    one.add_argument("run_url", metavar="RUN", help="directory of the run, {run.output_dir}/{run.name}")
    one.add_argument("--address", help="of the Ray that it runs on, HOST:6379 (RAY_ADDRESS)")
    one.add_argument("--seconds", type=float, default=12.0, help="of notice (12)")
    one.add_argument("--node", help="id or host name of the machine (one with the most ranks)")
    one.add_argument("--patience", type=float, default=900.0, help="seconds to wait for the run to come back (900)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
