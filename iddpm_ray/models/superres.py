"""The U-Net that enlarges pictures, and the two resizings of its condition."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iddpm_ray.models.nn import at_least_float32, timestep_embedding, without_autocast
from iddpm_ray.models.unet import UNet


class SuperResUNet(UNet):
    """A U-Net that also sees a small picture of what it should paint (Nichol & Dhariwal 2021, section 2; Saharia et al. 2021).

    Args:
        low_res_levels: whether it is also told how noisy the small picture was made (Ho et al. 2021, arXiv:2106.15282); then it has two
            linear layers more, `low_res_embed`, whose output joins the timestep's.
        arguments: of `UNet`.
    """

    pictures_in = 2

    def __init__(self, *, low_res_levels: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.low_res_levels = low_res_levels
        if low_res_levels:
            width = 4 * self.model_channels
            self.low_res_embed = nn.Sequential(nn.Linear(self.model_channels, width), nn.SiLU(), nn.Linear(width, width))

    def forward(
        self, x: Tensor, t: Tensor, y: Tensor | None = None, low_res: Tensor | None = None, low_res_level: Tensor | None = None
    ) -> Tensor:
        """One prediction a picture.

        Args:
            x: [N, image_channels, H, W], noised large pictures.
            t: [N] timesteps.
            y: [N] int64 labels, for a class-conditional network and no other.
            low_res: [N, image_channels, h, w], the small pictures, of any size; required.
            low_res_level: [N] their noise levels, for a network that is told them and no other.

        Returns:
            [N, out_channels, H, W].
        """
        assert low_res is not None, "a super-resolution network needs the small pictures"
        assert (low_res_level is not None) == self.low_res_levels, "noise levels are given exactly to a network that knows them"
        height, width = x.shape[-2:]
        both = torch.cat([x, upsample_condition(low_res, height=height, width=width).to(x.dtype)], dim=1)
        return self._predict(both, self._embed_all(x, t, y, low_res_level))

    def _embed_all(self, x: Tensor, t: Tensor, y: Tensor | None, level: Tensor | None) -> Tensor:
        with without_autocast(x.device):
            embedding = self._embed(t, y)
            if level is None:
                return embedding
            angles = timestep_embedding(level, dim=self.model_channels, dtype=at_least_float32(embedding.dtype))
            return embedding + self.low_res_embed(angles.to(embedding.dtype))


def upsample_condition(low_res: Tensor, *, height: int, width: int) -> Tensor:
    """Bilinear enlargement with pixel centres aligned: [N, C, h, w] to [N, C, height, width]."""
    return F.interpolate(low_res, size=(height, width), mode="bilinear", align_corners=False)


def downsample_condition(pictures: Tensor, *, height: int, width: int) -> Tensor:
    """Small pictures to condition on, each pixel the mean of its area: [N, C, H, W] to [N, C, height, width]."""
    return F.adaptive_avg_pool2d(pictures, (height, width))
