"""Laws of the timestep embedding and of group normalisation."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from iddpm_ray.models.nn import GroupNorm, timestep_embedding, timestep_frequencies


def test_frequencies_fall_from_one_in_equal_ratios() -> None:
    frequencies = timestep_frequencies(64, max_period=100.0).double()
    expected = torch.tensor([100.0 ** (-k / 32) for k in range(32)], dtype=torch.float64)
    torch.testing.assert_close(frequencies, expected, rtol=5e-7, atol=0)
    assert frequencies[0] == 1


def test_frequencies_are_the_same_bits_one_at_a_time_and_together() -> None:
    together = timestep_frequencies(96)
    alone = [math.exp(float((torch.tensor(k, dtype=torch.float32) * -math.log(10000.0)).double() / 48.0)) for k in range(48)]
    torch.testing.assert_close(together, torch.tensor(alone), rtol=2e-6, atol=0)


def test_embedding_is_cosines_then_sines_then_a_zero_for_odd_widths() -> None:
    t = torch.tensor([0.0, 0.5, 17.0])
    embedding = timestep_embedding(t, dim=7)
    angles = t[:, None] * timestep_frequencies(7)
    assert embedding.shape == (3, 7)
    torch.testing.assert_close(embedding, torch.cat([angles.cos(), angles.sin(), torch.zeros(3, 1)], dim=1))


def test_integer_and_fractional_timesteps_agree_where_they_meet() -> None:
    t = torch.tensor([0, 3, 999])
    assert torch.equal(timestep_embedding(t, dim=32), timestep_embedding(t.float(), dim=32))


def test_embedding_of_half_precision_timesteps_is_computed_in_float32() -> None:
    t = torch.tensor([1.0, 100.0, 200.0], dtype=torch.bfloat16)
    assert torch.equal(timestep_embedding(t, dim=32), timestep_embedding(t.float(), dim=32))


def plain(norm: GroupNorm, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.group_norm(x, 32, norm.weight, norm.bias, norm.eps) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_modulated_normalisation_equals_normalising_then_modulating(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    norm = GroupNorm(64).double()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x = torch.randn(3, 64, 4, 6, dtype=torch.float64).contiguous(memory_format=layout)
    scale, shift, r = (
        torch.randn(3, 64, dtype=torch.float64),
        torch.randn(3, 64, dtype=torch.float64),
        torch.randn(3, 64, 4, 6, dtype=torch.float64),
    )
    inputs = [tensor.requires_grad_() for tensor in (x, scale, shift)] + [norm.weight, norm.bias]
    ours, theirs = norm(x, scale, shift), plain(norm, x, scale, shift)
    torch.testing.assert_close(ours, theirs)
    for got, expected in zip(torch.autograd.grad((ours * r).sum(), inputs), torch.autograd.grad((theirs * r).sum(), inputs), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("modulated", [False, True])
def test_statistics_are_float32_and_the_result_has_the_dtype_of_the_activations(dtype: torch.dtype, modulated: bool) -> None:
    torch.manual_seed(0)
    norm = GroupNorm(32)
    x = (torch.randn(2, 32, 16, 16) + 8).to(dtype)
    condition = (torch.randn(2, 32), torch.randn(2, 32)) if modulated else ()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = norm(x, *condition)
    exact = norm(x.float(), *condition)
    assert ours.dtype == dtype
    assert torch.equal(ours, exact.to(dtype))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_group_of_one_number_is_normalised_to_zero(batch: int) -> None:
    norm, x = GroupNorm(32), torch.randn(batch, 32, 1, 1)
    scale, shift = torch.randn(batch, 32), torch.randn(batch, 32)
    # The smallest deviation is sqrt(1e-5), so it enlarges the roundings of x by 300.
    torch.testing.assert_close(norm(x), torch.zeros_like(x), rtol=0, atol=1e-3)
    torch.testing.assert_close(norm(x, scale, shift), shift[:, :, None, None], rtol=0, atol=3e-3)
