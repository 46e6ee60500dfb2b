"""What KubeRay's operator refuses after the API server has accepted it: the object then stays without pods, and says so in an event.

The rules are those of KubeRay 1.7's validation of RayCluster, RayJob, RayCronJob and RayService, restated.
"""

import re
from collections.abc import Iterator

import yaml

from iddpm_ray.kube.objects import Data, Flaw, environment, get, items, mapping

LONGEST = {"RayCluster": 53, "RayService": 47, "RayJob": 47, "RayCronJob": 36}
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_ORDER = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")
_STUCK = "KubeRay refuses it after it was applied: no pod ever starts"


def check_operator(one: Data) -> Iterator[Flaw]:
    """Flaws that the operator refuses."""
    kind = str(one.get("kind"))
    if kind not in LONGEST:
        return
    name = str(get(one, "metadata", "name") or "")
    if len(name) > LONGEST[kind]:
        yield _flaw("metadata.name", f"{len(name)} characters, a {kind} has at most {LONGEST[kind]}")
    if not _DNS_1035.fullmatch(name):
        yield _flaw("metadata.name", f"{name!r} should begin with a small letter and hold small letters, digits and dashes")
    match kind:
        case "RayCluster":
            yield from _cluster(mapping(one, "spec"), "spec", mapping(one, "metadata", "annotations"))
        case "RayService":
            yield from _cluster(mapping(one, "spec", "rayClusterConfig"), "spec.rayClusterConfig", {})
        case "RayJob":
            yield from _job(mapping(one, "spec"), "spec")
        case _:
            if len(str(get(one, "spec", "schedule") or "").split()) != 5 and not str(get(one, "spec", "schedule")).startswith("@"):
                yield _flaw("spec.schedule", "should be a cron schedule of five fields")
            yield from _job(mapping(one, "spec", "jobTemplate"), "spec.jobTemplate")


def _flaw(path: str, reason: str) -> Flaw:
    return Flaw(path, "operator", f"{reason}; {_STUCK}")


def _cluster(spec: Data, at: str, annotations: Data) -> Iterator[Flaw]:
    groups = [(f"{at}.headGroupSpec", mapping(spec, "headGroupSpec"))]
    groups += [(f"{at}.workerGroupSpecs[{index}]", group) for index, group in enumerate(items(spec, "workerGroupSpecs"))]
    scaling = get(spec, "enableInTreeAutoscaling") is True
    head_env = environment(mapping(spec, "headGroupSpec", "template", "spec", "containers", 0))
    version2 = get(spec, "autoscalerOptions", "version") == "v2" or head_env.get("RAY_enable_autoscaler_v2") in ("1", "true")
    for path, group in groups:
        start = mapping(group, "rayStartParams")
        if not items(group, "template", "spec", "containers"):
            yield _flaw(f"{path}.template.spec.containers", "needs at least one container")
        if mapping(group, "resources") and any(start.get(key) for key in ("num-cpus", "num-gpus", "memory", "resources")):
            yield _flaw(f"{path}.resources", "resources are given here and in rayStartParams: keep one")
        if "labels" in start:
            yield _flaw(f"{path}.rayStartParams.labels", "belong in the field labels of the group")
        for key, value in mapping(group, "labels").items():
            if not _LABEL_KEY.fullmatch(str(key)) or not _LABEL_VALUE.fullmatch(str(value)):
                yield _flaw(f"{path}.labels", f"{key}={value} is no label")
        if scaling and version2 and get(group, "template", "spec", "restartPolicy") not in (None, "", "Never"):
            yield _flaw(f"{path}.template.spec.restartPolicy", "should be Never or left out with autoscaler v2")
        if get(group, "suspend") is True:
            why = "with autoscaling" if scaling else "without the feature gate RayJobDeletionPolicy"
            yield _flaw(f"{path}.suspend", f"a group cannot be suspended {why}")
    if scaling and get(spec, "autoscalerOptions", "version") is not None and "RAY_enable_autoscaler_v2" in head_env:
        yield _flaw(f"{at}.autoscalerOptions.version", "and RAY_enable_autoscaler_v2 on the head are both set: keep the former")
    if not scaling and head_env.get("RAY_enable_autoscaler_v2") in ("1", "true"):
        yield _flaw(f"{at}.enableInTreeAutoscaling", "is off, and RAY_enable_autoscaler_v2 is set on the head")
    yield from _fault_tolerance(spec, at, annotations, head_env)
    if get(spec, "authOptions", "mode") == "token":
        version = re.match(r"v?(\d+)\.(\d+)", str(get(spec, "rayVersion") or ""))
        if version is None or (int(version[1]), int(version[2])) < (2, 52):
            yield _flaw(f"{at}.rayVersion", "should be 2.52.0 or newer for authOptions.mode token")


def _fault_tolerance(spec: Data, at: str, annotations: Data, head_env: Data) -> Iterator[Flaw]:
    start = mapping(spec, "headGroupSpec", "rayStartParams")
    options = get(spec, "gcsFaultToleranceOptions")
    annotated = annotations.get("ray.io/ft-enabled")
    if annotated and options is not None:
        yield _flaw(f"{at}.gcsFaultToleranceOptions", "and the annotation ray.io/ft-enabled are both set: keep the former")
    if options is None and annotated != "true" and "RAY_REDIS_ADDRESS" in head_env:
        yield _flaw(f"{at}.headGroupSpec", "RAY_REDIS_ADDRESS is set without gcsFaultToleranceOptions")
    if options is not None:
        for name in ("REDIS_PASSWORD", "RAY_REDIS_ADDRESS"):
            if name in head_env:
                yield _flaw(f"{at}.headGroupSpec", f"{name} is set beside gcsFaultToleranceOptions, where it belongs")
        if start.get("redis-password"):
            yield _flaw(f"{at}.headGroupSpec.rayStartParams.redis-password", "belongs in gcsFaultToleranceOptions")
    if start.get("redis-username") or "REDIS_USERNAME" in head_env:
        yield _flaw(f"{at}.headGroupSpec", "a redis user name belongs in gcsFaultToleranceOptions")


