"""What the documents may ask of programs that are not ours: words and options; held against the programs where they are installed."""

NAMESPACED = {"--namespace", "-n"}
SHOWN = {
    "--output",
    "-o",
    "--selector",
    "-l",
    "--watch",
    "--field-selector",
    "--sort-by",
    "--all-namespaces",
    "--show-labels",
    "--no-headers",
}

KUBECTL: dict[str, set[str]] = {
    "annotate": NAMESPACED | {"--overwrite"},
    "api-resources": {"--api-group", "--output"},
    "apply": NAMESPACED | {"--server-side", "--kustomize", "-k", "--filename", "-f", "--dry-run", "--force-conflicts"},
    "auth can-i": NAMESPACED | {"--as", "--list"},
    "config current-context": set(),
    "cp": NAMESPACED | {"--container", "-c"},
    "create": NAMESPACED | {"--filename", "-f", "--dry-run"},
    "create secret generic": NAMESPACED | {"--from-env-file", "--from-literal", "--dry-run"},
    "delete": NAMESPACED
    | {"--filename", "-f", "--kustomize", "-k", "--selector", "-l", "--wait", "--grace-period", "--force", "--ignore-not-found"},
    "describe": NAMESPACED | {"--selector", "-l"},
    "diff": NAMESPACED | {"--server-side", "--kustomize", "-k", "--filename", "-f"},
    "drain": {"--ignore-daemonsets", "--delete-emptydir-data", "--timeout", "--grace-period"},
    "events": NAMESPACED | {"--for", "--types", "--watch"},
    "exec": NAMESPACED | {"--container", "-c", "--stdin", "-i", "--tty", "-t"},
    "get": NAMESPACED | SHOWN | {"--ignore-not-found"},
    "kustomize": set(),
    "logs": NAMESPACED | {"--container", "-c", "--previous", "-p", "--follow", "-f", "--tail", "--since", "--selector", "-l"},
    "patch": NAMESPACED | {"--type", "--patch", "-p"},
    "port-forward": NAMESPACED | {"--address"},
    "replace": {"--kustomize", "-k", "--filename", "-f"},
    "rollout restart": NAMESPACED,
    "rollout status": NAMESPACED | {"--timeout"},
    "top pods": NAMESPACED | {"--containers", "--selector", "-l", "--sort-by"},
    "wait": NAMESPACED | {"--for", "--timeout", "--selector", "-l"},
}
KINDS = frozenset(
    {
        *("all", "configmap", "configmaps", "deployment", "deployments", "events", "namespace", "networkpolicy", "networkpolicies"),
        *("node", "nodes", "pdb", "pod", "pods", "podmonitoring", "podmonitorings", "priorityclass", "priorityclasses"),
        *("raycluster", "rayclusters", "rayjob", "rayjobs", "resourcequota", "resourcequotas", "secret", "secrets", "service", "services"),
        *("serviceaccount", "serviceaccounts"),
    }
)

GCLOUD: dict[str, set[str]] = {
    "artifacts docker images list": {"--include-tags"},
    "artifacts repositories delete": {"--project", "--location", "--quiet"},
    "auth login": set(),
    "auth application-default login": set(),
    "billing projects describe": set(),
    "components install": {"--quiet"},
    "compute accelerator-types list": {"--project", "--filter"},
    "compute instances simulate-maintenance-event": {"--project", "--zone"},
    "compute regions describe": {"--project", "--format", "--flatten"},
    "config set": set(),
    "container clusters create": {"--project", "--zone", "--release-channel", "--workload-pool"},
    "container clusters delete": {"--project", "--zone", "--quiet"},
    "container clusters describe": {"--project", "--zone", "--format"},
    "container clusters get-credentials": {"--project", "--zone"},
    "container node-pools create": {
        *("--project", "--cluster", "--zone", "--spot", "--machine-type", "--accelerator", "--workload-metadata", "--disk-size"),
        *("--enable-image-streaming", "--num-nodes", "--enable-autoscaling", "--min-nodes", "--max-nodes"),
    },
    "container node-pools delete": {"--project", "--cluster", "--zone", "--quiet"},
    "container node-pools list": {"--project", "--cluster", "--zone"},
    "logging read": {"--project", "--limit", "--freshness", "--format"},
    "projects list": set(),
    "projects describe": {"--format"},
    "storage buckets create": {"--project", "--location"},
    "storage buckets delete": set(),
    "storage buckets describe": {"--format"},
    "storage buckets get-iam-policy": {"--format"},
    "storage buckets update": {"--lifecycle-file", "--soft-delete-duration", "--clear-soft-delete"},
    "storage cp": {"--recursive"},
    "storage du": {"--summarize", "--readable-sizes"},
    "storage ls": {"--soft-deleted", "--recursive", "--long", "--all-versions"},
    "storage restore": {"--async", "--allow-overwrite", "--all-versions"},
    "storage rm": {"--recursive"},
    "storage rsync": {"--recursive", "--dry-run"},
}

HELM: dict[str, set[str]] = {
    "get values": {"--namespace"},
    "list": {"--namespace"},
    "repo add": set(),
    "rollback": {"--namespace"},
    "uninstall": {"--namespace"},
    "upgrade": {"--install", "--version", "--namespace", "--create-namespace", "--set", "--set-string", "--reuse-values"},
}

DOCKER: dict[str, set[str]] = {
    "build": {"-f", "-t", "--build-arg", "--platform"},
    "image inspect": {"--format"},
    "push": set(),
    "run": {"--rm"},
}

MODULES = frozenset({"pip", "pytest", "venv"})
