"""The RayClusters inside any manifest, wherever they stand, with the path to them; and the containers that KubeRay would start of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from iddpm_ray.kube.machines import MACHINES, Machine
from iddpm_ray.kube.objects import Data, get, items, mapping, namespace

SPOT, PROVISIONING = "cloud.google.com/gke-spot", "cloud.google.com/gke-provisioning"
ACCELERATOR = "cloud.google.com/gke-accelerator"
MACHINE = "node.kubernetes.io/instance-type"
GPU = "nvidia.com/gpu"
HEAD_GROUP = "headgroup"


@dataclass(frozen=True)
class Group:
    """A group of pods: the head, or one kind of worker.

    Attributes:
        path: of the group in its manifest.
        head: whether it is the head.
        data: as written.
        cluster: name of the RayCluster; None where the operator thinks of one.
    """

    path: str
    head: bool
    data: Data
    cluster: str | None = None

    @property
    def name(self) -> str:
        return "the head" if self.head else f"group {get(self.data, 'groupName')}"

    @property
    def pod(self) -> Data:
        return mapping(self.data, "template", "spec")

    @property
    def pod_path(self) -> str:
        return f"{self.path}.template.spec"

    @property
    def labels(self) -> Data:
        """Of its pods: the template's, and those that KubeRay adds."""
        given = {"app.kubernetes.io/name": "kuberay", "app.kubernetes.io/created-by": "kuberay-operator"}
        fixed = {
            "ray.io/is-ray-node": "yes",
            "ray.io/node-type": "head" if self.head else "worker",
            "ray.io/group": HEAD_GROUP if self.head else get(self.data, "groupName"),
        }
        named = {} if self.cluster is None else {"ray.io/cluster": self.cluster}
        return {**given, **mapping(self.data, "template", "metadata", "labels"), **fixed, **named}

    @property
    def container(self) -> Data:
        """The one that Ray runs in."""
        return mapping(self.pod, "containers", 0)

    @property
    def container_path(self) -> str:
        return f"{self.pod_path}.containers[0]"

    @property
    def selector(self) -> Data:
        return mapping(self.pod, "nodeSelector")

    @property
    def spot(self) -> bool:
        """Whether it asks for spot machines."""
        return self.selector.get(SPOT) == "true" or self.selector.get(PROVISIONING) == "spot" or self._every_term(_asks_for_spot)

    @property
    def never_spot(self) -> bool:
        """Whether it keeps off spot machines, by rule and not by luck."""
        return self.selector.get(PROVISIONING) == "standard" or self._every_term(_keeps_off_spot)

    @property
    def machine(self) -> Machine | None:
        """The machine type that it asks for, if known here."""
        return MACHINES.get(str(self.selector.get(MACHINE)))

    @property
    def google(self) -> bool:
        """Whether it is meant for GKE."""
        keys = [*self.selector, *(get(one, "key") for term in self.terms for one in term)]
        return any(str(key).startswith("cloud.google.com/") for key in keys)

    @property
    def terms(self) -> list[list[Data]]:
        """The required node affinity: a machine has to fit one of the terms, and each expression of it."""
        must = mapping(self.pod, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        given = [one for one in items(must, "nodeSelectorTerms") if get(one, "matchExpressions") or get(one, "matchFields")]
        return [items(one, "matchExpressions") for one in given]

    def _every_term(self, says: Callable[[Data], bool]) -> bool:
        return bool(self.terms) and all(any(says(one) for one in term) for term in self.terms)


def _asks_for_spot(one: Data) -> bool:
    match get(one, "key"), get(one, "operator"):
        case (key, "In") if key in (SPOT, PROVISIONING):
            return items(one, "values") == ["true" if key == SPOT else "spot"]
        case (key, operator):
            return key == SPOT and operator == "Exists"


def _keeps_off_spot(one: Data) -> bool:
    match get(one, "key"), get(one, "operator"):
        case (key, "NotIn") if key in (SPOT, PROVISIONING):
            return ("true" if key == SPOT else "spot") in items(one, "values")
        case (key, "In"):
            return key == PROVISIONING and items(one, "values") == ["standard"]
        case (key, operator):
            return key == SPOT and operator == "DoesNotExist"


@dataclass(frozen=True)
class Cluster:
    """A RayCluster's spec, its path in the manifest, and the manifest's namespace."""

    path: str
    namespace: str | None
    spec: Data
    head: Group
    workers: tuple[Group, ...]

    @property
    def google(self) -> bool:
        """Whether it is meant for GKE."""
        return any(group.google for group in self.groups)

    @property
    def groups(self) -> tuple[Group, ...]:
        return (self.head, *self.workers)


def clusters(one: Data) -> Iterator[Cluster]:
    """Every RayCluster that a manifest describes."""
    places = {
        "RayCluster": ("spec",),
        "RayService": ("spec", "rayClusterConfig"),
        "RayJob": ("spec", "rayClusterSpec"),
        "RayCronJob": ("spec", "jobTemplate", "rayClusterSpec"),
    }
    steps = places.get(str(one.get("kind")))
    spec = None if steps is None else get(one, *steps)
    if steps is None or spec is None:
        return
    path = ".".join(steps)
    name = get(one, "metadata", "name") if one.get("kind") == "RayCluster" else None
    head = Group(f"{path}.headGroupSpec", True, mapping(spec, "headGroupSpec"), name)
    workers = [Group(f"{path}.workerGroupSpecs[{n}]", False, group, name) for n, group in enumerate(items(spec, "workerGroupSpecs"))]
    yield Cluster(path, namespace(one), spec, head, tuple(workers))


def containers(cluster: Cluster, group: Group) -> Iterator[tuple[str, Data]]:
    """Every container of a pod with its path, those that KubeRay adds among them."""
    for kind in ("initContainers", "containers"):
        for index, one in enumerate(items(group.pod, kind)):
            yield f"{group.pod_path}.{kind}[{index}]", one
    if group.head and get(cluster.spec, "enableInTreeAutoscaling") is True:
        yield f"{cluster.path}.autoscalerOptions", mapping(cluster.spec, "autoscalerOptions")
