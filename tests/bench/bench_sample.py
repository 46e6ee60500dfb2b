"""Drawing pictures: ours by position against a plain rendering of the original's loop, and against diffusers with the same weights."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cases import DIGITS
from our_step import bench_spec
from plain_sample import PlainProcess, draw
from timing import Comparison, Effort, NotRun, compare
from torch import Tensor

from iddpm_ray import build
from iddpm_ray.convert.model import Model
from iddpm_ray.convert.write import write_model
from iddpm_ray.diffusion.seeded import Way, draw_pictures
from iddpm_ray.models.weights import init_weights
from iddpm_ray.spec.spec import JobSpec

BATCH, STEPS = 64, 20
NOTE = "ancestral steps, labels, learned variance; ours draws every number by position, the peers take torch's generator"


def results(effort: Effort) -> Iterator[Comparison | NotRun]:
    """Seconds a batch of pictures."""
    spec = bench_spec(size=16, channels=1, batch=BATCH, sections=DIGITS)
    model = network_of(spec)
    batch, steps = (8, 4) if effort.quick else (BATCH, STEPS)
    ours, plain = Ours(spec, model, batch=batch, steps=steps), Plain(spec, model, batch=batch, steps=steps)
    name = f"sampling, digits, 16 px, 0.9 M parameters, batch {batch}, {steps} steps"
    labels: dict[str, Any] = {"ours_label": "draw_pictures", "note": NOTE, "repeats": effort.of(7)}
    yield compare(name, ours, plain, peer_label="plain loop, as the original", at_most=1.0, **labels)
    try:
        theirs = Diffusers(spec, model, batch=batch, steps=steps)
    except ImportError:
        yield NotRun(f"{name}, diffusers", "diffusers is not installed")
        return
    yield compare(name, ours, theirs, peer_label="diffusers, UNet2DModel and DDPMScheduler", at_most=1.0, **labels)
    compiled = Ours(spec, model, batch=batch, steps=steps, compile=True)
    try:
        compiled()
    except Exception as error:  # no compiler for C++, or one that fails
        yield NotRun(f"{name}, compiled", f"torch.compile fails: {type(error).__name__}")
        return
    labels["ours_label"] = "draw_pictures, compiled"
    yield compare(name, compiled, theirs, peer_label="diffusers, UNet2DModel and DDPMScheduler", at_most=1.0, **labels)


def network_of(spec: JobSpec) -> Model:
    """The spec's network with weights that do not vanish."""
    network = build.model(spec, num_classes=spec.model.num_classes)
    init_weights(network, seed=1)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: value.detach() + 0.02 * torch.randn(value.shape, generator=generator) for name, value in network.named_parameters()}
    return Model(spec, tuple("0123456789"), tensors, "benchmark")


class Ours:
    """As jobs/sample.py draws a chunk."""

    def __init__(self, spec: JobSpec, model: Model, *, batch: int, steps: int, compile: bool = False) -> None:
        self.network = model.network()
        if compile:
            self.network.compile()
        self.diffusion = build.diffusion(spec.diffusion, respacing=str(steps))
        self.indices, self.labels = torch.arange(batch), torch.arange(batch) % 10
        self.shape = spec.picture_shape()

    def __call__(self) -> Tensor:
        """[N, C, H, W] uint8."""
        cond, way = {"y": self.labels}, Way()
        with torch.no_grad():
            return draw_pictures(self.diffusion, self.network, indices=self.indices, shape=self.shape, seed=0, cond=cond, way=way)


class Plain:
    """The plain loop on the same timesteps."""

    def __init__(self, spec: JobSpec, model: Model, *, batch: int, steps: int) -> None:
        self.network = model.network()
        kept = build.diffusion(spec.diffusion, respacing=str(steps)).timestep_map.tolist()
        self.process = PlainProcess.cosine(spec.diffusion.timesteps, kept=kept)
        self.labels, self.shape = torch.arange(batch) % 10, (batch, *spec.picture_shape())

    def __call__(self) -> Tensor:
        """[N, C, H, W] uint8."""
        return draw(self.process, self.network, torch.randn(self.shape), self.labels, noise=lambda done: torch.randn(self.shape))


class Diffusers:
    """What our export leaves, opened and drawn by diffusers alone."""

    def __init__(self, spec: JobSpec, model: Model, *, batch: int, steps: int) -> None:
        from diffusers import DDPMScheduler, UNet2DModel

        with tempfile.TemporaryDirectory() as folder:
            place = str(Path(folder) / "exported")
            write_model(model, place, say=lambda line: None)
            self.network = UNet2DModel.from_pretrained(place, subfolder="unet").eval()
            self.scheduler: Any = DDPMScheduler.from_pretrained(place, subfolder="scheduler")
        self.scheduler.set_timesteps(steps)
        self.labels, self.shape = torch.arange(batch) % 10, (batch, *spec.picture_shape())

    def __call__(self) -> Tensor:
        """[N, C, H, W] uint8."""
        x = torch.randn(self.shape)
        with torch.no_grad():
            for t in self.scheduler.timesteps:
                x = self.scheduler.step(self.network(x, t, class_labels=self.labels).sample, t, x).prev_sample
        return ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
