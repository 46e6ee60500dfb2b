"""One network and how pictures are drawn with it: found and checked once, opened by every worker."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from iddpm_ray import build
from iddpm_ray.diffusion.condition import drawing_condition
from iddpm_ray.diffusion.gaussian import GaussianDiffusion
from iddpm_ray.diffusion.seeded import draw_pictures
from iddpm_ray.evaluate.trained import Source, check_average, open_trained
from iddpm_ray.spec.fields import as_plain
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping, to_mapping
from iddpm_ray.train.inputs import to_float
from iddpm_ray.train.setup import AUTOCAST
from iddpm_ray.train.step import under_autocast

Precision = Literal["float32", "bf16", "fp16"]
WAY = ("method", "respacing", "eta", "ema", "guidance", "guidance_interval", "low_res_noise")
"""The fields of section `sample` that decide how a picture is drawn."""


@dataclass(frozen=True)
class Arithmetic:
    """What the bits of a result depend on beside the weights; equal on all workers of a job. By default float32 to the last bit.

    Attributes:
        device: `cpu` or `cuda`.
        precision: what the network computes in; all else is float32.
        matmul_precision: of float32 products on a GPU: highest, high (TF32) or medium.
        compile: whether the network goes through torch.compile.
        deterministic: on a GPU, use no kernel whose sums depend on chance.
    """

    device: str = "cpu"
    precision: Precision = "float32"
    matmul_precision: str = "highest"
    compile: bool = False
    deterministic: bool = True

    def settings(self) -> dict[str, object]:
        """What a job must remember of it."""
        return {
            "device": self.device,
            "precision": self.precision,
            "matmul_precision": self.matmul_precision,
            "compile": self.compile,
            "deterministic": self.deterministic,
        }

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Torch's switches of the process as this says; afterwards as they were."""
        matmul, tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        deterministic, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.backends.cudnn.allow_tf32 = self.matmul_precision != "highest"
        torch.use_deterministic_algorithms(self.deterministic and self.device != "cpu")  # those on a CPU are, and it fills memory
        torch.backends.cudnn.benchmark = not self.deterministic
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(matmul)
            torch.backends.cudnn.allow_tf32 = tf32
            torch.use_deterministic_algorithms(deterministic)
            torch.backends.cudnn.benchmark = benchmark


@dataclass(frozen=True)
class Drawing:
    """A network and section `sample` of its spec, as the person who draws wants it.

    Attributes:
        source: the weights; its spec is the wanted one.
    """

    source: Source
    arithmetic: Arithmetic = Arithmetic()

    @property
    def spec(self) -> JobSpec:
        """With the wanted section `sample`."""
        return self.source.spec

    @property
    def enlarges(self) -> bool:
        """Whether the network needs small pictures."""
        return self.spec.model.kind == "superres"

    def settings(self) -> dict[str, object]:
        """What a job must remember of it."""
        sample = self.spec.sample
        return {**self.source.settings(), **{name: getattr(sample, name) for name in WAY}, **self.arithmetic.settings()}

    def open(self) -> "Drawer":
        """The network, loaded and ready.

        Raises:
            UserError: the weights cannot be had.
        """
        return Drawer(self)


def make_drawing(source: Source, *, arithmetic: Arithmetic, **wanted: object) -> Drawing:
    """A drawing whose section `sample` is the run's own but for what is wanted otherwise, and for the average, of a file: it holds one set.

    Args:
        wanted: fields of section `sample`.

    Raises:
        SpecError: what is wanted does not go together with the network; names the field and what would do.
    """
    mapping = to_mapping(source.spec)
    if source.step is None:
        mapping["sample"]["ema"] = None
    mapping["sample"] |= {name: as_plain(value) for name, value in wanted.items()}
    spec = load_mapping(mapping)
    drawing = Drawing(Source(source.url, source.name, source.digest, source.step, spec, source.classes), arithmetic)
    check_average(drawing.source, spec.sample.ema)
    return drawing


class Drawer:
    """An opened drawing: from indices to pictures."""

    def __init__(self, drawing: Drawing) -> None:
        spec, self._arithmetic = drawing.spec, drawing.arithmetic
        self._device = torch.device(drawing.arithmetic.device)
        network: nn.Module = open_trained(drawing.source, ema=spec.sample.ema, device=self._device).network
        if drawing.arithmetic.compile:
            network.compile()
        self._network = under_autocast(network, AUTOCAST[drawing.arithmetic.precision], self._device)
        self._diffusion: GaussianDiffusion = build.diffusion(spec.diffusion, respacing=spec.sample.respacing).to(self._device)
        noise = build.condition_noise(spec)
        self._noise = None if noise is None else noise.to(self._device)
        self._way = build.way(spec, num_classes=drawing.source.num_classes)
        self._level, self._shape, self._labelled = spec.sample.low_res_noise, spec.picture_shape(), spec.model.class_cond

    def draw(self, indices: Tensor, *, seed: int, labels: Tensor | None = None, low_res: Tensor | None = None) -> Tensor:
        """The pictures of the given indices; bit for bit the same for as many of them at once.

        Args:
            indices: int64 [N].
            labels: int64 [N] for a class-conditional network; any other ignores them.
            low_res: uint8 [N, C, h, w] for a network that enlarges.

        Returns:
            [N, C, H, W] uint8 on the CPU.
        """
        indices = indices.to(self._device)
        cond: dict[str, Tensor] = {}
        if self._labelled:
            assert labels is not None, "refused when the job was made"
            cond["y"] = labels.to(self._device)
        if low_res is not None:
            small = to_float(low_res.to(self._device))
            cond |= drawing_condition(small, augment=self._noise, level=self._level, seed=seed, indices=indices)
        with self._arithmetic.applied():
            pictures = draw_pictures(
                self._diffusion, self._network, indices=indices, shape=self._shape, seed=seed, cond=cond, way=self._way
            )
        return pictures.cpu()
