"""Draws pictures from a run: picture i is a function of (seed, i) alone, whatever is drawn beside it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from iddpm_ray import build
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.commit import Checkpoint, read_file
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.marker import Marker
from iddpm_ray.diffusion.guidance import guided
from iddpm_ray.diffusion.sample import to_bytes
from iddpm_ray.diffusion.seeded import draw_pictures
from iddpm_ray.errors import CheckpointError, SpecError
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text
from iddpm_ray.train.directory import SPEC_FILE, read_classes


@dataclass(frozen=True)
class Trained:
    """A network out of a checkpoint, ready to draw, with the spec and label map that lay beside it."""

    spec: JobSpec
    network: nn.Module
    classes: tuple[str, ...]
    step: int


def load_trained(run_url: str, *, ema: float | None) -> Trained:
    """The newest readable checkpoint of a run.

    Args:
        ema: which average to take; None for the raw weights.

    Raises:
        CheckpointError: there is none, or none that can be read.
        SpecError: the run keeps no such average.
    """
    choice = newest_readable(run_url)
    if choice.checkpoint is None or choice.marker is None:
        raise CheckpointError("the run has no complete checkpoint", value=run_url, fix="train it for longer than checkpoint.every")
    return _load(choice.checkpoint, choice.marker, ema=ema)


def sample_run(
    run_url: str,
    *,
    count: int,
    labels: Tensor | None = None,
    ema: float | None = None,
    method: Literal["ddpm", "ddim"] = "ddpm",
    respacing: str = "",
    eta: float = 0.0,
    guidance: float = 1.0,
    seed: int = 0,
    batch: int = 64,
) -> Tensor:
    """Draws pictures 0 .. count - 1 of a run's newest checkpoint.

    Args:
        labels: [count] int64 class of each picture, for a class-conditional network.
        ema, method, respacing, eta, guidance: as in the spec's section `sample`.
        batch: pictures drawn together.

    Returns:
        [count, C, H, W] uint8.

    Raises:
        SpecError: labels or guidance that the network was not trained for.
    """
    trained = load_trained(run_url, ema=ema)
    if trained.spec.model.class_cond and labels is None:
        raise SpecError("the run's network is class-conditional", fix="say which classes to draw")
    diffusion = build.diffusion(trained.spec.diffusion, respacing=respacing)
    network = _leaning(trained, guidance)
    pieces = []
    for begin in range(0, count, batch):
        indices = torch.arange(begin, min(begin + batch, count))
        cond = {"y": labels[indices]} if labels is not None and trained.spec.model.class_cond else {}
        shape = trained.spec.picture_shape()
        pictures = draw_pictures(diffusion, network, indices=indices, shape=shape, seed=seed, cond=cond, method=method, eta=eta)
        pieces.append(to_bytes(pictures))
    return torch.cat(pieces)


def _leaning(trained: Trained, guidance: float) -> Callable[..., Tensor]:
    """The network, leaning towards its labels if asked to."""
    if guidance == 1.0:
        return trained.network
    model = trained.spec.model
    if model.class_dropout == 0:
        raise SpecError("guidance needs a network that was trained with dropped labels", value=guidance, fix="guidance 1 is none")
    null_class = model.num_classes or len(trained.classes)
    return guided(trained.network, scale=guidance, null_class=null_class, channels=trained.spec.picture_shape()[0])


def _load(checkpoint: Checkpoint, marker: Marker, *, ema: float | None) -> Trained:
    spec = load_text(read_file(checkpoint, SPEC_FILE, marker=marker).decode())
    if ema is not None and ema not in spec.optim.ema_rates:
        raise SpecError(
            "the run keeps no such average of its weights", value=ema, fix=f"choose one of {list(spec.optim.ema_rates)}, or none"
        )
    classes = read_classes(checkpoint, marker)
    num_classes = (spec.model.num_classes or len(classes)) if spec.model.class_cond else None
    network = build.model(spec, num_classes=num_classes)
    prefix = "model." if ema is None else f"ema.{ema}."
    load(
        checkpoint, into={prefix + name: parameter.data for name, parameter in network.named_parameters()}, ignore_extra=True, marker=marker
    )
    return Trained(spec, network.eval(), classes, checkpoint.step)
