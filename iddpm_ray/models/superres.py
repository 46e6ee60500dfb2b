"""The U-Net that enlarges pictures, and the two resizings of its condition."""

import torch
import torch.nn.functional as F
from torch import Tensor

from iddpm_ray.models.unet import UNet


class SuperResUNet(UNet):
    """A U-Net that also sees a small picture of what it should paint (Nichol & Dhariwal 2021, section 2; Saharia et al. 2021)."""

    pictures_in = 2

    def forward(self, x: Tensor, t: Tensor, y: Tensor | None = None, low_res: Tensor | None = None) -> Tensor:
        """One prediction a picture.

        Args:
            x: [N, image_channels, H, W], noised large pictures.
            t: [N] timesteps.
            y: [N] int64 labels, for a class-conditional network and no other.
            low_res: [N, image_channels, h, w], the small pictures, of any size; required.

        Returns:
            [N, out_channels, H, W].
        """
        assert low_res is not None, "a super-resolution network needs the small pictures"
        height, width = x.shape[-2:]
        return super().forward(torch.cat([x, upsample_condition(low_res, height=height, width=width).to(x.dtype)], dim=1), t, y)


def upsample_condition(low_res: Tensor, *, height: int, width: int) -> Tensor:
    """Bilinear enlargement with pixel centres aligned: [N, C, h, w] to [N, C, height, width]."""
    return F.interpolate(low_res, size=(height, width), mode="bilinear", align_corners=False)


def downsample_condition(pictures: Tensor, *, height: int, width: int) -> Tensor:
    """Small pictures to condition on, each pixel the mean of its area: [N, C, H, W] to [N, C, height, width]."""
    return F.adaptive_avg_pool2d(pictures, (height, width))
