"""Pictures to measure with: waves and noise, as PNG files, a folder a class."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_pictures(folder: Path, *, count: int, side: int, channels: int) -> str:
    """Returns the folder, which then holds ten folders of files."""
    random = np.random.default_rng(0)
    across, down = np.meshgrid(np.linspace(0, 6, side), np.linspace(0, 6, side))
    for number in range(count):
        waves = [128 + 90 * np.sin(across * random.uniform(0.5, 2) + down * random.uniform(0.5, 2)) for _ in range(channels)]
        pixels = np.clip(np.stack(waves, axis=-1) + random.normal(0, 8, (side, side, channels)), 0, 255).astype(np.uint8)
        path = folder / str(number % 10) / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels if channels == 3 else pixels[..., 0]).save(path)
    return str(folder)
