"""What the kinds beside KubeRay's may hold, as far as manifests of a run use them: closed schemas, so that a misspelt key is found."""

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_YES: Schema = {"type": "boolean"}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_ANY: Schema = {}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one_of(*values: str) -> Schema:
    return {"enum": list(values)}


METADATA = _object(
    ("name",),
    name=_TEXT,
    generateName=_TEXT,
    namespace=_TEXT,
    labels=_TEXTS,
    annotations=_TEXTS,
    finalizers=_list(_TEXT),
    ownerReferences=_list(_ANY),
    **dict.fromkeys(("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"), _ANY),
    **dict.fromkeys(("managedFields", "resourceVersion", "selfLink", "uid"), _ANY),
)
"""With what a server adds, which stands in the objects that `kubectl get` prints."""
_EXPRESSION = _object(("key", "operator"), key=_TEXT, operator=_one_of("In", "NotIn", "Exists", "DoesNotExist"), values=_list(_TEXT))
_SELECTOR = _object(matchLabels=_TEXTS, matchExpressions=_list(_EXPRESSION))
_PORT = _object(protocol=_one_of("TCP", "UDP", "SCTP"), port={"type": ["integer", "string"]}, endPort=_WHOLE)
_PEER = _object(podSelector=_SELECTOR, namespaceSelector=_SELECTOR, ipBlock=_object(("cidr",), cidr=_TEXT, **{"except": _list(_TEXT)}))
_FROM_POD = _object(("from",), **{"from": _TEXT, "to": _TEXT})
_SECONDS: Schema = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}
_LOGIN = dict.fromkeys(("authorization", "basicAuth", "oauth2", "params", "proxyUrl", "scheme"), _ANY)
_LIMITS = {f"{name}Limit": _WHOLE for name in ("label", "labelNameLength", "labelValueLength", "sample", "target")}
_LASTING: Schema = {"type": "string", "pattern": "^(0|([0-9]+(ms|[smhdwy]))+)$"}  # of Prometheus
_RULE = _object(
    ("expr",),
    alert=_TEXT,
    record=_TEXT,
    expr={"type": ["string", "integer"]},
    labels=_TEXTS,
    annotations=_TEXTS,
    keep_firing_for=_LASTING,
)
_RULE["properties"]["for"] = _LASTING  # Python reserves these words
_GROUP = _object(("name", "rules"), name=_TEXT, interval=_LASTING, labels=_TEXTS, limit=_WHOLE, query_offset=_TEXT, rules=_list(_RULE))
_GROUP["properties"]["partial_response_strategy"] = _TEXT
_GROUPS = _object(("groups",), groups=_list(_GROUP))
_HARD = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}

