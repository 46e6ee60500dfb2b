"""The distance to the nearest reference is exact, and nought for a copy."""

import torch

from iddpm_ray.evaluate.nearest import median_distance, nearest_distances


def test_distance_is_the_root_mean_square_to_the_nearest() -> None:
    references = torch.stack([torch.zeros(1, 2, 2), torch.full((1, 2, 2), 100.0)]).byte()
    pictures = torch.tensor([[[[3, 3], [3, 3]]], [[[100, 100], [100, 98]]], [[[100, 100], [100, 100]]]], dtype=torch.uint8)
    torch.testing.assert_close(
        nearest_distances(pictures, references), torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64), atol=1e-5, rtol=0
    )
    assert abs(median_distance(pictures, references) - 1.0) < 1e-5


def test_bytes_do_not_wrap() -> None:
    black, white = torch.zeros(1, 3, 4, 5, dtype=torch.uint8), torch.full((1, 3, 4, 5), 255, dtype=torch.uint8)
    assert abs(median_distance(black, white) - 255) < 1e-9