def _job(job: Data, at: str) -> Iterator[Flaw]:
    selector, inner, mode = mapping(job, "clusterSelector"), get(job, "rayClusterSpec"), get(job, "submissionMode")
    shutdown = get(job, "shutdownAfterJobFinishes") is True
    if get(job, "suspend") is True and not shutdown:
        yield _flaw(f"{at}.suspend", "needs shutdownAfterJobFinishes: true")
    if get(job, "suspend") is True and selector:
        yield _flaw(f"{at}.suspend", "is not possible on a cluster chosen by clusterSelector")
    if (get(job, "ttlSecondsAfterFinished") or 0) < 0:
        yield _flaw(f"{at}.ttlSecondsAfterFinished", "should be at least 0")
    if (get(job, "ttlSecondsAfterFinished") or 0) > 0 and not shutdown:
        yield _flaw(f"{at}.ttlSecondsAfterFinished", "needs shutdownAfterJobFinishes: true")
    if inner is None and not selector:
        yield _flaw(f"{at}.rayClusterSpec", "is needed, or clusterSelector")
    if selector and not selector.get("ray.io/cluster"):
        yield _flaw(f"{at}.clusterSelector", "should name the cluster as ray.io/cluster")
    if mode == "InteractiveMode" and (get(job, "backoffLimit") or 0) > 0:
        yield _flaw(f"{at}.backoffLimit", "is not possible in InteractiveMode")
    if mode == "SidecarMode":
        yield from _sidecar(job, at, selector)
    deadline, backoff = get(job, "activeDeadlineSeconds"), get(job, "backoffLimit")
    if deadline is not None and deadline <= 0:
        yield _flaw(f"{at}.activeDeadlineSeconds", "should be at least 1")
    if backoff is not None and backoff < 0:
        yield _flaw(f"{at}.backoffLimit", "should be at least 0")
    environment_text = get(job, "runtimeEnvYAML")
    if environment_text:
        try:
            yaml.safe_load(environment_text)
        except yaml.YAMLError:
            yield _flaw(f"{at}.runtimeEnvYAML", "is not YAML")
    if inner is not None:
        yield from _cluster(inner, f"{at}.rayClusterSpec", {})
    yield from _deletion(job, at, selector, shutdown=shutdown)


def _sidecar(job: Data, at: str, selector: Data) -> Iterator[Flaw]:
    if selector:
        yield _flaw(f"{at}.clusterSelector", "is not possible in SidecarMode")
    for name in ("submitterPodTemplate", "submitterConfig"):
        if get(job, name) is not None:
            yield _flaw(f"{at}.{name}", "is not possible in SidecarMode")
    if get(job, "rayClusterSpec", "headGroupSpec", "template", "spec", "restartPolicy") not in (None, "", "Never"):
        yield _flaw(f"{at}.rayClusterSpec.headGroupSpec.template.spec.restartPolicy", "should be Never or left out in SidecarMode")


def _deletion(job: Data, at: str, selector: Data, *, shutdown: bool) -> Iterator[Flaw]:
    strategy = get(job, "deletionStrategy")
    if strategy is None:
        return
    path = f"{at}.deletionStrategy"
    scaling = get(job, "rayClusterSpec", "enableInTreeAutoscaling") is True
    rules = items(strategy, "deletionRules")
    if rules and shutdown:
        yield _flaw(path, "deletionRules and shutdownAfterJobFinishes exclude each other")
    seen: dict[str, dict[str, int]] = {}
    for index, rule in enumerate(rules):
        policy, status = str(get(rule, "policy")), str(get(rule, "condition", "jobStatus") or get(rule, "condition", "jobDeploymentStatus"))
        if selector and policy in ("DeleteCluster", "DeleteWorkers"):
            yield _flaw(f"{path}.deletionRules[{index}]", f"{policy} is not possible with clusterSelector")
        elif scaling and policy == "DeleteWorkers":
            yield _flaw(f"{path}.deletionRules[{index}]", "DeleteWorkers is not possible with autoscaling")
        elif policy in seen.setdefault(status, {}):
            yield _flaw(f"{path}.deletionRules[{index}]", f"a second {policy} for {status}")
        else:
            seen[status][policy] = get(rule, "condition", "ttlSeconds") or 0
    for status, after in seen.items():
        times = [after[policy] for policy in _ORDER if policy in after]
        if times != sorted(times):
            yield _flaw(path, f"for {status} the times should not fall in the order {', '.join(_ORDER)}")
    for name in ("onSuccess", "onFailure"):
        policy = get(strategy, name, "policy")
        if get(strategy, name) is not None and policy is None:
            yield _flaw(f"{path}.{name}.policy", "is needed")
        if policy == "DeleteWorkers" and scaling:
            yield _flaw(f"{path}.{name}.policy", "DeleteWorkers is not possible with autoscaling")
        if policy in ("DeleteCluster", "DeleteWorkers") and selector:
            yield _flaw(f"{path}.{name}.policy", f"{policy} is not possible with clusterSelector")
        if policy == "DeleteNone" and shutdown:
            yield _flaw(f"{path}.{name}.policy", "DeleteNone contradicts shutdownAfterJobFinishes")
