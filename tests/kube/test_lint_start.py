"""Options of `ray start` that keep Ray from starting or lie to it, and ports that are not where their names say, are found."""

from typing import Any

import pytest
from kube.test_lint import Change, Objects, container, head, overlay, put, workers
from kube.test_lint import _found as found

from iddpm_ray.kube.lint import judge
from iddpm_ray.kube.rules_start import FLAGS, OPTIONS, WHOLE


def told(name: str, value: str) -> Change:
    return lambda o: put(workers(o)["rayStartParams"], name, value)


def told_head(name: str, value: str) -> Change:
    return lambda o: put(head(o)["rayStartParams"], name, value)


def port(o: Objects, name: str, group: Any = head) -> Any:
    return next(one for one in container(group(o))["ports"] if one["name"] == name)


def moved(name: str, number: int, group: Any = head) -> Change:
    return lambda o: put(port(o, name, group), "containerPort", number)


def added(name: str, number: int) -> Change:
    return lambda o: container(head(o))["ports"].append({"name": name, "containerPort": number})


BROKEN: dict[str, tuple[Change, str, str]] = {
    "store as a quantity": (told("object-store-memory", "5Gi"), "start", "is no whole number"),
    "store below Ray's least": (told("object-store-memory", "1000"), "start", "less than the 78643200"),
    "store of the head below Ray's least": (told_head("object-store-memory", "1000"), "start", "less than the 78643200"),
    "unknown option": (told("object-store-memry", "1"), "start", "is no option of `ray start`"),
    "more CPUs than the pod has": (told("num-cpus", "64"), "start", "64 CPUs, the pod has 7"),
    "no CPUs": (told("num-cpus", "0"), "start", "waits for ever"),
    "memory that is not there": (told("memory", "999999999999"), "start", "is killed for memory"),
    "no block": (told("block", "false"), "start", "ends when it returns"),
    "no block on the head": (told_head("block", "false"), "start", "ends when it returns"),
    "a flag of its own": (told("no-monitor", "maybe"), "start", "neither true nor false"),
    "another head": (told("address", "10.0.0.1:6379"), "start", "another head"),
    "no dashboard": (told_head("include-dashboard", "false"), "start", "no job ever starts"),
    "state elsewhere": (told_head("port", "6380"), "ports", "is 6379, and Ray opens 6380"),
    "dashboard elsewhere": (told_head("dashboard-port", "9265"), "ports", "is 8265, and Ray opens 9265"),
    "dashboard elsewhere, and kept out": (told_head("dashboard-port", "9265"), "network", "reach TCP port 9265"),
    "metrics elsewhere": (told("metrics-export-port", "9000"), "ports", "is 8080, and Ray opens 9000"),
    "client elsewhere": (told_head("ray-client-server-port", "10002"), "ports", "Ray opens 10002"),
    "agent elsewhere": (told_head("dashboard-agent-listen-port", "52366"), "network", "reach TCP port 52366"),
    "name of the dashboard at another port": (moved("dashboard", 8256), "ports", "is 8256, and Ray opens 8265"),
    "name of the state at another port": (moved("gcs", 6380), "ports", "is 6380, and Ray opens 6379"),
    "name of the metrics at another port": (moved("metrics", 9090), "ports", "Ray opens 8080"),
    "name of a worker's metrics at another port": (moved("metrics", 9090, workers), "ports", "Ray opens 8080"),
    "name of the autoscaler's at another port": (moved("as-metrics", 44218), "ports", "Ray opens 44217"),
    "name of the dashboard's own at another port": (moved("dash-metrics", 1), "ports", "Ray opens 44227"),
    "a name twice": (added("metrics", 9), "ports", "metrics stands twice"),
    "a long name": (added("a-very-long-port-name", 9), "ports", "at most 15"),
    "a name of digits": (added("8080", 9), "ports", "at most 15 small letters"),
    "no such port": (added("x", 70000), "ports", "70000 is no port"),
}

VALID: dict[str, Change] = {
    "fewer CPUs than the pod has": told("num-cpus", "6"),
    "CPUs that the pod has": told("num-cpus", "7"),
    "GPUs that the pod has": told("num-gpus", "1"),
    "memory that the pod has": told("memory", "21474836480"),
    "block": told("block", "true"),
    "scratch elsewhere": told("temp-dir", "/tmp/ray"),
    "Ray's own ports": lambda o: head(o)["rayStartParams"].update(
        {"port": "6379", "dashboard-port": "8265", "metrics-export-port": "8080"}
    ),
    "a port of one's own": added("profiler", 4000),
    "the state moved whole": lambda o: (put(head(o)["rayStartParams"], "port", "6380"), moved("gcs", 6380)(o)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_mistake_in_what_ray_is_started_with_is_found(name: str) -> None:
    found(overlay(), *BROKEN[name])


@pytest.mark.parametrize("name", VALID)
def test_options_that_say_the_truth_are_without_findings(name: str) -> None:
    objects = overlay()
    VALID[name](objects)
    assert [str(one) for one in judge(objects, where="here")] == []


@pytest.mark.filterwarnings("ignore")
def test_the_options_are_those_of_the_ray_that_is_installed() -> None:
    from ray.scripts.scripts import start

    real = {one.opts[0].removeprefix("--"): one for one in start.params}
    assert set(real) - {"-v"} == OPTIONS
    assert {name for name, one in real.items() if one.type.name == "integer"} == WHOLE
    assert {name for name, one in real.items() if one.type.name == "boolean"} == FLAGS
