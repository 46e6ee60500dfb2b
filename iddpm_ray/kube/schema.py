"""What the API server would say: schemas with every object closed, defaults filled in first, and the few CEL rules of KubeRay's kinds."""

import copy
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import jsonschema

from iddpm_ray.kube.kinds import KINDS, METADATA, OTHERS
from iddpm_ray.kube.objects import Data, Flaw, get, items

RAY_KINDS = ("RayCluster", "RayJob", "RayCronJob", "RayService")
_KNOWN = [*KINDS, *(("ray.io/v1", kind) for kind in RAY_KINDS)]
_MANAGERS = ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue")
_REFUSED = "the API server refuses it, so nothing of it is applied"


def check_schema(one: Data) -> Iterator[Flaw]:
    """Flaws that keep an object out of the API server."""
    version, kind = one.get("apiVersion"), one.get("kind")
    validator = _validator(str(version), str(kind))
    if validator is None:
        yield Flaw("", "schema", f"{version} {kind} is no kind that there is: {_near(str(version), str(kind))}; {_REFUSED}")
        return
    for error in validator.iter_errors(defaulted(one)):
        yield Flaw(_path(error), "schema", f"{_words(error)}; {_REFUSED}")
    for path, reason in _cel(one):
        yield Flaw(path, "cel", f"{reason}; {_REFUSED}")


def defaulted(one: Data) -> dict[str, Any]:
    """The object as the API server keeps it: without nulls, and with the schema's defaults."""
    pruned = _pruned(one)
    schema = _schema(str(one.get("apiVersion")), str(one.get("kind")))
    if schema is not None:
        _fill(pruned, schema, root=schema)
    return pruned


def _near(version: str, kind: str) -> str:
    """What was probably meant."""
    here = sorted({name for at, name in _KNOWN if at == version} | set(OTHERS.get(version, ())))
    return ", ".join(here) if here else ", ".join(f"{at} {name}" for at, name in _KNOWN if name == kind)


def _foreign(version: str, kind: str) -> bool:
    """Whether a kind is none of those that matter to a run, of some other operator perhaps: such are left alone but for their metadata."""
    group = version.partition("/")[0] if "/" in version else ""
    groups = {at.partition("/")[0] for at in (*OTHERS, "ray.io/v1") if "/" in at} | {"", "extensions"}
    return kind in OTHERS.get(version, ()) or (group not in groups and kind not in {name for _, name in _KNOWN})


@cache
def _schema(version: str, kind: str) -> dict[str, Any] | None:
    if version == "ray.io/v1" and kind in RAY_KINDS:
        file = resources.files("iddpm_ray.kube").joinpath("crds", f"{kind.lower()}.v1.json")
        schema = json.loads(file.read_text(encoding="utf-8"))
        schema.pop("x-crd")
    elif (version, kind) in KINDS:
        schema = copy.deepcopy(KINDS[version, kind])
        schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    elif _foreign(version, kind):
        schema = {"type": "object", "properties": {}, "additionalProperties": True}
    else:
        return None
    schema["properties"] |= {"metadata": METADATA, "status": {}}
    schema["required"] = [*schema.get("required", []), "apiVersion", "kind", "metadata"]
    _close(schema)
    return schema


@cache
def _validator(version: str, kind: str) -> jsonschema.Draft202012Validator | None:
    schema = _schema(version, kind)
    return None if schema is None else jsonschema.Draft202012Validator(schema)


def _close(schema: Any) -> None:
    """An object with named properties takes no others, as kubectl's strict validation has it."""
    if isinstance(schema, list):
        for inner in schema:
            _close(inner)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("properties"), dict):
        if "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema["additionalProperties"] = False
        for inner in schema["properties"].values():
            _close(inner)
    for key, inner in schema.items():
        if key != "properties":
            _close(inner)


def _pruned(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _pruned(inner) for key, inner in value.items() if inner is not None}
    return [_pruned(inner) for inner in value] if isinstance(value, list) else value


def _fill(value: Any, schema: Any, *, root: dict[str, Any]) -> None:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, dict):
        for key, inner in schema.get("properties", {}).items():
            if key not in value and isinstance(inner, dict) and "default" in inner:
                value[key] = copy.deepcopy(inner["default"])
            if key in value:
                _fill(value[key], inner, root=root)
    elif isinstance(value, list) and "items" in schema:
        for inner in value:
            _fill(inner, schema["items"], root=root)


def _path(error: jsonschema.ValidationError) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    return text.removeprefix(".")


def _words(error: jsonschema.ValidationError) -> str:
    """jsonschema's sentence without the whole object in it."""
    match error.validator:
        case "additionalProperties":
            schema, instance = error.schema, error.instance
            assert isinstance(schema, dict)
            assert isinstance(instance, dict)
            odd = [str(key) for key in instance if key not in schema["properties"]]
            return f"no such field: {', '.join(odd)}"
        case "required":
            return error.message.replace("'", "").replace("is a required property", "is missing")
        case _:
            return error.message[:160]


def _cel(one: Data) -> Iterator[tuple[str, str]]:
    """The CEL rules of KubeRay's definitions that look at one object alone."""
    job, at = {"RayJob": (get(one, "spec"), "spec"), "RayCronJob": (get(one, "spec", "jobTemplate"), "spec.jobTemplate")}.get(
        str(one.get("kind")), (None, "")
    )
    for data, path in ((get(one, "spec"), "spec"), (job, at), (get(job, "rayClusterSpec"), f"{at}.rayClusterSpec")):
        manager = get(data, "managedBy")
        if manager is not None and manager not in _MANAGERS:
            yield f"{path}.managedBy", f"should be one of {', '.join(_MANAGERS)}"
    strategy = get(job, "deletionStrategy")
    if strategy is None:
        return
    both = get(strategy, "onSuccess") is not None and get(strategy, "onFailure") is not None
    either = get(strategy, "onSuccess") is not None or get(strategy, "onFailure") is not None
    rules = get(strategy, "deletionRules") is not None
    if either and rules:
        yield f"{at}.deletionStrategy", "onSuccess and onFailure cannot be used together with deletionRules"
    if not both and not rules:
        yield f"{at}.deletionStrategy", "needs both onSuccess and onFailure, or deletionRules"
    for index, rule in enumerate(items(strategy, "deletionRules")):
        has = [get(rule, "condition", name) is not None for name in ("jobStatus", "jobDeploymentStatus")]
        if sum(has) != 1:
            yield f"{at}.deletionStrategy.deletionRules[{index}].condition", "needs jobStatus or jobDeploymentStatus, and not both"
