"""The doors of Ray's pods: the ports that `ray start` opens, by the names that manifests give them."""

from iddpm_ray.kube.clusters import Group
from iddpm_ray.kube.objects import get, items, quantity

NAMED = {
    "gcs": ("port", 6379),
    "dashboard": ("dashboard-port", 8265),
    "client": ("ray-client-server-port", 10001),
    "metrics": ("metrics-export-port", 8080),
    "as-metrics": (None, 44217),
    "dash-metrics": (None, 44227),
}
"""Option of `ray start` that moves it, if there is one, and the port; the first three are open on the head alone."""

AGENT = ("dashboard-agent-listen-port", 52365)
ON_WORKERS = ("metrics",)


def opened(group: Group, name: str) -> int:
    """The port that a pod opens under one of these names, whatever its container's `ports` say."""
    return _moved(group, *NAMED[name])


def agent(group: Group) -> int:
    """The port of Ray's agent."""
    return _moved(group, *AGENT)


def written(group: Group) -> dict[str, int]:
    """Names and numbers of the ports that the containers say they have; policies and monitors find ports by these names."""
    ports = [port for one in items(group.pod, "containers") for port in items(one, "ports")]
    return {str(get(port, "name")): get(port, "containerPort") for port in ports if get(port, "name") is not None}


def _moved(group: Group, option: str | None, port: int) -> int:
    given = None if option is None else quantity(get(group.data, "rayStartParams", option))
    return port if given is None else int(given)
