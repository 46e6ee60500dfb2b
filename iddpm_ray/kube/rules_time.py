"""House rules about time: what ranks are told of a reclaim, how soon, and what comes back afterwards."""

from collections.abc import Iterator

from iddpm_ray.kube.clusters import HEAD_GROUP, Cluster, Group
from iddpm_ray.kube.names import CAPACITY_LABEL
from iddpm_ray.kube.objects import Flaw, environment, get, mapping, quantity
from iddpm_ray.kube.spelling import label_value

DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
POLL, STOP = "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S", "RAY_JOB_STOP_WAIT_TIME_S"
RAYS_DRAIN_S, RAYS_POLL_S, RAYS_STOP_S = 30.0, 5.0, 3.0
KUBERNETES_GRACE_S = 30
WINDOWS = (15, 105)  # of a pod on a spot machine of GKE, by its node pool
LAST_WORDS_S, HEADS_GRACE_S = 3, 10
SOON_S, SAVE_S, LEAST_IDLE_S, IDLE_S = 2.0, 60.0, 10, 600
OVERWRITE = "ray.io/overwrite-container-cmd"


def check_time(cluster: Cluster) -> Iterator[Flaw]:
    """What is wrong with the times of a cluster."""
    for group in cluster.workers:
        yield from _reclaim(group)
        yield from _replacement(group)
    for group in cluster.groups:
        yield from _first_process(group)
    yield from _head(cluster.head)
    yield from _idle(cluster)


def _reclaim(group: Group) -> Iterator[Flaw]:
    told = get(group.pod, "terminationGracePeriodSeconds")
    grace = KUBERNETES_GRACE_S if told is None else told
    path = f"{group.pod_path}.terminationGracePeriodSeconds"
    window = grace
    if group.spot and grace not in WINDOWS:
        window = max((one for one in WINDOWS if one <= grace), default=grace)
        if grace > WINDOWS[0]:
            reason = (
                f"a spot machine gives a pod {WINDOWS[0]} s, or {WINDOWS[1]} in pools of longer notice: the rest of {grace} s never comes"
            )
            yield Flaw(path, "grace", reason)
        else:
            yield Flaw(path, "grace", f"{grace} s: of the {WINDOWS[0]} s that a spot machine gives, {WINDOWS[0] - grace} are thrown away")
    given = environment(group.container).get(DRAIN)
    drain = RAYS_DRAIN_S if given is None else quantity(given)
    at, name = f"{group.container_path}.env {DRAIN}", f"{drain:g} s" if drain is not None else str(given)
    if drain is None:
        yield Flaw(at, "drain", f"{given} is no number, and Ray does not start")
    elif drain <= 0:
        yield Flaw(
            at, "drain", f"{name} turns the notice off: ranks learn nothing of a reclaim, and all steps since the last save are lost"
        )
    elif drain > window:
        own = " (Ray's default)" if given is None else ""
        late = f"ranks are told a deadline {drain - window:g} s later than the machine has"
        reason = f"{late}: {name}{own} of {window} s; a save that trusts it is lost"
        yield Flaw(at, "drain", reason)
    elif drain > window - LAST_WORDS_S:
        yield Flaw(
            at, "drain", f"{name} of {window} s leaves Ray less than {LAST_WORDS_S} s to end: the node is killed instead, as if lost"
        )
    elif drain < window / 2:
        yield Flaw(at, "drain", f"{name} of {window} s: half of the window or more is not offered to a save")


def _first_process(group: Group) -> Iterator[Flaw]:
    """`ray start` has to be process 1, since it is the one that hears SIGTERM and turns it into a notice."""
    annotations = mapping(group.data, "template", "metadata", "annotations")
    if OVERWRITE in annotations:
        path = f"{group.path}.template.metadata.annotations {OVERWRITE}"
        yield Flaw(path, "pid1", "another command than `ray start` gets SIGTERM, and the ranks never hear of a reclaim")
    for key in ("command", "args"):
        if get(group.container, key):
            yield Flaw(f"{group.container_path}.{key}", "pid1", "runs beside `ray start`, which then is not process 1 and hears no SIGTERM")
    if get(group.container, "lifecycle", "preStop") is not None:
        yield Flaw(f"{group.container_path}.lifecycle.preStop", "pid1", "runs before SIGTERM, inside the few seconds that a reclaim gives")


def _replacement(group: Group) -> Iterator[Flaw]:
    least, now, most = (get(group.data, key) for key in ("minReplicas", "replicas", "maxReplicas"))
    path = f"{group.path}.maxReplicas"
    wanted = max(least or 0, now or 0, 1)
    if most is None:
        yield Flaw(path, "headroom", "is not given, and then has no limit: an autoscaler that runs away rents whatever there is")
    elif most <= wanted:
        yield Flaw(
            path, "headroom", f"{most} leaves no room for the replacement of a pod that is being taken away: it is asked for, and refused"
        )
    if least:
        yield Flaw(f"{group.path}.minReplicas", "idle", f"{least} machines are paid for also when nothing runs")
    if get(group.data, "numOfHosts") not in (None, 1):
        yield Flaw(f"{group.path}.numOfHosts", "headroom", "several pods come and go as one: losing one takes the others along")


