"""How far pictures are from the nearest one of a training set: what was memorised lies at distance nought."""

import torch
from torch import Tensor


def nearest_distances(pictures: Tensor, references: Tensor) -> Tensor:
    """Root mean square difference, in grey levels 0..255, of each picture to its nearest reference.

    Args:
        pictures: [N, C, H, W] uint8.
        references: [M, C, H, W] uint8.

    Returns:
        [N] float64.
    """
    pixels = pictures[0].numel()
    return torch.cdist(pictures.double().flatten(1), references.double().flatten(1)).amin(1) / pixels**0.5


def median_distance(pictures: Tensor, references: Tensor) -> float:
    """The median over `pictures` of the distance to the nearest reference."""
    return nearest_distances(pictures, references).median().item()
