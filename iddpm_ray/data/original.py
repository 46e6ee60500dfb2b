"""How the original program listed, labelled, shared out and reduced pictures; kept only to compare with its recorded numbers.

Nothing else calls this: it resizes before it converts to RGB (palettes meet nearest neighbour, alpha is dropped), takes labels with their
file extension, and lets the classes depend on which files it found.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iddpm_ray.data.image import fit

_EXTENSIONS = ("jpg", "jpeg", "png", "gif")
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def original_pixels(path: str | Path, *, height: int, width: int, channels: int = 3) -> NDArray[np.uint8]:
    """Pixels [C, H, W], reduced in the file's own mode and only then converted."""
    with Image.open(path) as image:
        image.load()
        pixels = np.asarray(fit(image, width=width, height=height).convert(_MODES[channels]))
    return np.ascontiguousarray(pixels.reshape(height, width, channels).transpose(2, 0, 1))


def original_listing(directory: str | Path) -> list[str]:
    """Paths relative to `directory`: names in plain string order, directories entered where their name stands."""
    found: list[str] = []
    for entry in sorted(Path(directory).iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found += [f"{entry.name}/{below}" for below in original_listing(entry)]
        elif "." in entry.name and entry.name.rsplit(".", 1)[1].lower() in _EXTENSIONS:
            found.append(entry.name)
    return found


def original_labels(paths: Sequence[str]) -> list[int]:
    """Class indices: the base name up to its first underscore (the whole of it, extension included, where there is none), sorted."""
    texts = [path.rsplit("/", 1)[-1].split("_", 1)[0] for path in paths]
    index = {text: i for i, text in enumerate(sorted(set(texts)))}
    return [index[text] for text in texts]


def original_share(paths: Sequence[str], *, worker: int, num_workers: int) -> list[str]:
    """The files of one worker of several: every num_workers-th of the list."""
    return list(paths[worker::num_workers])
