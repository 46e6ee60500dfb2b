"""Which class each picture is to show: one, several in turn, all in turn, or as a file says."""

import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.errors import DataError, SpecError
from iddpm_ray.spec.names import closest

_WHOLE = re.compile(r"\d{1,1000}")  # Python reads no numbers of many thousand digits
_MOST_SHOWN = 100


@dataclass(frozen=True, eq=False)
class Labels:
    """The class of picture i is `turn[i % len(turn)]`.

    Attributes:
        turn: int64 [K].
        count: pictures that a file names; None where any number can be drawn.
    """

    turn: NDArray[np.int64]
    count: int | None = None

    def at(self, indices: Tensor) -> Tensor:
        """Classes int64 [N] of pictures [N]."""
        return torch.from_numpy(self.turn)[indices.cpu() % len(self.turn)]

    def settings(self) -> object:
        """What a job must remember of them: the classes themselves, or their number and SHA-256."""
        if len(self.turn) <= _MOST_SHOWN:
            return self.turn.tolist()
        return {"labels": len(self.turn), "sha256": hashlib.sha256(self.turn.tobytes()).hexdigest()}


def in_turn(classes: Sequence[int] | None, *, num_classes: int) -> Labels:
    """The classes given, or every class, in turn.

    Raises:
        SpecError: a class that the network does not know.
    """
    turn = list(range(num_classes)) if classes is None else list(classes)
    return Labels(_checked(np.array(turn, dtype=np.int64), num_classes=num_classes, classes=()))


def of_array(labels: NDArray[np.integer], *, num_classes: int) -> Labels:
    """One label a picture, whole numbers [N].

    Raises:
        SpecError: a class that the network does not know.
    """
    return Labels(_checked(labels, num_classes=num_classes, classes=()), count=len(labels))


def read_classes(text: str, *, num_classes: int, classes: Sequence[str]) -> Labels:
    """What the command line means: `3`, `1,2,7`, `cat,dog`, `balanced`, or a file (a path with a slash or ending in .txt or .npy).

    The whole text is a class where one is called so, whatever stands in its name. A file holds a class a picture: lines of indices or
    names, or a whole-numbered .npy array [N].

    Args:
        classes: the label map.

    Raises:
        SpecError: no such class; proposes one.
        DataError: a file that cannot be read.
    """
    if text in classes:
        return Labels(np.array([_index(text, num_classes=num_classes, classes=classes)], dtype=np.int64))
    if text == "balanced":
        return in_turn(None, num_classes=num_classes)
    if "/" in text or text.endswith((".txt", ".npy")):
        return _file(text, num_classes=num_classes, classes=classes)
    turn = [_index(part.strip(), num_classes=num_classes, classes=classes) for part in text.split(",")]
    return Labels(np.array(turn, dtype=np.int64))


def _file(url: str, *, num_classes: int, classes: Sequence[str]) -> Labels:
    shown = storage.shown(url)
    try:
        data = storage.read_bytes(storage.absolute(url))
    except Exception as error:  # every store raises its own kinds
        raise DataError(f"cannot read the classes in {shown} ({storage.reason(error)})", fix="name a file of a class a line") from None
    turn = _array(data, shown) if url.endswith(".npy") else _lines(data, shown, num_classes=num_classes, classes=classes)
    if not len(turn):
        raise DataError(f"{shown} names no class", fix="a class a line")
    return Labels(_checked(turn, num_classes=num_classes, classes=classes), count=len(turn))


def _array(data: bytes, shown: str) -> NDArray[np.integer]:
    try:
        turn = np.load(io.BytesIO(data), allow_pickle=False)
        if not isinstance(turn, np.ndarray):
            raise TypeError
    except Exception:  # a damaged file raises whatever it happens to hit
        raise DataError(f"{shown} is no array of whole numbers", fix="save it with numpy.save, without Python objects") from None
    if turn.ndim != 1 or turn.dtype.kind not in "iu":
        raise DataError(f"{shown} holds {turn.dtype} {list(turn.shape)}", fix="whole numbers [N] are needed")
    return turn


def _lines(data: bytes, shown: str, *, num_classes: int, classes: Sequence[str]) -> NDArray[np.int64]:
    try:
        lines = data.decode().rstrip().splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{shown} is not text", fix="name a file of a class a line") from None
    known: dict[str, int] = {}
    for line in lines:
        if line not in known:
            known[line] = _index(line.strip(), num_classes=num_classes, classes=classes)
    return np.array([known[line] for line in lines], dtype=np.int64)


def _index(text: str, *, num_classes: int, classes: Sequence[str]) -> int:
    """The index of a class by its number or its name."""
    number = int(text) if _WHOLE.fullmatch(text) else -1
    named = classes.index(text) if text in classes else -1
    if named < 0 and number < 0:
        if not classes:
            raise SpecError("no class has a name here", value=_quoted(text), fix=f"the network has classes 0 to {num_classes - 1}")
        near = closest(_quoted(text), list(map(_quoted, classes)))
        some = _some(classes, 6)
        raise SpecError("no class is called so", value=_quoted(text), fix=f"{near}there are {some}, or indices from 0")
    if named >= 0 and 0 <= number < num_classes and named != number:
        called = f" ({_quoted(classes[number])})" if number < len(classes) else ""
        raise SpecError(
            f"class {text} may be number {number}{called} or the one called {_quoted(text)}, which is number {named}",
            fix="put the index of each picture into a .npy file, which holds numbers alone",
        )
    found = number if named < 0 else named
    if found >= num_classes:
        raise _beyond(found, num_classes=num_classes, classes=classes)
    return found


def _checked(turn: NDArray[np.integer], *, num_classes: int, classes: Sequence[str]) -> NDArray[np.int64]:
    """The same as int64, if there are such classes; looked at before, since int64 does not hold every whole number."""
    beyond = turn[(turn < 0) | (turn >= num_classes)]
    if len(beyond):
        raise _beyond(int(beyond[0]), num_classes=num_classes, classes=classes)
    return turn.astype(np.int64)


def _beyond(number: int, *, num_classes: int, classes: Sequence[str]) -> SpecError:
    named = f", called {_some(classes, 3)}" if classes else ""
    return SpecError("no such class", value=number, fix=f"the network has classes 0 to {num_classes - 1}{named}")


def _some(classes: Sequence[str], most: int) -> str:
    return ", ".join(map(_quoted, classes[:most])) + (" ..." if len(classes) > most else "")


def _quoted(name: str) -> str:
    """A name may hold a comma or be nothing."""
    return f'"{name}"'
