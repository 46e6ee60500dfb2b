"""Laws of shortened processes, and what is refused in which words."""

import dataclasses
import re

import pytest
import torch
from diffusions import gaussians, make

from iddpm_ray.diffusion.gaussian import MeanType, VarianceType, model_timesteps
from iddpm_ray.diffusion.respace import make_diffusion_as_original, space_timesteps
from iddpm_ray.diffusion.sample import ddim_sample, ddpm_sample
from iddpm_ray.errors import SpecError


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_respaced_to_all_timesteps_is_the_same_process(schedule: str) -> None:
    whole, respaced = make(schedule, 300), make(schedule, 300, [300])
    assert torch.equal(respaced.timestep_map, whole.timestep_map)
    for field in dataclasses.fields(whole.tables):
        ours, theirs = getattr(respaced.tables, field.name), getattr(whole.tables, field.name)
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11, msg=lambda text, name=field.name: f"{name}: {text}")


@pytest.mark.parametrize("sections", ["7", "ddim10", "3,4", [5, 0, 5], "1"])
def test_a_shortened_process_has_the_noise_of_the_timesteps_it_keeps(sections: str | list[int]) -> None:
    whole, short = make("cosine", 50), make("cosine", 50, sections)
    torch.testing.assert_close(short.tables.alphas_cumprod, whole.tables.alphas_cumprod[short.timestep_map], rtol=1e-12, atol=0)
    assert short.num_timesteps == len(space_timesteps(50, sections))
    assert short.original_num_timesteps == 50


def test_the_network_of_a_shortened_process_is_told_the_original_timesteps() -> None:
    plain, rescaled = make("cosine", 500, "5", rescale=False), make("cosine", 500, "5", rescale=True)
    t = torch.tensor([0, 4, 2])
    assert model_timesteps(plain, t).tolist() == [0, 499, 250]
    assert model_timesteps(rescaled, t).tolist() == [0.0, 998.0, 500.0]


def test_sections_are_spread_over_their_parts() -> None:
    assert space_timesteps(10, "3,2") == [0, 2, 4, 5, 9]
    assert space_timesteps(10, [2, 0]) == [0, 4]
    assert space_timesteps(11, "1,2") == [0, 6, 10]
    assert space_timesteps(10, " 3 , 2 ") == [0, 2, 4, 5, 9]


def test_ddim_takes_the_smallest_whole_stride() -> None:
    assert space_timesteps(10, "ddim5") == [0, 2, 4, 6, 8]
    assert space_timesteps(10, "ddim4") == [0, 3, 6, 9]


@pytest.mark.parametrize("sections", [None, ""])
def test_without_sections_the_betas_stay_as_they_are(sections: str | None) -> None:
    assert torch.equal(make("linear", 40, sections).tables.betas, make("linear", 40).tables.betas)


def test_an_impossible_ddim_count_is_refused_naming_it_and_what_would_do() -> None:
    with pytest.raises(SpecError, match=r"respacing asks for 30 timesteps.*stride through 100 .*ddim30") as refused:
        space_timesteps(100, "ddim30")
    suggested = re.findall(r"ddim\d+", str(refused.value).split("try")[1])
    assert suggested == ["ddim25", "ddim34"]
    assert [len(space_timesteps(100, name)) for name in suggested] == [25, 34]


@pytest.mark.parametrize(
    ("num_timesteps", "sections", "words"),
    [
        (4000, "4001", "4001 timesteps in a section that has 4000"),
        (1000, "300,300,400", "400 timesteps in a section that has 333"),
        (20, [11, 9], "11 timesteps in a section that has 10"),
        (1000, "ddim999", "999"),
        (1000, "ddim1", "1 timesteps"),
        (1000, "ddim0", "0 timesteps"),
        (1000, "ddim", "ddim"),
        (1000, "ddim-5", "ddim-5"),
        (1000, "ddimfast", "ddimfast"),
        (1000, "abc", "abc"),
        (1000, "10,,5", "10,,5"),
        (1000, "2.5", "2.5"),
        (1000, "-5", "-5"),
        (1000, [10, 2.5], "2.5"),
        (1000, [True], "True"),
        (1000, [], "[]"),
        (1000, "", "''"),
    ],
)
def test_sections_that_do_not_fit_are_refused_naming_what_was_asked(num_timesteps: int, sections: str | list[int], words: str) -> None:
    with pytest.raises(SpecError, match="respacing") as refused:
        space_timesteps(num_timesteps, sections)
    assert words in str(refused.value)
    assert ": " in str(refused.value), "says what would do"


@pytest.mark.parametrize("sections", ["0", [0, 0]])
def test_a_process_of_no_timesteps_is_refused(sections: str | list[int]) -> None:
    with pytest.raises(SpecError, match=r"respacing.*at least one timestep"):
        make("cosine", 50, sections)


def test_what_cannot_be_trained_is_refused_also_when_it_would_be_shortened() -> None:
    for schedule, num_timesteps in (("cosine", 1), ("linear", 1), ("linear", 20)):
        for sections in (None, "1"):
            with pytest.raises(SpecError, match=rf"diffusion\.timesteps.*got {num_timesteps}"):
                make(schedule, num_timesteps, sections)


@pytest.mark.parametrize("mean", MeanType)
@pytest.mark.parametrize("variance", VarianceType)
def test_a_process_of_one_step_samples(mean: MeanType, variance: VarianceType) -> None:
    diffusion = make("linear", 1000, "1", mean=mean, variance=variance)
    assert diffusion.num_timesteps == 1
    start = gaussians(2, 2, 4, 3, dtype=torch.float32)

    def network(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        assert t.tolist() == [0.0, 0.0]
        return torch.cat([0.1 * x, 0.1 * x], dim=1) if variance.learned else 0.1 * x

    for draw in (ddpm_sample, ddim_sample):
        sample = draw(diffusion, network, start=start, noise=lambda done: start, cond={})
        assert torch.isfinite(sample).all()


def test_the_originals_acceptance_is_kept_for_comparison_only() -> None:
    accepted = make_diffusion_as_original(schedule="linear", num_timesteps=20)
    assert accepted.tables.betas[-1] == 1
    assert accepted.tables.sqrt_recip_alphas_cumprod[-1] == float("inf")
    for num_timesteps, sections in ((19, None), (1, None), (100, "1"), (100, "0")):
        with pytest.raises(SpecError):
            make_diffusion_as_original(schedule="linear", num_timesteps=num_timesteps, sections=sections)