def _head(head: Group) -> Iterator[Flaw]:
    values = environment(head.container)
    poll = quantity(values.get(POLL, str(RAYS_POLL_S)))
    if poll is None or not 0 < poll <= SOON_S:
        reason = (
            f"draining machines are looked for every {values.get(POLL) or RAYS_POLL_S} s, of a window of {WINDOWS[0]} s: 1 would do, and "
            "nothing but a number above 0 is read"
        )
        yield Flaw(f"{head.container_path}.env {POLL}", "poll", reason)
    stop = quantity(values.get(STOP, str(RAYS_STOP_S)))
    if stop is None or stop < SAVE_S:
        reason = f"a stopped job is killed after {values.get(STOP) or RAYS_STOP_S} s, before it has saved: 300 would do"
        yield Flaw(f"{head.container_path}.env {STOP}", "stop", reason)
    yield from _last_words(head)


def _last_words(head: Group) -> Iterator[Flaw]:
    """The head drains itself too when it is to end, and ends when that is over."""
    given, told = environment(head.container).get(DRAIN), get(head.pod, "terminationGracePeriodSeconds")
    grace = KUBERNETES_GRACE_S if told is None else told
    drain = RAYS_DRAIN_S if given is None else quantity(given)
    if grace < HEADS_GRACE_S:
        reason = f"{grace} s: the head is killed before Ray has ended, and with it what the driver had still to say; 30 would do"
        yield Flaw(f"{head.pod_path}.terminationGracePeriodSeconds", "grace", reason)
    if drain is None:
        yield Flaw(f"{head.container_path}.env {DRAIN}", "drain", f"{given} is no number, and Ray does not start")
    elif drain > grace - LAST_WORDS_S and grace >= HEADS_GRACE_S:
        own = " (Ray's default)" if given is None else ""
        reason = f"{drain:g} s{own} of {grace} s: the head waits for itself until it is killed, and nothing ends in order; 5 would do"
        yield Flaw(f"{head.container_path}.env {DRAIN}", "drain", reason)


def _idle(cluster: Cluster) -> Iterator[Flaw]:
    path = f"{cluster.path}.autoscalerOptions"
    if get(cluster.spec, "enableInTreeAutoscaling") is not True:
        reason = "is off: nothing asks for a replacement, and machines are never given back"
        yield Flaw(f"{cluster.path}.enableInTreeAutoscaling", "autoscaling", reason)
        return
    if get(cluster.spec, "autoscalerOptions", "version") != "v2":
        reason = "should be v2: only it asks for a replacement while the old pod still lives, and knows priorities of groups"
        yield Flaw(f"{path}.version", "autoscaling", reason)
    memory = quantity(get(cluster.spec, "autoscalerOptions", "resources", "limits", "memory"))
    if memory is None or memory < 2**30:
        reason = "below 1Gi it is killed under load, and never started again: the cluster then neither grows nor shrinks"
        yield Flaw(f"{path}.resources.limits.memory", "autoscaling", reason)
    times = [(f"{path}.idleTimeoutSeconds", get(cluster.spec, "autoscalerOptions", "idleTimeoutSeconds"))]
    times += [(f"{group.path}.idleTimeoutSeconds", get(group.data, "idleTimeoutSeconds")) for group in cluster.workers]
    for where, seconds in times:
        if seconds is not None and seconds > IDLE_S:
            yield Flaw(where, "idle", f"{seconds} s: idle machines are paid for that long")
        elif seconds is not None and seconds < LEAST_IDLE_S:
            yield Flaw(where, "idle", f"{seconds} s: machines are given back between two attempts of a run, and rented anew")
    yield from _order(cluster)


def _order(cluster: Cluster) -> Iterator[Flaw]:
    names = [get(group.data, "groupName") for group in cluster.workers]
    for group in cluster.workers:
        name = get(group.data, "groupName")
        if names.count(name) > 1:
            yield Flaw(f"{group.path}.groupName", "groups", "stands twice: the autoscaler knows only the last of that name")
        if name == HEAD_GROUP:
            yield Flaw(f"{group.path}.groupName", "groups", "is the head's: the autoscaler takes one for the other")
        said = get(group.data, "labels", CAPACITY_LABEL)
        if said is not None and group.google and said != ("spot" if group.spot else "on-demand"):
            reason = (
                f"says {said}, and the machines are {'spot' if group.spot else 'on-demand'} ones: what is placed by that label is misled"
            )
            yield Flaw(f"{group.path}.labels {CAPACITY_LABEL}", "groups", reason)
        if not label_value(str(name)):
            reason = f"{name!r} is the value of a label of its pods, and none: the API server refuses every pod"
            yield Flaw(f"{group.path}.groupName", "groups", reason)
    spot = [get(group.data, "priority") or 0 for group in cluster.workers if group.spot]
    other = [(group, get(group.data, "priority") or 0) for group in cluster.workers if not group.spot]
    for group, priority in other:
        if spot and priority >= min(spot):
            reason = f"{priority} is not below the spot group's {min(spot)}: on-demand machines are rented where spot ones would do"
            yield Flaw(f"{group.path}.priority", "groups", reason)
