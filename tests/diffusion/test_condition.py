"""Laws of noise on the picture to enlarge: level 0 is the picture, levels are those of the process, all draws go by position."""

import torch
from diffusions import make

from iddpm_ray.diffusion.condition import ConditionNoise, drawing_condition, training_condition

PICTURES = torch.linspace(-1, 1, 5 * 2 * 3 * 3).view(5, 2, 3, 3)
POSITIONS = torch.arange(5)


def noise() -> ConditionNoise:
    return ConditionNoise.of(make("cosine", 100), highest=40)


def test_level_zero_is_the_picture_and_level_s_the_process_at_s_less_one() -> None:
    levels, eps = torch.tensor([0, 1, 2, 20, 40]), torch.ones_like(PICTURES)
    added = noise().add(PICTURES, level=levels, noise=eps)
    assert torch.equal(added[0], PICTURES[0])
    kept = make("cosine", 100).tables.alphas_cumprod
    for place, level in enumerate(levels.tolist()[1:], start=1):
        wanted = kept[level - 1].sqrt() * PICTURES[place] + (1 - kept[level - 1]).sqrt() * eps[place]
        torch.testing.assert_close(added[place], wanted.float())


def test_levels_are_equally_likely_and_none_is_left_out() -> None:
    uniforms = (torch.arange(41_000) + 0.5) / 41_000
    counts = torch.bincount(noise().levels(uniforms.double()), minlength=41)
    assert counts.tolist() == [1000] * 41
    assert noise().levels(torch.tensor([1 - 2.0**-53], dtype=torch.float64)).item() == 40


def test_training_draws_by_position_whatever_the_company() -> None:
    together = training_condition(PICTURES, augment=noise(), seed=3, positions=POSITIONS)
    apart = training_condition(PICTURES[2:], augment=noise(), seed=3, positions=POSITIONS[2:])
    assert torch.equal(together["low_res"][2:], apart["low_res"])
    assert torch.equal(together["low_res_level"][2:], apart["low_res_level"])
    assert len(set(together["low_res_level"].tolist())) > 1
    other = training_condition(PICTURES, augment=noise(), seed=4, positions=POSITIONS)
    assert not torch.equal(together["low_res"], other["low_res"])


def test_drawing_has_one_level_and_tells_it() -> None:
    clean = drawing_condition(PICTURES, augment=noise(), level=0, seed=3, indices=POSITIONS)
    assert torch.equal(clean["low_res"], PICTURES)
    assert clean["low_res_level"].tolist() == [0] * 5
    noisy = drawing_condition(PICTURES, augment=noise(), level=30, seed=3, indices=POSITIONS)
    assert noisy["low_res_level"].tolist() == [30] * 5
    assert not torch.equal(noisy["low_res"], PICTURES)
    assert drawing_condition(PICTURES, augment=None, level=0, seed=3, indices=POSITIONS).keys() == {"low_res"}
