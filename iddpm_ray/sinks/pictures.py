"""Pictures as PNG files of the run, beside its numbers."""

import io
from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from iddpm_ray import storage


def to_png(picture: Tensor) -> bytes:
    """A [C, H, W] uint8 picture, C 1 (grey) or 3, as PNG bytes."""
    pixels = picture.detach().cpu().numpy()
    image = Image.fromarray(pixels[0] if pixels.shape[0] == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    data = io.BytesIO()
    image.save(data, format="png")
    return data.getvalue()


def sheet(pictures: Tensor, *, columns: int, margin: int = 2) -> Tensor:
    """Lays pictures out row by row with white margins between them and around.

    Args:
        pictures: [N, C, H, W] uint8; a last row that is not full stays white.
        columns: pictures a row.
        margin: width of the margins, pixels.

    Returns:
        [C, rows * (H + margin) + margin, columns * (W + margin) + margin] uint8.
    """
    count, channels, height, width = pictures.shape
    rows = -(-count // columns)
    out = torch.full((channels, margin + rows * (height + margin), margin + columns * (width + margin)), 255, dtype=torch.uint8)
    for number, picture in enumerate(pictures.cpu()):
        top, left = margin + number // columns * (height + margin), margin + number % columns * (width + margin)
        out[:, top : top + height, left : left + width] = picture
    return out


def is_kept(run_url: str, name: str, step: int) -> bool:
    """Whether an attempt of the run has written the picture of that name and step."""
    return any(file.path.startswith(f"step-{step:08d}.") for file in storage.find(storage.join(run_url, name)))


class PictureSink:
    """Keeps pictures until a commit and then writes each to `{name}/step-{step}.a{attempt}.png`."""

    def __init__(self, run_url: str, *, attempt: int) -> None:
        self._run_url, self._attempt = run_url, attempt
        self._waiting: dict[str, bytes] = {}

    def row(self, row: Mapping[str, float | int | str]) -> None:
        """Rows are no pictures."""

    def picture(self, name: str, step: int, picture: Tensor) -> None:
        """Encodes the picture [C, H, W] uint8 at once."""
        self._waiting[storage.join(self._run_url, name, f"step-{step:08d}.a{self._attempt:04d}.png")] = to_png(picture)

    def commit(self, step: int) -> None:
        """Writes what waits; a picture that could not be written waits on."""
        for url in list(self._waiting):
            storage.write_whole(url, self._waiting[url])
            del self._waiting[url]

    def close(self) -> None:
        """Nothing is held open."""
