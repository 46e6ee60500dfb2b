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

_WHOLE = re.compile(r"\d+")
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


def of_array(labels: NDArray[np.int64], *, num_classes: int) -> Labels:
    """One label a picture, int64 [N].

    Raises:
        SpecError: a class that the network does not know.
    """
    return Labels(_checked(labels, num_classes=num_classes, classes=()), count=len(labels))


def read_classes(text: str, *, num_classes: int, classes: Sequence[str]) -> Labels:
    """What the command line means: `3`, `1,2,7`, `cat,dog`, `balanced`, or a file (a path with a slash or ending in .txt or .npy).

    A file holds a class a picture: lines of indices or names, or a whole-numbered .npy array [N].

    Args:
        classes: the label map.

    Raises:
        SpecError: no such class; proposes one.
        DataError: a file that cannot be read.
    """
    if text == "balanced":
        return in_turn(None, num_classes=num_classes)
    if "/" in text or text.endswith((".txt", ".npy")):
        return _file(text, num_classes=num_classes, classes=classes)
    turn = [_index(part.strip(), num_classes=num_classes, classes=classes) for part in text.split(",")]
    return Labels(_checked(np.array(turn, dtype=np.int64), num_classes=num_classes, classes=classes))


def _file(url: str, *, num_classes: int, classes: Sequence[str]) -> Labels:
    shown = storage.shown(url)
    try:
        data = storage.read_bytes(storage.absolute(url))
    except Exception as error:  # every store raises its own kinds
        raise DataError(f"cannot read the classes in {shown} ({storage.reason(error)})", fix="name a file of a class a line") from None
    if url.endswith(".npy"):
        try:
            turn = np.load(io.BytesIO(data), allow_pickle=False)
        except (ValueError, OSError, EOFError):
            raise DataError(f"{shown} is no array of whole numbers", fix="save it with numpy.save, without Python objects") from None
        if turn.ndim != 1 or turn.dtype.kind not in "iu":
            raise DataError(f"{shown} holds {turn.dtype} {list(turn.shape)}", fix="whole numbers [N] are needed")
    else:
        try:
            lines = data.decode().splitlines()
        except UnicodeDecodeError:
            raise DataError(f"{shown} is not text", fix="name a file of a class a line") from None
        known: dict[str, int] = {}
        for line in lines:
            if line not in known:
                known[line] = _index(line.strip(), num_classes=num_classes, classes=classes)
        turn = np.array([known[line] for line in lines], dtype=np.int64)
    if not len(turn):
        raise DataError(f"{shown} names no class", fix="a class a line")
    return Labels(_checked(turn.astype(np.int64), num_classes=num_classes, classes=classes), count=len(turn))


def _index(text: str, *, num_classes: int, classes: Sequence[str]) -> int:
    """The index of a class by its number or its name."""
    number = int(text) if _WHOLE.fullmatch(text) else -1
    named = classes.index(text) if text in classes else -1
    if named < 0 and number < 0:
        if not classes:
            raise SpecError("no class has a name here", value=text, fix=f"the network has classes 0 to {num_classes - 1}")
        some = ", ".join(classes[:6]) + (" ..." if len(classes) > 6 else "")
        raise SpecError("no class is called so", value=text, fix=f"{closest(text, list(classes))}there are {some}, or indices from 0")
    if named >= 0 and 0 <= number < num_classes and named != number:
        called = f" ({classes[number]})" if number < len(classes) else ""
        raise SpecError(
            f"class {text} may be number {number}{called} or the one called {text}, which is number {named}",
            fix="put the index of each picture into a .npy file, which holds numbers alone",
        )
    return number if named < 0 else named


def _checked(turn: NDArray[np.int64], *, num_classes: int, classes: Sequence[str]) -> NDArray[np.int64]:
    beyond = turn[(turn < 0) | (turn >= num_classes)]
    if len(beyond):
        named = f", called {', '.join(classes[:3])} ..." if classes else ""
        raise SpecError("no such class", value=int(beyond[0]), fix=f"the network has classes 0 to {num_classes - 1}{named}")
    return turn
