"""House rules about names: labels that no label may be, names that stand twice, and names that are almost right."""

from collections.abc import Iterator

from iddpm_ray.kube.clusters import Cluster, Group, clusters
from iddpm_ray.kube.objects import Data, Flaw, get, items, mapping
from iddpm_ray.kube.spelling import ANNOTATIONS, VARIABLES, label_key, label_value, meant

_OF_POD = {
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "preemptionPolicy": ("Never", "PreemptLowerPriority"),
    "restartPolicy": ("Always", "OnFailure", "Never"),
}
_OF_TOLERATION = {"operator": ("Exists", "Equal"), "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute")}
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_PULL, _PROTOCOLS = ("Always", "IfNotPresent", "Never"), ("TCP", "UDP", "SCTP")
_REFUSED = "the API server refuses it"


def check_names(one: Data) -> Iterator[Flaw]:
    """What is wrong with the names in an object of any kind, and in the pods that come of it."""
    yield from _metadata(mapping(one, "metadata"), "metadata")
    for cluster in clusters(one):
        for group in cluster.groups:
            yield from _metadata(mapping(group.data, "template", "metadata"), f"{group.path}.template.metadata")
            yield from _labels(group.selector, f"{group.pod_path}.nodeSelector")
            yield from _twice(group)
            yield from _choices(group)
        yield from _variables(cluster)
        pull = get(cluster.spec, "autoscalerOptions", "imagePullPolicy")
        if pull not in (None, "", *_PULL):
            reason = f"{pull} is none of {', '.join(_PULL)}: the API server refuses the head"
            yield Flaw(f"{cluster.path}.autoscalerOptions.imagePullPolicy", "names", reason)


def _metadata(metadata: Data, path: str) -> Iterator[Flaw]:
    yield from _labels(mapping(metadata, "labels"), f"{path}.labels")
    for key in mapping(metadata, "annotations"):
        right = meant(str(key), ANNOTATIONS)
        if not label_key(str(key)):
            yield Flaw(f"{path}.annotations", "names", f"{key!r} is no key: {_REFUSED}")
        elif right is not None:
            yield Flaw(f"{path}.annotations {key}", "names", f"is read by nobody ({right}?)")


def _labels(labels: Data, path: str) -> Iterator[Flaw]:
    for key, value in labels.items():
        if not label_key(str(key)):
            yield Flaw(path, "names", f"{key!r} is no key of a label: {_REFUSED}")
        if not label_value(str(value)):
            reason = f"{str(value)[:70]!r} should be at most 63 letters, digits, dashes, dots and underscores: {_REFUSED}"
            yield Flaw(f"{path} {key}", "names", reason)


def _twice(group: Group) -> Iterator[Flaw]:
    yield from _repeated(group.pod, "volumes", "name", group.pod_path)
    yield from _repeated(group.pod, "containers", "name", group.pod_path)
    for index, one in enumerate(items(group.pod, "containers")):
        at = f"{group.pod_path}.containers[{index}]"
        yield from _repeated(one, "volumeMounts", "mountPath", at)
        yield from _repeated(one, "env", "name", at)


def _choices(group: Group) -> Iterator[Flaw]:
    """Words of a pod that are one of a few; KubeRay's schema takes any."""
    given = [(f"{group.pod_path}.{key}", get(group.pod, key), words) for key, words in _OF_POD.items()]
    for index, one in enumerate(items(group.pod, "tolerations")):
        given += [(f"{group.pod_path}.tolerations[{index}].{key}", get(one, key), words) for key, words in _OF_TOLERATION.items()]
    given += [(f"{group.pod_path}.affinity operator", get(one, "operator"), _OPERATORS) for term in group.terms for one in term]
    for index, one in enumerate(items(group.pod, "containers")):
        path = f"{group.pod_path}.containers[{index}]"
        given.append((f"{path}.imagePullPolicy", get(one, "imagePullPolicy"), _PULL))
        given += [(f"{path}.ports protocol", get(port, "protocol"), _PROTOCOLS) for port in items(one, "ports")]
    for path, word, words in given:
        if word not in (None, "", *words):
            yield Flaw(path, "names", f"{word} is none of {', '.join(words)}: the API server refuses every pod")


def _repeated(where: Data, key: str, inner: str, path: str) -> Iterator[Flaw]:
    names = [get(one, inner) for one in items(where, key)]
    for name in sorted({str(name) for name in names if names.count(name) > 1}):
        reason = "stands twice: " + ("the last one counts, and a server-side apply refuses both" if key == "env" else "no pod is made")
        yield Flaw(f"{path}.{key} {name}", "names", reason)


def _variables(cluster: Cluster) -> Iterator[Flaw]:
    for group in cluster.groups:
        for one in items(group.container, "env"):
            right = meant(str(get(one, "name")), VARIABLES)
            if right is not None:
                yield Flaw(f"{group.container_path}.env {get(one, 'name')}", "names", f"is read by nobody ({right}?)")
