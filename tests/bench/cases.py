"""The networks and batches that are measured."""

from dataclasses import dataclass
from typing import Any

import torch
from our_step import bench_spec
from timing import Effort
from torch import Tensor

from iddpm_ray.spec.spec import JobSpec

Sections = dict[str, dict[str, Any]]
DIGITS: Sections = {
    "model": {"num_channels": 32, "num_res_blocks": 1, "channel_mult": [1, 1, 2], "attention_resolutions": [4], "num_heads": 4}
}
HALF_CIFAR: Sections = {"model": {"num_channels": 64, "num_res_blocks": 3}}
CIFAR: Sections = {"model": {"num_channels": 128, "num_res_blocks": 3}}
IMAGENET: Sections = {"model": {"num_channels": 128, "num_res_blocks": 3}}


@dataclass(frozen=True)
class Case:
    """A network and its batch; `calls` steps are timed together."""

    name: str
    spec: JobSpec
    calls: int

    def batch(self) -> tuple[Tensor, Tensor]:
        """Pixels [N, C, H, W] uint8 and labels [N]."""
        generator = torch.Generator().manual_seed(0)
        samples = self.spec.train.global_batch
        pixels = torch.randint(0, 256, (samples, *self.spec.picture_shape()), generator=generator, dtype=torch.uint8)
        return pixels, torch.randint(0, 10, (samples,), generator=generator)


def digits(*, batch: int, calls: int) -> Case:
    """The demo's network."""
    return Case(f"digits, 16 px, 0.9 M parameters, batch {batch}", bench_spec(size=16, channels=1, batch=batch, sections=DIGITS), calls)


def half_cifar(*, batch: int, calls: int) -> Case:
    """The CIFAR-10 recipe at half its width: what two CPU cores can still step."""
    spec = bench_spec(size=32, channels=3, batch=batch, sections=HALF_CIFAR)
    return Case(f"CIFAR-10 recipe at half width, 32 px, 13 M parameters, batch {batch}", spec, calls)


def on_cpu(effort: Effort) -> list[Case]:
    """A realistic batch of two networks that a CPU can train; a quick look takes a small batch of the smaller one."""
    return [digits(batch=8, calls=1)] if effort.quick else [digits(batch=64, calls=2), half_cifar(batch=4, calls=1)]


def on_gpu(*, optim: dict[str, Any] | None = None) -> list[Case]:
    """Published recipes with batches that fill one GPU."""
    more = {"optim": {"ema_rates": [0.9999], **(optim or {})}}
    cifar = bench_spec(size=32, channels=3, batch=256, sections={**CIFAR, **more})
    imagenet = bench_spec(size=64, channels=3, batch=128, sections={**IMAGENET, **more})
    return [Case("CIFAR-10 recipe, 32 px, batch 256", cifar, 5), Case("ImageNet-64 recipe, 64 px, batch 128", imagenet, 5)]
