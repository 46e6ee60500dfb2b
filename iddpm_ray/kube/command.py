"""The command line of `jobs/cluster.py`."""

import argparse


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of `jobs/cluster.py`."""
    made = argparse.ArgumentParser(description=description)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")

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
    return made
