"""A run on a cluster: `python jobs/cluster.py render|lint|plan|preflight|submit|status|stop|drill ...`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from iddpm_ray import cli, storage
from iddpm_ray.errors import SpecError, UserError
from iddpm_ray.kube.forecast import Pace
from iddpm_ray.spec.spec import JobSpec


def main(argv: Sequence[str]) -> int:
    """Does what is asked; returns 0, 1 if it found something wrong, 2 if it could not be done, 130 if interrupted."""
    wanted = _parser().parse_args(argv)
    try:
        return wanted.run(wanted)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what runs on the cluster goes on", file=sys.stderr)
        return 130


def render(wanted: argparse.Namespace) -> int:
    from iddpm_ray.kube import render

    spec = _spec(wanted)
    print(render.to_yaml(render.cluster(spec) if wanted.cluster else render.job(spec)), end="")
    return 0


def lint(wanted: argparse.Namespace) -> int:
    from iddpm_ray.kube.lint import lint

    verdict = lint(Path(wanted.path))
    for finding in verdict.findings:
        print(finding)
    objects = sum(verdict.looked.values())
    print(f"{len(verdict.findings)} findings in {objects} objects of {len(verdict.looked)} places: {', '.join(verdict.looked)}")
    return 1 if verdict.findings else 0


def plan(wanted: argparse.Namespace) -> int:
    from iddpm_ray.kube import forecast
    from iddpm_ray.plan import FORWARDS_A_STEP, make_plan
    from iddpm_ray.train.directory import inspect_run

    spec = _spec(wanted)
    opening = inspect_run(spec)
    made = make_plan(spec, opening.manifest, begins=opening.describe())
    print(made.describe())
    cost = made.cost
    forecast.check_memory(spec, state_bytes=cost.state_bytes, activation_bytes=cost.activation_bytes, samples=made.microbatch or 1)
    if wanted.step_seconds is not None:
        pace = forecast.Pace(wanted.step_seconds, "given")
    elif wanted.from_run is not None:
        pace = _measured(wanted.from_run)
    else:
        pace = forecast.assumed_pace(spec, flop=FORWARDS_A_STEP * cost.forward_flop * spec.train.global_batch)
    taken = forecast.forecast(spec, steps=made.steps, pace=pace, reclaims_a_day=wanted.reclaims_per_day, return_s=wanted.return_seconds)
    print(taken.describe(spec))
    return 0


def preflight(wanted: argparse.Namespace) -> int:
    from iddpm_ray.runtime import preflight as flight

    checks = flight.preflight(_spec(wanted), show=_say)
    print(flight.table(checks))
    return flight.worst(checks)


def submit(wanted: argparse.Namespace) -> int:
    spec, address = _spec(wanted), _address(wanted)
    if address is None:
        from iddpm_ray.kube import kubectl

        kubectl.submit(spec, show=_say)
        return 0 if wanted.detach else kubectl.follow(spec, show=_say)
    from iddpm_ray.runtime.submit import Remote

    remote = Remote.at(address)
    name = remote.submit(spec, working_dir=wanted.working_dir, show=_say)
    return 0 if wanted.detach else remote.follow(name, show=_say)


def status(wanted: argparse.Namespace) -> int:
    from iddpm_ray.checkpoint.commit import complete

    spec, address = _spec(wanted), _address(wanted)
    if address is None:
        from iddpm_ray.kube import kubectl

        there = kubectl.state(spec)
        print("the cluster does not know the run" if there is None else f"{there.describe()}\n{kubectl.pods(spec)}".strip())
    else:
        from iddpm_ray.runtime.submit import Remote

        jobs = Remote.at(address).jobs(spec)
        print("\n".join(f"job {job.submission_id}: {job.status.value}" for job in jobs) or "no job has had the run")
    url = storage.join(spec.run.output_dir, spec.run.name)
    newest = max(complete(url), key=lambda one: (one.attempt, one.step), default=None)
    print(f"{storage.shown(url)}: " + ("no checkpoint yet" if newest is None else f"newest checkpoint {newest.name}"))
    return 0


def stop(wanted: argparse.Namespace) -> int:
    spec, address = _spec(wanted), _address(wanted)
    if address is None:
        from iddpm_ray.kube import kubectl

        code = kubectl.stop(spec, show=_say)
        if wanted.forget:
            _say(kubectl.forget(spec))
        return code
    from iddpm_ray.runtime.submit import Remote

    return Remote.at(address).stop(spec, show=_say)


def drill(wanted: argparse.Namespace) -> int:
    from iddpm_ray.runtime.drill import drill

    address = wanted.address or os.environ.get("RAY_ADDRESS")
    if not address:
        raise SpecError("the cluster to drill is not known", fix="give --address HOST:6379, or run it on the cluster with `ray job submit`")
    url = storage.absolute(wanted.run_url)
    print(drill(url, address=address, seconds=wanted.seconds, patience_s=wanted.patience, node=wanted.node, show=_say).describe())
    return 0


def _spec(wanted: argparse.Namespace) -> JobSpec:
    spec = cli.parse(wanted.spec).spec
    assert spec is not None, "flags that only print are no words of this program"
    return spec


def _address(wanted: argparse.Namespace) -> str | None:
    return wanted.address or os.environ.get("RAY_API_SERVER_ADDRESS") or None


def _measured(url: str) -> Pace:
    from iddpm_ray.report.read import read_run

    step_s = read_run(url).account.step_s
    if step_s is None:
        raise SpecError(f"{storage.shown(url)} has not stepped yet", fix="give --step-seconds")
    return Pace(step_s, f"measured in {storage.shown(url)}")


def _say(text: str) -> None:
    if text:
        print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(run: object, words: str, *, address: bool = False) -> argparse.ArgumentParser:
        one = commands.add_parser(run.__name__, help=words, description=words)  # type: ignore[attr-defined] a function
        one.set_defaults(run=run)
        if run not in (lint, drill):
            one.add_argument("spec", nargs="+", metavar="SPEC", help="a spec file at a path or URL, then section.key=value")
        if address:
            one.add_argument("--address", help="job API of a Ray, http://HOST:8265 (RAY_API_SERVER_ADDRESS); without one, kubectl is used")
        return one

    rendered = command(render, "print the objects of a run: ConfigMap and RayJob")
    rendered.add_argument("--cluster", action="store_true", help="print a RayCluster for `ray job submit` instead")
    linted = command(lint, "judge manifests without a cluster; exit code 1 if anything is found")
    linted.add_argument("path", nargs="?", default="k8s", help="a directory with kustomizations and manifests, or a file (k8s)")
    planned = command(plan, "what a run will take: machines, hours, cost, reclaims; refuses what does not fit")
    planned.add_argument("--step-seconds", type=float, help="of a step, if known (from the GPU's peak rate)")
    planned.add_argument("--from", dest="from_run", metavar="RUN", help="directory of a run whose steps took as long")
    planned.add_argument("--reclaims-per-day", type=float, default=1.0, help="of one spot machine (1)")
    planned.add_argument("--return-seconds", type=float, default=300.0, help="that a reclaim costs; `drill` measures it (300)")
    command(preflight, "try everything on the cluster that would end or slow the run; exit code 1 if something fails")
    submitted = command(submit, "start the run, or find it running, and show its log; again after its end, it resumes", address=True)
    submitted.add_argument("--detach", action="store_true", help="do not wait for the end")
    submitted.add_argument("--working-dir", help="send this directory along (with --address, where the machines have no code)")
    command(status, "where the run is", address=True)
    stopped = command(stop, "ask the run to save and end, and wait for it", address=True)
    stopped.add_argument("--forget", action="store_true", help="then delete its objects from Kubernetes; its directory stays")
    drilled = command(drill, "take a machine away from a live run, with notice, and measure what that costs")
    drilled.add_argument("run_url", metavar="RUN", help="directory of the run, {run.output_dir}/{run.name}")
    drilled.add_argument("--address", help="of the Ray that it runs on, HOST:6379 (RAY_ADDRESS)")
    drilled.add_argument("--seconds", type=float, default=12.0, help="of notice (12)")
    drilled.add_argument("--node", help="id or host name of the machine (the busiest)")
    drilled.add_argument("--patience", type=float, default=900.0, help="seconds to wait for the run to come back (900)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
