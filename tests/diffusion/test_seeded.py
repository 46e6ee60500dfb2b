"""Laws of pictures by number: seed and index decide everything random, and a cascade's two networks share nothing of it."""

import pytest
import torch
from diffusions import make
from torch import Tensor

from iddpm_ray.diffusion.seeded import Method, Way, draw_pictures

SHAPE = (1, 4, 4)


def network(x: Tensor, t: Tensor, *, y: Tensor | None = None, low_res: Tensor | None = None) -> Tensor:
    mean = 0.5 * x if y is None else 0.5 * x + 0.02 * y.view(-1, 1, 1, 1)
    return torch.cat([mean, 0.1 * x], dim=1)


def draw(indices: list[int], way: Way, *, seed: int = 0, **cond: Tensor) -> Tensor:
    diffusion = make("cosine", 100, "8")
    return draw_pictures(diffusion, network, indices=torch.tensor(indices), shape=SHAPE, seed=seed, cond=cond, way=way)


@pytest.mark.parametrize("method", ["ddpm", "ddim", "dpmpp"])
def test_a_picture_depends_on_seed_and_index_alone(method: Method) -> None:
    way = Way(method, eta=0.5 if method == "ddim" else 0.0)
    four = draw([0, 1, 2, 3], way)
    assert four.dtype == torch.uint8
    assert torch.equal(draw([2, 0, 3, 1], way), four[[2, 0, 3, 1]])
    assert torch.equal(draw([3, 10**9], way)[:1], four[3:])
    assert not torch.equal(draw([0, 1, 2, 3], way, seed=1), four)
    assert len({bytes(picture.numpy().tobytes()) for picture in four}) == 4


def test_methods_and_guidance_draw_other_pictures() -> None:
    label = {"y": torch.tensor([1, 2])}
    ways = [Way("ddpm"), Way("ddim"), Way("ddim", eta=1.0), Way("dpmpp"), Way("dpmpp", guidance=30.0, null_class=0)]
    ways.append(Way("dpmpp", guidance=30.0, null_class=0, interval=(0.0, 300.0)))
    drawn = [draw([0, 1], way, **label) for way in ways]
    assert all(not torch.equal(one, other) for place, one in enumerate(drawn) for other in drawn[:place])


def test_a_network_that_enlarges_has_noises_of_its_own() -> None:
    """Otherwise the larger picture's noise would begin with the very numbers of the smaller one's."""
    seen: list[Tensor] = []

    def watching(x: Tensor, t: Tensor, **cond: Tensor) -> Tensor:
        seen.append(x.clone())
        return torch.cat([x, x], dim=1)

    for cond in ({}, {"low_res": torch.zeros(2, 1, 2, 2)}):
        draw_pictures(make("cosine", 100, "2"), watching, indices=torch.arange(2), shape=SHAPE, seed=0, cond=cond, way=Way())
    small, large = seen[0], seen[2]
    assert not torch.equal(small, large)
    assert (small * large).mean().abs() < 1
