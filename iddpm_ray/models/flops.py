"""What a forward pass costs, counted on the meta device."""

from collections.abc import Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

from iddpm_ray.models.superres import SuperResUNet
from iddpm_ray.models.unet import UNet


def forward_flops(model: UNet, image_shape: Sequence[int], *, low_res: tuple[int, int] | None = None) -> int:
    """Floating-point operations of one picture's forward pass: twice the multiply-adds of convolutions, linear layers and attention.

    Args:
        model: on any device; its weights are not read.
        image_shape: (C, H, W) of a picture.
        low_res: (h, w) of the condition of a super-resolution network; enlarging it is not counted, so it changes nothing.
    """
    channels, height, width = image_shape
    meta = torch.device("meta")
    weights = {name: torch.empty_like(parameter, device=meta) for name, parameter in model.named_parameters()}
    inputs = {"x": torch.empty(1, channels, height, width, device=meta), "t": torch.zeros(1, device=meta)}
    if model.num_classes is not None:
        inputs["y"] = torch.zeros(1, dtype=torch.int64, device=meta)
    if isinstance(model, SuperResUNet):
        inputs["low_res"] = torch.empty(1, channels, *(low_res or (height, width)), device=meta)
        if model.low_res_levels:
            inputs["low_res_level"] = torch.zeros(1, device=meta)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        torch.func.functional_call(model, weights, (), inputs)
    return counter.get_total_flops()
