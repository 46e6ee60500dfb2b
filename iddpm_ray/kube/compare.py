"""What is missing or different in an object that should hold all of another: plain data against plain data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from iddpm_ray.kube.objects import get, quantity

_IDENTITIES = ("mountPath", "groupName", "name")  # by which elements of a list are found


@dataclass(frozen=True)
class Difference:
    """One place; `have` is None where nothing is there."""

    path: str
    want: Any
    have: Any


def differences(want: Any, have: Any, path: str = "") -> Iterator[Difference]:
    """Where `have` lacks something of `want`, or says something else; what it has beside that is its own affair.

    Lists are compared by the names of their elements, or, where they have none, by whether each is among the others.
    """
    if isinstance(want, Mapping):
        if not isinstance(have, Mapping):
            yield Difference(path, want, have)
            return
        for key, inner in want.items():
            yield from differences(inner, have.get(key), f"{path}.{key}".removeprefix("."))
    elif isinstance(want, list):
        yield from _lists(want, have if isinstance(have, list) else [], path)
    elif not _same(want, have):
        yield Difference(path, want, have)


def _lists(want: list[Any], have: list[Any], path: str) -> Iterator[Difference]:
    for inner in want:
        key = next((one for one in _IDENTITIES if get(inner, one) is not None), None)
        if key is None:
            if not any(not list(differences(inner, other)) for other in have):
                yield Difference(path, inner, have)
            continue
        place = next((n for n in reversed(range(len(have))) if get(have[n], key) == inner[key]), None)
        if place is None:
            yield Difference(f"{path} {inner[key]}", inner, None)
        else:
            yield from differences(inner, have[place], f"{path}[{place}]")


def _same(want: Any, have: Any) -> bool:
    if want == have and isinstance(want, bool) == isinstance(have, bool):
        return True
    amount = quantity(want) if isinstance(want, str | int | float) else None
    return amount is not None and amount == quantity(have)
