"""Builds kustomizations: by kubectl or kustomize where there is one, else a small subset of them, refusing the rest by name."""

import copy
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from iddpm_ray.errors import UserError
from iddpm_ray.kube.objects import get, is_manifest, read_file, read_objects

Data = dict[str, Any]

FILES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_KEYS = {"apiVersion", "kind", "metadata", "namespace", "resources", "components", "images", "patches"}
_LISTS = ("resources", "bases", "components", "patchesStrategicMerge", "configurations", "crds", "generators", "transformers", "validators")
_CLUSTER_KINDS = ("Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition")
_SECONDS = 60


def kustomization(folder: Path) -> Path | None:
    """The kustomization file of a folder, if it has one."""
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def named_files(folder: Path, wanted: Mapping[str, Any]) -> set[Path]:
    """The files that a kustomization takes part of: they are no objects of their own, whatever they look like."""
    names: list[Any] = []
    for key in _LISTS:
        names += wanted.get(key) or []
    for key in ("patches", "patchesJson6902", "replacements"):
        names += [one.get("path") for one in wanted.get(key) or [] if isinstance(one, Mapping)]
    for key in ("configMapGenerator", "secretGenerator"):
        for one in (one for one in wanted.get(key) or [] if isinstance(one, Mapping)):
            names += [str(name).rpartition("=")[2] for name in one.get("files") or []]
            names += [*(one.get("envs") or []), one.get("env")]
    names += [one.get("valuesFile") for one in wanted.get("helmCharts") or [] if isinstance(one, Mapping)]
    names.append(get(wanted, "openapi", "path"))
    return {(folder / name).resolve() for name in names if isinstance(name, str) and "\n" not in name and len(name) < 1024}


def build(folder: Path, *, own: bool = False) -> list[Data]:
    """The objects of a kustomization.

    Args:
        own: take the subset also where kubectl is there.

    Raises:
        UserError: it cannot be built.
    """
    command = None if own else _command()
    if command is None:
        return _build(folder)
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise UserError(f"{folder} cannot be built", value=" ".join(done.stderr.split())[-400:], fix="mend the kustomization")
    return read_objects(done.stdout, source=str(folder))


def _command() -> list[str] | None:
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    return ["kubectl", "kustomize"] if shutil.which("kubectl") else None


def _build(folder: Path, given: list[Data] | None = None) -> list[Data]:
    file = kustomization(folder)
    if file is None:
        raise UserError(f"{folder} has no kustomization", fix=f"write a {FILES[0]}")
    (wanted,) = read_file(file) or [{}]
    unknown = sorted(set(wanted) - _KEYS)
    if unknown:
        raise UserError(f"{file} uses {', '.join(unknown)}", fix="which only kustomize itself can build: install kubectl")
    objects = [] if given is None else given
    for name in wanted.get("resources") or []:
        path = folder / name
        if path.is_dir():
            objects += _build(path)
        elif path.is_file():
            objects += [one for one in read_file(path) if is_manifest(one)]
        else:
            raise UserError(f"{file} names {name}, which is not there", fix="mend its resources")
    for name in wanted.get("components") or []:
        objects = _build(folder / name, objects)
    if wanted.get("namespace"):
        _set_namespace(objects, wanted["namespace"])
    for patch in wanted.get("patches") or []:
        _patch(objects, patch, file)
    for image in wanted.get("images") or []:
        _set_image(objects, image)
    _refuse_twins(objects, file)
    return objects


def _refuse_twins(objects: list[Data], file: Path) -> None:
    names = [(get(one, "kind"), get(one, "metadata", "namespace"), get(one, "metadata", "name")) for one in objects]
    twins = {name for name in names if names.count(name) > 1}
    if twins:
        kind, _, name = twins.pop()
        raise UserError(f"{file} has {kind} {name} twice", fix="keep one of them")


