"""Names: those that are almost what somebody reads, which are accepted and have no effect, and those that no label can have."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

NODE_LABELS = (
    *("kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os", "node.kubernetes.io/instance-type"),
    *("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.gke.io/zone"),
    *(
        f"cloud.google.com/{name}"
        for name in (
            *("compute-class", "gke-accelerator", "gke-accelerator-count", "gke-boot-disk", "gke-gpu-driver-version", "gke-nodepool"),
            *("gke-gpu-partition-size", "gke-gpu-sharing-strategy", "gke-local-nvme-ssd", "gke-max-shared-clients-per-gpu"),
            *("gke-os-distribution", "gke-placement-group", "gke-preemptible", "gke-provisioning", "gke-spot", "machine-family"),
            *("gke-tpu-accelerator", "gke-tpu-topology", "reservation-affinity", "reservation-name", "reservation-project"),
        )
    ),
)
VARIABLES = (
    *("RAY_AUTH_MODE", "RAY_DASHBOARD_MAX_EVENTS_TO_CACHE", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "RAY_JOB_STOP_WAIT_TIME_S"),
    *("RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "RAY_USAGE_STATS_ENABLED"),
)
ANNOTATIONS = (
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "iam.gke.io/gcp-service-account",
    "ray.io/overwrite-container-cmd",
)
_CLOSE, _PART = 0.9, 0.8
_PLAIN = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"((?=.{{1,253}}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?{_PLAIN}")
_VALUE = re.compile(rf"({_PLAIN})?")


def label_key(text: str) -> bool:
    """Whether Kubernetes takes it as the key of a label or an annotation."""
    return _KEY.fullmatch(text) is not None


def label_value(text: str) -> bool:
    """Whether Kubernetes takes it as the value of a label."""
    return _VALUE.fullmatch(text) is not None


def meant(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None where the name is known, or like none of them."""
    names = tuple(known)
    return None if name in names else next((one for one in names if _alike(name, one)), None)


def _alike(name: str, other: str) -> bool:
    """A name may have a prefix before a slash: then one of the two parts is right, and the other almost."""
    before, _, last = name.rpartition("/")
    prefix, _, suffix = other.rpartition("/")
    if not prefix:
        return _ratio(name, other) >= _CLOSE
    return (before == prefix and _ratio(last, suffix) >= _PART) or (last == suffix and _ratio(before, prefix) >= _PART)


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one.lower(), other.lower()).ratio()
