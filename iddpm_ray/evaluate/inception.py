"""The Inception network that FID is defined by: Szegedy et al. 2015 (arXiv:1512.00567) as TensorFlow's graph of December 2015 has it.

Parameters have the names of the published conversion of that graph, so that file loads. The network is ours because the packages that
bring it unpickle the file without asking, and need a torchvision built against the very torch that is installed. Pictures are resized as
that graph does it. Average pools do not count the padding; the last block pools by the maximum.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 299
NUM_POOLED = 2048
NUM_SPATIAL = 7 * 17 * 17
NUM_CLASSES = 1008


@dataclass(frozen=True)
class InceptionOutputs:
    """Of N pictures: `pooled` [N, 2048]; `spatial` [N, 2023], seven maps of 17 x 17, channels innermost; `logits` [N, 1008], no bias."""

    pooled: Tensor
    spatial: Tensor
    logits: Tensor


class Inception(nn.Module):
    """The whole network."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = _Unit(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = _Unit(32, 32, 3)
        self.Conv2d_2b_3x3 = _Unit(32, 64, 3, padding=1)
        self.Conv2d_3b_1x1 = _Unit(64, 80, 1)
        self.Conv2d_4a_3x3 = _Unit(80, 192, 3)
        self.Mixed_5b, self.Mixed_5c, self.Mixed_5d = _BlockA(192, 32), _BlockA(256, 64), _BlockA(288, 64)
        self.Mixed_6a = _BlockB(288)
        self.Mixed_6b, self.Mixed_6c, self.Mixed_6d, self.Mixed_6e = (_BlockC(768, width) for width in (128, 160, 160, 192))
        self.Mixed_7a = _BlockD(768)
        self.Mixed_7b, self.Mixed_7c = _BlockE(1280, pool_by_maximum=False), _BlockE(2048, pool_by_maximum=True)
        self.fc = nn.Linear(2048, NUM_CLASSES)

    def forward(self, pictures: Tensor) -> InceptionOutputs:
        """Of pictures [N, 3, H, W], values 0..255."""
        x = (resize_as_tensorflow(pictures.float(), side=SIDE) - 128) / 128
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(F.max_pool2d(x, 3, stride=2)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(F.max_pool2d(x, 3, stride=2))))
        x = self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))
        spatial = self.Mixed_6d.branch1x1(x)[:, :7].permute(0, 2, 3, 1).flatten(1)
        x = self.Mixed_7a(self.Mixed_6e(self.Mixed_6d(x)))
        pooled = self.Mixed_7c(self.Mixed_7b(x)).mean(dim=(2, 3))
        return InceptionOutputs(pooled, spatial, pooled @ self.fc.weight.T)


def resize_as_tensorflow(pictures: Tensor, *, side: int) -> Tensor:
    """Bilinear to side x side as TensorFlow 1 did it: pixel i of the result lies at i * (old / new) of the picture, not half a pixel on."""
    rows, columns = _lerp(pictures.shape[2], side, like=pictures), _lerp(pictures.shape[3], side, like=pictures)
    top, bottom = pictures[:, :, rows.low], pictures[:, :, rows.high]
    tall = top + (bottom - top) * rows.weight[:, None]
    left, right = tall[:, :, :, columns.low], tall[:, :, :, columns.high]
    return left + (right - left) * columns.weight


@dataclass(frozen=True)
class _Lerp:
    low: Tensor
    high: Tensor
    weight: Tensor


def _lerp(old: int, new: int, *, like: Tensor) -> _Lerp:
    place = torch.arange(new, dtype=torch.float32, device=like.device) * (old / new)
    low = place.long().clamp(max=old - 1)
    return _Lerp(low, (low + 1).clamp(max=old - 1), (place - low).to(like.dtype))


