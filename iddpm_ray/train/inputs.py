"""What a step sees: pixels made into floats and every random number of them, each a function of the sample's position."""

from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.condition import ConditionNoise, training_condition
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.diffusion.resample import Resampler
from iddpm_ray.models.superres import downsample_condition


@dataclass(frozen=True)
class Augmentation:
    """How pixels become network inputs.

    Attributes:
        flip: mirror each picture left to right with probability 1/2.
        class_dropout: probability that a label is replaced by the null class.
        null_class: index of that class; None without labels.
        low_res_size: [height, width] of the condition of a super-resolution model, or None.
        low_res_noise: levels of noise on that condition, or None for a network that knows none.
        channels_last: memory layout of the pictures.
    """

    flip: bool = False
    class_dropout: float = 0.0
    class_cond: bool = False
    null_class: int | None = None
    low_res_size: tuple[int, int] | None = None
    low_res_noise: ConditionNoise | None = None
    channels_last: bool = False


@dataclass(frozen=True)
class StepInputs:
    """The inputs of one step on one rank, on the device.

    Attributes:
        x_start: [n, C, H, W] float32 in [-1, 1].
        noise: [n, C, H, W] float32.
        cond: what else the network is given: `y` [n] int64, `low_res` [n, C, h, w], `low_res_level` [n] int64.
        own: where this rank's samples lie in the global batch.
        t: [G] int64 timesteps of the whole global batch, equal on all ranks.
        weights: [G] float32 importance weights.
    """

    x_start: Tensor
    noise: Tensor
    cond: dict[str, Tensor]
    own: slice
    t: Tensor
    weights: Tensor


def to_float(pixels: Tensor) -> Tensor:
    """Bytes 0..255 as float32 in [-1, 1]."""
    return pixels.float().div_(127.5).sub_(1.0)


def condition(x_start: Tensor, labels: Tensor, *, augmentation: Augmentation) -> dict[str, Tensor]:
    """The network's conditions without any randomness: labels as they are, the low-resolution picture of `x_start` at noise level 0."""
    cond: dict[str, Tensor] = {}
    if augmentation.class_cond:
        cond["y"] = labels
    if augmentation.low_res_size is not None:
        height, width = augmentation.low_res_size
        cond["low_res"] = downsample_condition(x_start, height=height, width=width)
    if augmentation.low_res_noise is not None:
        cond["low_res_level"] = torch.zeros(x_start.shape[0], dtype=torch.int64, device=x_start.device)
    return cond


def make_inputs(
    pixels: Tensor,
    labels: Tensor,
    *,
    seed: int,
    first_position: int,
    global_batch: int,
    own: slice,
    resampler: Resampler,
    augmentation: Augmentation,
    device: torch.device,
) -> StepInputs:
    """Draws everything for the positions `first_position .. first_position + global_batch` and makes this rank's part of it.

    Args:
        pixels, labels: this rank's pictures, [n, C, H, W] uint8 and [n] int64, `n == own.stop - own.start`.
    """
    positions = torch.arange(first_position, first_position + global_batch, device=device)
    mine = positions[own]
    drawn = resampler.draw(draws.uniforms(seed, Purpose.TIMESTEP, positions).squeeze(1))
    x_start = to_float(_sent(pixels, device))
    if augmentation.flip:
        mirrored = draws.uniforms(seed, Purpose.FLIP, mine).squeeze(1) < 0.5
        x_start = torch.where(mirrored[:, None, None, None], x_start.flip(-1), x_start)
    cond = condition(x_start, _sent(labels, device), augmentation=augmentation)
    if augmentation.class_dropout > 0 and "y" in cond:
        assert augmentation.null_class is not None
        dropped = draws.uniforms(seed, Purpose.LABEL_DROP, mine).squeeze(1) < augmentation.class_dropout
        cond["y"] = torch.where(dropped, augmentation.null_class, cond["y"])
    if augmentation.low_res_noise is not None:
        cond |= training_condition(cond["low_res"], augment=augmentation.low_res_noise, seed=seed, positions=mine)
    noise = draws.normals(seed, Purpose.NOISE, mine, tuple(x_start.shape[1:]))
    if augmentation.channels_last:
        x_start, noise = (picture.contiguous(memory_format=torch.channels_last) for picture in (x_start, noise))
    return StepInputs(x_start=x_start, noise=noise, cond=cond, own=own, t=drawn.t, weights=drawn.weights)


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host, on the device; through pinned memory, so that the host does not wait for the copy."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
