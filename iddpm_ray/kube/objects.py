"""Manifests as plain data: reading them, finding one's way in them, and what a rule says when it finds something."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from iddpm_ray.errors import UserError

Data = Mapping[str, Any]

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]+))?")
_FACTORS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        where: file or kustomization.
        what: kind and name of the object.
        path: of the field; empty for the object as a whole.
        rule: short name of the rule.
        reason: what it would do to a run.
    """

    where: str
    what: str
    path: str
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}{f' {self.path}' if self.path else ''}: {self.reason} [{self.rule}]"


@dataclass(frozen=True)
class Flaw:
    """What a rule says of an object; the rest of a `Finding` is known to whoever asked."""

    path: str
    rule: str
    reason: str


def read_objects(text: str, *, source: str) -> list[dict[str, Any]]:
    """The objects of a YAML stream; empty documents are left out.

    Raises:
        UserError: it is no YAML, or a document is no object.
    """
    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        raise UserError(f"{source} is not YAML", value=" ".join(str(error).split())[:200], fix="mend it") from None
    for one in documents:
        if not isinstance(one, dict):
            raise UserError(f"{source} holds a document that is no object", value=str(one)[:60], fix="a manifest has apiVersion and kind")
    return documents


def read_file(path: Path) -> list[dict[str, Any]]:
    """The objects of a file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return read_objects(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read", value=str(error), fix="give a file of manifests, or a directory") from None


def is_manifest(one: Data) -> bool:
    """Whether it is an object that an API server would take, and no kustomization."""
    return isinstance(one.get("kind"), str) and isinstance(one.get("apiVersion"), str) and "kustomize" not in one["apiVersion"]


def title(one: Data) -> str:
    """Kind and name."""
    return f"{one.get('kind', 'object')} {get(one, 'metadata', 'name') or '?'}"


def get(data: Any, *path: str | int) -> Any:
    """What is at a path, or None where the path ends early."""
    for step in path:
        if isinstance(data, Mapping):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and 0 <= step < len(data):
            data = data[step]
        else:
            return None
    return data


def mapping(data: Any, *path: str | int) -> Data:
    """The mapping at a path; an empty one where there is none."""
    found = get(data, *path)
    return found if isinstance(found, Mapping) else {}


def items(data: Any, *path: str | int) -> list[Any]:
    """The list at a path; an empty one where there is none."""
    found = get(data, *path)
    return found if isinstance(found, list) else []


def quantity(value: Any) -> float | None:
    """A Kubernetes quantity (`500m`, `8Gi`, `28e9`, 2) as a number; None if it is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    amount = float(match[1]) * {**_FACTORS, **_BINARY}[match[2] or ""] if match[3] is None else float(value)
    return amount if math.isfinite(amount) else None


def asked(container: Data, resource: str) -> float | None:
    """What a container asks for of a resource; where only a limit is given, Kubernetes asks for that much."""
    given = get(container, "resources", "requests", resource)
    return quantity(get(container, "resources", "limits", resource) if given is None else given)


def environment(container: Data) -> dict[str, Any]:
    """Literal values of a container's environment; None where the value comes from elsewhere."""
    return {str(get(one, "name")): get(one, "value") for one in items(container, "env")}


def selects(selector: Data, labels: Data) -> bool:
    """Whether a label selector fits labels."""
    if any(labels.get(key) != value for key, value in mapping(selector, "matchLabels").items()):
        return False
    return all(_fits(expression, labels) for expression in items(selector, "matchExpressions"))


def _fits(expression: Data, labels: Data) -> bool:
    key, values = get(expression, "key"), items(expression, "values")
    match get(expression, "operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return False


def namespace(one: Data) -> str | None:
    """The namespace that an object says it belongs to."""
    return get(one, "metadata", "namespace")


def near(objects: list[dict[str, Any]], home: str | None, *kinds: str) -> list[dict[str, Any]]:
    """The objects of some kinds in one namespace."""
    return [one for one in of_kind(objects, *kinds) if namespace(one) == home]


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> Iterator[dict[str, Any]]:
    """The objects of some kinds."""
    return (one for one in objects if one.get("kind") in kinds)