def _set_namespace(objects: list[Data], namespace: str) -> None:
    for one in objects:
        if one["kind"] == "Namespace":
            one["metadata"]["name"] = namespace
        elif one["kind"] not in _CLUSTER_KINDS:
            one["metadata"]["namespace"] = namespace


def _set_image(objects: list[Data], wanted: Mapping[str, Any]) -> None:
    def change(container: Data) -> None:
        name, _, tag = str(container.get("image", "")).partition(":")
        if name == wanted["name"] and "@" not in name:
            digest = wanted.get("digest")
            ending = f"@{digest}" if digest else f":{wanted.get('newTag', tag)}"
            container["image"] = f"{wanted.get('newName', name)}{ending}"

    for one in objects:
        _each_container(one, change)


def _each_container(data: Any, change: Callable[[Data], None]) -> None:
    if isinstance(data, dict):
        for key, value in data.items():
            if key in ("containers", "initContainers") and isinstance(value, list):
                for container in value:
                    change(container)
            _each_container(value, change)
    elif isinstance(data, list):
        for value in data:
            _each_container(value, change)


def _patch(objects: list[Data], wanted: Mapping[str, Any], file: Path) -> None:
    """A JSON patch (RFC 6902) on the objects that its target names."""
    unknown = sorted(set(wanted) - {"target", "patch", "path"}) + sorted(set(wanted.get("target") or {}) - {"kind", "name"})
    if unknown or not wanted.get("target"):
        what = ", ".join(unknown) or "no target"
        raise UserError(f"{file}: a patch with {what}", fix="which only kustomize itself can apply: install kubectl")
    text = wanted["patch"] if "patch" in wanted else (file.parent / wanted["path"]).read_text(encoding="utf-8")
    operations = read_patch(text, source=str(file))
    target = wanted["target"]
    for one in objects:
        if one["kind"] == target.get("kind", one["kind"]) and get(one, "metadata", "name") == target.get(
            "name", get(one, "metadata", "name")
        ):
            for operation in operations:
                apply(one, operation, source=str(file))


def read_patch(text: str, *, source: str) -> list[Data]:
    """The operations of a JSON patch in YAML.

    Raises:
        UserError: it is something else, such as a strategic merge.
    """
    wrapped = read_objects("operations:\n" + "\n".join(f"  {line}" for line in text.splitlines()), source=source)
    operations = wrapped[0]["operations"]
    if not isinstance(operations, list):
        fix = "give a list of operations: a merge replaces every list it touches, worker groups among them"
        raise UserError(f"{source} holds a patch that is no JSON patch", fix=fix)
    return operations


def apply(one: Any, operation: Mapping[str, Any], *, source: str) -> None:
    """One operation on one object, in place.

    Raises:
        UserError: it does not fit.
    """
    *above, last = [part.replace("~1", "/").replace("~0", "~") for part in str(operation["path"]).removeprefix("/").split("/")]
    place, kind = one, operation["op"]
    try:
        for part in above:
            place = place[int(part)] if isinstance(place, list) else place[part]
        key: Any = (len(place) if last == "-" else int(last)) if isinstance(place, list) else last
        if kind == "add":
            if isinstance(place, list):
                place.insert(key, copy.deepcopy(operation["value"]))
            else:
                place[key] = copy.deepcopy(operation["value"])
        elif kind == "remove":
            del place[key]
        elif kind == "replace":
            place[key], _ = copy.deepcopy(operation["value"]), place[key]
        elif kind == "test":
            if place[key] != operation["value"]:
                raise UserError(f"{source}: {operation['path']} is not {operation['value']}", value=place[key], fix="mend the patch")
        else:
            raise UserError(f"{source}: {kind} is no operation known here", fix="use add, remove, replace or test")
    except (KeyError, IndexError, ValueError, TypeError):
        raise UserError(f"{source}: {kind} {operation['path']} finds nothing there", fix="mend the path of the patch") from None
