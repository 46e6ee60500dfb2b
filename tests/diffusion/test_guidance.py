"""Laws of classifier-free guidance."""

import pytest
import torch
from diffusions import gaussians
from torch import Tensor

from iddpm_ray.diffusion.guidance import guided

NULL = 9
X = gaussians(3, 2, 4, 5, dtype=torch.float32)
T = torch.tensor([10.0, 500.0, 900.0])
Y = torch.tensor([0, 4, 8])


def network(x: Tensor, t: Tensor, *, y: Tensor, low_res: Tensor | None = None) -> Tensor:
    """Two mean and two variance channels that depend on everything."""
    label = y.view(-1, 1, 1, 1).float()
    mean = x * (1 + label) + t.view(-1, 1, 1, 1) / 1000
    if low_res is not None:
        mean = mean + low_res.mean(dim=(1, 2, 3), keepdim=True)
    return torch.cat([mean, label + 0 * x], dim=1)


def apart(scale: float, interval: tuple[float, float] | None = None) -> Tensor:
    return guided(network, scale=scale, null_class=NULL, channels=2, interval=interval)(X, T, y=Y)


def test_scale_one_is_the_network_and_scale_zero_ignores_the_label() -> None:
    conditional, unconditional = network(X, T, y=Y), network(X, T, y=torch.full_like(Y, NULL))
    torch.testing.assert_close(apart(1.0), conditional)
    torch.testing.assert_close(apart(0.0)[:, :2], unconditional[:, :2])


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_the_mean_part_is_extrapolated_and_the_variance_part_stays_conditional(scale: float) -> None:
    conditional, unconditional = network(X, T, y=Y), network(X, T, y=torch.full_like(Y, NULL))
    wanted = unconditional + scale * (conditional - unconditional)
    torch.testing.assert_close(apart(scale)[:, :2], wanted[:, :2])
    assert torch.equal(apart(scale)[:, 2:], conditional[:, 2:])


def test_outside_its_interval_the_network_is_conditional() -> None:
    limited, everywhere = apart(3.0, (400.0, 500.0)), apart(3.0)
    assert torch.equal(limited[1], everywhere[1])
    torch.testing.assert_close(limited[[0, 2]], network(X, T, y=Y)[[0, 2]])


def test_other_conditions_go_to_both_halves() -> None:
    low_res = gaussians(3, 2, 2, 2, dtype=torch.float32)
    ours = guided(network, scale=1.0, null_class=NULL, channels=2)(X, T, y=Y, low_res=low_res)
    torch.testing.assert_close(ours, network(X, T, y=Y, low_res=low_res))


def test_a_bfloat16_network_is_extrapolated_in_float32() -> None:
    half = guided(lambda x, t, *, y: network(x, t, y=y).bfloat16(), scale=5.0, null_class=NULL, channels=2)(X, T, y=Y)
    assert half.dtype == torch.float32
