"""Judges manifests without a cluster: builds every kustomization below a directory, and holds every object against all rules."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from iddpm_ray.errors import UserError
from iddpm_ray.kube.clusters import clusters
from iddpm_ray.kube.kustomize import build, kustomization, named_files
from iddpm_ray.kube.objects import Finding, Flaw, get, is_manifest, items, mapping, read_file, title
from iddpm_ray.kube.operator import check_operator
from iddpm_ray.kube.rules_job import check_job, check_suspended
from iddpm_ray.kube.rules_names import check_names
from iddpm_ray.kube.rules_place import check_place
from iddpm_ray.kube.rules_pods import check_pods
from iddpm_ray.kube.rules_security import check_security
from iddpm_ray.kube.rules_set import check_set
from iddpm_ray.kube.rules_start import check_start
from iddpm_ray.kube.rules_time import check_time
from iddpm_ray.kube.schema import check_schema, defaulted

Objects = list[dict[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """What was looked at, and what was found.

    Attributes:
        looked: each set of objects that was judged as one, and how many it holds.
    """

    looked: dict[str, int]
    findings: tuple[Finding, ...]


def lint(path: Path) -> Verdict:
    """Everything at a path: a file of manifests, or a directory with kustomizations and files.

    Raises:
        UserError: there is nothing to judge.
    """
    looked: dict[str, int] = {}
    findings: list[Finding] = []
    for where, made in _sets(path):
        if isinstance(made, UserError):
            looked[where] = 0
            findings.append(Finding(where, "kustomization", "", "build", f"{made}; nothing of it can be applied"))
            continue
        looked[where] = len(made)
        findings += judge(made, where=where)
    if not looked:
        raise UserError(f"{path} holds no manifests", fix="give a file, or a directory such as k8s")
    return Verdict(looked, tuple(dict.fromkeys(findings)))


def report(path: Path, *, show: Callable[[str], None]) -> int:
    """Shows what is wrong at a path, and how much was looked at; exit code: 1 if anything was found.

    Raises:
        UserError: there is nothing to judge.
    """
    verdict = lint(path)
    for finding in verdict.findings:
        show(str(finding))
    objects = sum(verdict.looked.values())
    show(f"{len(verdict.findings)} findings in {objects} objects of {len(verdict.looked)} places: {', '.join(verdict.looked)}")
    return int(bool(verdict.findings))


def judge(objects: Objects, *, where: str) -> list[Finding]:
    """Every flaw of objects that are applied together.

    Args:
        where: what to call the place they come from.
    """
    findings: list[Finding] = []
    whole: Objects = []
    for one in _each(objects):
        flaws = [*check_schema(one)]
        if not flaws:
            one = defaulted(one) if str(one["apiVersion"]).startswith("ray.io/") and _bounded(one) else one
            whole.append(one)
            flaws = [*check_operator(one), *_house(one)]
        findings += [_finding(where, one, flaw) for flaw in flaws]
    findings += [_finding(where, one, flaw) for one, flaw in check_set(whole)]
    return findings


def _each(objects: Objects) -> Iterator[dict[str, Any]]:
    """The objects, those in a List among them, as `kubectl get` prints several."""
    for one in objects:
        if one.get("kind") == "List":
            yield from (inner for inner in items(one, "items") if isinstance(inner, dict) and is_manifest(inner))
        else:
            yield one


def _bounded(one: dict[str, Any]) -> bool:
    """Whether every group gives its own maxReplicas: the default of the schema would hide that one does not."""
    return all(get(group.data, "maxReplicas") is not None for cluster in clusters(one) for group in cluster.workers)


def _house(one: dict[str, Any]) -> Iterator[Flaw]:
    yield from check_names(one)
    for cluster in clusters(one):
        yield from check_time(cluster)
        yield from check_start(cluster)
        yield from check_pods(cluster)
        yield from check_place(cluster)
        yield from check_security(cluster)
    labels = mapping(one, "metadata", "labels")
    match one["kind"]:
        case "RayJob":
            yield from check_job(mapping(one, "spec"), "spec", labels)
        case "RayCronJob":
            yield from check_job(mapping(one, "spec", "jobTemplate"), "spec.jobTemplate", {})
        case "RayCluster":
            yield from check_suspended(mapping(one, "spec"), "spec", labels)


def _finding(where: str, one: Mapping[str, Any], flaw: Flaw) -> Finding:
    return Finding(where, title(one), flaw.path, flaw.rule, flaw.reason)


def _sets(path: Path) -> Iterator[tuple[str, Objects | UserError]]:
    if path.is_file():
        yield (
            str(path),
            [one for one in read_file(path) if is_manifest(one)] or UserError(f"{path} holds no manifest", fix="see apiVersion and kind"),
        )
        return
    if not path.is_dir():
        raise UserError(f"{path} is not there", fix="give a file of manifests, or a directory")
    folders = sorted(file.parent for file in path.rglob("*") if file.is_file() and kustomization(file.parent) == file)
    used: set[Path] = set()
    whole = [folder for folder in folders if _kind(folder) != "Component"]
    below = {(folder / name).resolve() for folder in folders for name in _named(folder, "resources") if (folder / name).is_dir()}
    for folder in folders:
        used |= _files(folder)
    for folder in whole:
        yield str(folder), _built(folder)
    reached = {(folder / name).resolve() for folder in folders for name in _named(folder, "components")}
    for component in (folder for folder in folders if _kind(folder) == "Component" and folder.resolve() not in reached):
        for base in [folder for folder in whole if folder.resolve() in below] or whole:
            yield f"{base} with {component}", _together(base, component)
    for file in sorted({*path.rglob("*.yaml"), *path.rglob("*.yml")}):
        if file.resolve() not in used:
            objects = [one for one in _documents(file) if isinstance(one, dict) and is_manifest(one)]
            if objects:
                yield str(file), objects


def _documents(file: Path) -> list[Any]:
    """What is in a YAML file that may be no manifest at all."""
    try:
        return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not YAML", value=" ".join(str(error).split())[:200], fix="mend it, or move it elsewhere") from None


def _built(folder: Path) -> Objects | UserError:
    try:
        return build(folder)
    except UserError as error:
        return error


def _together(base: Path, component: Path) -> Objects | UserError:
    """A base with a component that nothing here uses yet."""
    with tempfile.TemporaryDirectory(prefix="iddpm-lint-") as name:
        folder = Path(name).resolve()
        wanted = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(base.resolve(), folder)],
            "components": [os.path.relpath(component.resolve(), folder)],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(wanted), encoding="utf-8")
        return _built(folder)


def _kind(folder: Path) -> str:
    return str(_content(folder).get("kind", "Kustomization"))


def _named(folder: Path, key: str) -> list[str]:
    return [name for name in _content(folder).get(key) or [] if isinstance(name, str)]


def _content(folder: Path) -> dict[str, Any]:
    file = kustomization(folder)
    documents = [] if file is None else _documents(file)
    return documents[0] if documents and isinstance(documents[0], dict) else {}


def _files(folder: Path) -> set[Path]:
    """The files that a kustomization takes part of, itself among them."""
    file = kustomization(folder)
    return ({file.resolve()} if file else set()) | named_files(folder, _content(folder))
