"""Laws of the network that enlarges pictures."""

import pytest
import torch

from iddpm_ray.models.superres import SuperResUNet, downsample_condition, upsample_condition
from iddpm_ray.models.unet import UNet
from iddpm_ray.models.weights import init_weights


def make(*, image_channels: int = 1) -> SuperResUNet:
    model = SuperResUNet(
        image_channels=image_channels,
        model_channels=32,
        out_channels=2,
        num_res_blocks=1,
        attention_factors=(),
        channel_mult=(1, 1),
        num_classes=3,
    )
    init_weights(model, seed=0)
    torch.nn.init.normal_(model.out[2].weight)
    return model


def test_it_is_a_unet_that_sees_the_picture_and_its_enlarged_condition() -> None:
    model = make()
    twin = UNet(
        image_channels=2, model_channels=32, out_channels=2, num_res_blocks=1, attention_factors=(), channel_mult=(1, 1), num_classes=3
    )
    twin.load_state_dict(model.state_dict())
    x, t, y, low_res = torch.randn(2, 1, 8, 12), torch.tensor([3, 900]), torch.tensor([0, 2]), torch.randn(2, 1, 3, 5)
    enlarged = torch.nn.functional.interpolate(low_res, (8, 12), mode="bilinear")
    assert torch.equal(model(x, t, y, low_res=low_res), twin(torch.cat([x, enlarged], dim=1), t, y))


@pytest.mark.parametrize("size", [(2, 3), (8, 12), (5, 4)])
def test_height_and_width_keep_their_axes(size: tuple[int, int]) -> None:
    low_res = torch.arange(size[0] * size[1], dtype=torch.float32).view(1, 1, *size)
    enlarged = upsample_condition(low_res, height=8, width=12)
    assert enlarged.shape == (1, 1, 8, 12)
    assert make()(torch.randn(1, 1, 8, 12), torch.zeros(1), torch.tensor([1]), low_res).shape == (1, 2, 8, 12)


def test_areas_are_means_also_where_sizes_do_not_divide() -> None:
    pictures = torch.randn(2, 3, 6, 8)
    torch.testing.assert_close(downsample_condition(pictures, height=3, width=2), pictures.view(2, 3, 3, 2, 2, 4).mean(dim=(3, 5)))
    assert downsample_condition(pictures, height=4, width=5).shape == (2, 3, 4, 5)


def test_a_constant_survives_both_resizings() -> None:
    pictures = torch.full((1, 2, 16, 24), 0.25)
    low_res = downsample_condition(pictures, height=4, width=6)
    torch.testing.assert_close(upsample_condition(low_res, height=16, width=24), pictures)


def test_a_forgotten_condition_is_named() -> None:
    with pytest.raises(AssertionError, match="needs the small pictures"):
        make()(torch.randn(1, 1, 8, 8), torch.zeros(1), torch.tensor([1]))


def test_a_noise_level_is_two_layers_more_and_changes_no_other_key_or_weight() -> None:
    arguments = {
        "image_channels": 1,
        "model_channels": 32,
        "out_channels": 2,
        "num_res_blocks": 1,
        "attention_factors": (),
        "channel_mult": (1,),
    }
    plain, told = SuperResUNet(**arguments), SuperResUNet(**arguments, low_res_levels=True)
    for model in (plain, told):
        init_weights(model, seed=0)
    own = {f"low_res_embed.{number}.{kind}" for number in (0, 2) for kind in ("weight", "bias")}
    assert told.state_dict().keys() - plain.state_dict().keys() == own
    assert all(torch.equal(value, told.state_dict()[name]) for name, value in plain.state_dict().items())
    for parameter in told.parameters():
        torch.nn.init.normal_(parameter, std=0.1)  # what begins at zero would hide the level
    x, t, low_res = torch.randn(2, 1, 8, 8), torch.tensor([3, 900]), torch.randn(2, 1, 4, 4)
    levels = [told(x, t, low_res=low_res, low_res_level=torch.tensor([level, level])) for level in (0, 7)]
    assert not torch.equal(levels[0], levels[1])
    with pytest.raises(AssertionError, match="noise levels are given exactly"):
        told(x, t, low_res=low_res)
    with pytest.raises(AssertionError, match="noise levels are given exactly"):
        plain(x, t, low_res=low_res, low_res_level=torch.tensor([0, 0]))
