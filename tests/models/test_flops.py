"""The cost of a forward pass against a count by hand."""

import pytest
import torch
from torch import nn

from iddpm_ray.models.flops import forward_flops
from iddpm_ray.models.superres import SuperResUNet
from iddpm_ray.models.unet import UNet

COMMON = {"image_channels": 3, "out_channels": 6}
CHECKPOINTED = {"num_heads": 4, "num_classes": 10, "gradient_checkpointing": True}


def counted_by_hand(model: UNet, inputs: dict[str, torch.Tensor]) -> int:
    """Twice the multiply-adds: from the shapes that meet each layer, attention from its own."""
    total = 0

    def convolution(module: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        nonlocal total
        assert isinstance(module, nn.Conv2d | nn.Linear)
        places = out[0, 0].numel() if isinstance(module, nn.Conv2d) else 1
        total += 2 * module.weight.numel() * places

    def attention(module: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        nonlocal total
        _, channels, height, width = out.shape
        positions = height * width
        total += 2 * positions * 4 * channels**2 + 4 * positions**2 * channels

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(convolution)
        elif hasattr(module, "qkv"):
            module.register_forward_hook(attention)
    with torch.no_grad():
        model(**inputs)
    return total


@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_count_equals_the_count_by_hand(attention: str) -> None:
    arguments = {
        "image_channels": 2,
        "model_channels": 32,
        "out_channels": 4,
        "num_res_blocks": 1,
        "attention_factors": (2,),
        "channel_mult": (1, 2),
    }
    model = UNet(**arguments, **CHECKPOINTED, attention=attention)
    ours = forward_flops(model, (2, 8, 12))
    assert ours == counted_by_hand(model, {"x": torch.randn(1, 2, 8, 12), "t": torch.zeros(1), "y": torch.tensor([1])})


def test_count_needs_no_memory_and_no_weights() -> None:
    arguments = {"model_channels": 32, "num_res_blocks": 1, "attention_factors": (2,), "channel_mult": (1, 2), "num_heads": 2}
    with torch.device("meta"):
        empty = SuperResUNet(**COMMON, **arguments)
    assert forward_flops(empty, (3, 16, 16), low_res=(4, 4)) == forward_flops(SuperResUNet(**COMMON, **arguments), (3, 16, 16)) > 0


@pytest.mark.parametrize(
    ("kind", "side", "gflop", "arguments"),
    [
        (UNet, 32, 16.8, {"model_channels": 128, "num_res_blocks": 3, "attention_factors": (2, 4), "channel_mult": (1, 2, 2, 2)}),
        (UNet, 64, 79.5, {"model_channels": 128, "num_res_blocks": 3, "attention_factors": (4, 8), "channel_mult": (1, 2, 3, 4)}),
        (
            SuperResUNet,
            256,
            1120,
            {"model_channels": 192, "num_res_blocks": 2, "attention_factors": (16, 32), "channel_mult": (1, 1, 2, 2, 4, 4)},
        ),
    ],
)
def test_published_networks_cost_what_they_are_known_to(kind: type[UNet], side: int, gflop: float, arguments: dict[str, int]) -> None:
    with torch.device("meta"):
        model = kind(**COMMON, **arguments, num_heads=4)
    assert forward_flops(model, (3, side, side)) / 1e9 == pytest.approx(gflop, rel=5e-3)