KINDS: dict[tuple[str, str], Schema] = {
    ("v1", "Namespace"): _object(spec=_object(finalizers=_list(_TEXT))),
    ("v1", "ServiceAccount"): _object(automountServiceAccountToken=_YES, imagePullSecrets=_list(_ANY), secrets=_list(_ANY)),
    ("v1", "ConfigMap"): _object(data=_TEXTS, binaryData=_TEXTS, immutable=_YES),
    ("v1", "Secret"): _object(data=_TEXTS, stringData=_TEXTS, type=_TEXT, immutable=_YES),
    ("v1", "ResourceQuota"): _object(("spec",), spec=_object(("hard",), hard=_HARD, scopes=_list(_TEXT), scopeSelector=_ANY)),
    ("scheduling.k8s.io/v1", "PriorityClass"): _object(
        ("value",),
        value={"type": "integer", "maximum": 10**9},
        globalDefault=_YES,
        description=_TEXT,
        preemptionPolicy=_one_of("Never", "PreemptLowerPriority"),
    ),
    ("policy/v1", "PodDisruptionBudget"): _object(
        ("spec",),
        spec=_object(
            ("selector",),
            selector=_SELECTOR,
            maxUnavailable={"type": ["integer", "string"]},
            minAvailable={"type": ["integer", "string"]},
            unhealthyPodEvictionPolicy=_one_of("AlwaysAllow", "IfHealthyBudget"),
        ),
    ),
    ("networking.k8s.io/v1", "NetworkPolicy"): _object(
        ("spec",),
        spec=_object(
            ("podSelector",),
            podSelector=_SELECTOR,
            policyTypes=_list(_one_of("Ingress", "Egress")),
            ingress=_list(_object((), ports=_list(_PORT), **{"from": _list(_PEER)})),
            egress=_list(_object(ports=_list(_PORT), to=_list(_PEER))),
        ),
    ),
    ("monitoring.googleapis.com/v1", "PodMonitoring"): _object(
        ("spec",),
        spec=_object(
            ("selector", "endpoints"),
            selector=_SELECTOR,
            endpoints=_list(
                _object(
                    ("port",),
                    port={"type": ["string", "integer"]},
                    interval=_SECONDS,
                    path=_TEXT,
                    timeout=_SECONDS,
                    metricRelabeling=_list(_ANY),
                    tls=_ANY,
                    **_LOGIN,
                )
            ),
            targetLabels=_object(fromPod=_list(_FROM_POD), metadata=_list(_TEXT)),
            filterRunning=_YES,
            limits=_ANY,
        ),
    ),
    ("monitoring.googleapis.com/v1", "Rules"): _object(("spec",), spec=_GROUPS),
    ("monitoring.coreos.com/v1", "PodMonitor"): _object(
        ("spec",),
        spec=_object(
            ("selector", "podMetricsEndpoints"),
            selector=_SELECTOR,
            namespaceSelector=_object(any=_YES, matchNames=_list(_TEXT)),
            podTargetLabels=_list(_TEXT),
            jobLabel=_TEXT,
            podMetricsEndpoints=_list(
                _object(
                    port=_TEXT,
                    portNumber=_WHOLE,
                    targetPort=_ANY,
                    interval=_SECONDS,
                    path=_TEXT,
                    scrapeTimeout=_SECONDS,
                    relabelings=_list(_ANY),
                    metricRelabelings=_list(_ANY),
                    bearerTokenSecret=_ANY,
                    tlsConfig=_ANY,
                    trackTimestampsStaleness=_YES,
                    enableHttp2=_YES,
                    filterRunning=_YES,
                    followRedirects=_YES,
                    honorLabels=_YES,
                    honorTimestamps=_YES,
                    **_LOGIN,
                )
            ),
            **_LIMITS,
            **dict.fromkeys(("attachMetadata", "bodySizeLimit", "keepDroppedTargets", "scrapeClass", "scrapeProtocols"), _ANY),
            selectorMechanism=_TEXT,
            fallbackScrapeProtocol=_TEXT,
        ),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _object(("spec",), spec=_GROUPS),
}
"""By apiVersion and kind; `apiVersion`, `kind`, `metadata` and `status` are added to each."""

OTHERS: dict[str, tuple[str, ...]] = {
    "v1": ("Endpoints", "LimitRange", "Node", "PersistentVolume", "PersistentVolumeClaim", "Pod", "ReplicationController", "Service"),
    "apps/v1": ("ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"),
    "batch/v1": ("CronJob", "Job"),
    "monitoring.coreos.com/v1": ("Alertmanager", "Probe", "Prometheus", "ServiceMonitor", "ThanosRuler"),
    "monitoring.googleapis.com/v1": ("ClusterNodeMonitoring", "ClusterPodMonitoring", "ClusterRules", "GlobalRules", "OperatorConfig"),
    "networking.k8s.io/v1": ("Ingress", "IngressClass"),
    "policy/v1": ("Eviction",),
    "rbac.authorization.k8s.io/v1": ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    "scheduling.k8s.io/v1": (),
}
"""The other kinds of these apiVersions: nothing but their metadata is checked here, and no kind beside them exists."""