class _Unit(nn.Module):
    """Convolution, batch normalisation, rectifier."""

    def __init__(
        self, channels: int, out: int, kernel: int | tuple[int, int], *, stride: int = 1, padding: int | tuple[int, int] = 0
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride=stride, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


def _wide(channels: int, out: int, length: int = 7) -> _Unit:
    return _Unit(channels, out, (1, length), padding=(0, length // 2))


def _high(channels: int, out: int, length: int = 7) -> _Unit:
    return _Unit(channels, out, (length, 1), padding=(length // 2, 0))


def _average(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)


class _BlockA(nn.Module):
    def __init__(self, channels: int, pooled: int) -> None:
        super().__init__()
        self.branch1x1 = _Unit(channels, 64, 1)
        self.branch5x5_1, self.branch5x5_2 = _Unit(channels, 48, 1), _Unit(48, 64, 5, padding=2)
        self.branch3x3dbl_1, self.branch3x3dbl_2 = _Unit(channels, 64, 1), _Unit(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = _Unit(96, 96, 3, padding=1)
        self.branch_pool = _Unit(channels, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch1x1(x), self.branch5x5_2(self.branch5x5_1(x)), double, self.branch_pool(_average(x))], 1)


class _BlockB(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch3x3 = _Unit(channels, 384, 3, stride=2)
        self.branch3x3dbl_1, self.branch3x3dbl_2 = _Unit(channels, 64, 1), _Unit(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = _Unit(96, 96, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), double, F.max_pool2d(x, 3, stride=2)], 1)


class _BlockC(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.branch1x1 = _Unit(channels, 192, 1)
        self.branch7x7_1, self.branch7x7_2, self.branch7x7_3 = _Unit(channels, width, 1), _wide(width, width), _high(width, 192)
        self.branch7x7dbl_1, self.branch7x7dbl_2, self.branch7x7dbl_3 = _Unit(channels, width, 1), _high(width, width), _wide(width, width)
        self.branch7x7dbl_4, self.branch7x7dbl_5 = _high(width, width), _wide(width, 192)
        self.branch_pool = _Unit(channels, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        once = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        twice = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        twice = self.branch7x7dbl_5(self.branch7x7dbl_4(twice))
        return torch.cat([self.branch1x1(x), once, twice, self.branch_pool(_average(x))], 1)


class _BlockD(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch3x3_1, self.branch3x3_2 = _Unit(channels, 192, 1), _Unit(192, 320, 3, stride=2)
        self.branch7x7x3_1, self.branch7x7x3_2, self.branch7x7x3_3 = _Unit(channels, 192, 1), _wide(192, 192), _high(192, 192)
        self.branch7x7x3_4 = _Unit(192, 192, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        long = self.branch7x7x3_4(self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x))))
        return torch.cat([self.branch3x3_2(self.branch3x3_1(x)), long, F.max_pool2d(x, 3, stride=2)], 1)


class _BlockE(nn.Module):
    def __init__(self, channels: int, *, pool_by_maximum: bool) -> None:
        super().__init__()
        self.pool_by_maximum = pool_by_maximum
        self.branch1x1 = _Unit(channels, 320, 1)
        self.branch3x3_1, self.branch3x3_2a, self.branch3x3_2b = _Unit(channels, 384, 1), _wide(384, 384, 3), _high(384, 384, 3)
        self.branch3x3dbl_1, self.branch3x3dbl_2 = _Unit(channels, 448, 1), _Unit(448, 384, 3, padding=1)
        self.branch3x3dbl_3a, self.branch3x3dbl_3b = _wide(384, 384, 3), _high(384, 384, 3)
        self.branch_pool = _Unit(channels, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        once = self.branch3x3_1(x)
        twice = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        pooled = F.max_pool2d(x, 3, stride=1, padding=1) if self.pool_by_maximum else _average(x)
        wings = [self.branch3x3_2a(once), self.branch3x3_2b(once), self.branch3x3dbl_3a(twice), self.branch3x3dbl_3b(twice)]
        return torch.cat([self.branch1x1(x), *wings, self.branch_pool(pooled)], 1)
