"""How long a worker computes on a picture, by a throw-away pass over zeros."""

import time

import torch

from iddpm_ray import build
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.inputs import Augmentation
from iddpm_ray.train.rehearsal import Rehearsal
from iddpm_ray.train.setup import AUTOCAST


def seconds_a_picture(spec: JobSpec, *, num_classes: int | None, device: torch.device, samples: int) -> float:
    """Forward and backward of the run's network, without compiling, the second pass of two over `samples` pictures at once."""
    torch.set_float32_matmul_precision(spec.optim.matmul_precision)
    torch.set_num_threads(spec.cluster.threads_per_worker)
    network = build.model(spec, num_classes=num_classes).to(device).train()
    augmentation = Augmentation(
        class_cond=num_classes is not None,
        null_class=num_classes,
        low_res_size=spec.low_res_height_width(),
        channels_last=spec.optim.channels_last,
    )
    diffusion = build.diffusion(spec.diffusion).to(device)
    rehearsal = Rehearsal(diffusion, spec.picture_shape(), augmentation, AUTOCAST[spec.optim.precision], device)
    took = 0.0
    for _ in range(2):
        began = time.perf_counter()
        rehearsal.alone(network, samples=samples)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took = time.perf_counter() - began
    return took / samples
