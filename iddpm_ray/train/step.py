"""One optimiser step; nothing in it waits for the device."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray.diffusion.loss import training_losses
from iddpm_ray.parallel.replicas import without_sync
from iddpm_ray.train.inputs import StepInputs
from iddpm_ray.train.optim import Update, apply_update
from iddpm_ray.train.state import TrainState


@dataclass(frozen=True)
class StepSettings:
    """What a step needs besides state and inputs.

    Attributes:
        microbatch: samples a backward on this rank.
        autocast: dtype the network computes in, or None for float32.
        dropout: whether masks are drawn, and so seeded.
        phase: told the name of each part as it begins.
    """

    microbatch: int
    weight_decay: float = 0.0
    clip_norm: float | None = None
    autocast: torch.dtype | None = None
    dropout: bool = False
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    phase: Callable[[str], None] = lambda name: None


@dataclass(frozen=True)
class StepOutcome:
    """What a step leaves on the device, equal on all ranks.

    Attributes:
        t, weights: [G] timesteps and importance weights.
        loss, mse, vb: [G] float32 per-sample terms before weighting; None where the loss has no such term.
        words: [world_size] float32, what each rank wished.
    """

    t: Tensor
    weights: Tensor
    loss: Tensor
    mse: Tensor | None
    vb: Tensor | None
    words: Tensor
    update: Update


def step(state: TrainState, inputs: StepInputs, *, lr: float, word: int, settings: StepSettings) -> StepOutcome:
    """Forward, backward, one exchange, update: the run moves from `state.step` to `state.step + 1`.

    The objective is the mean over the global batch of weight * loss, however ranks and microbatches cut it; the resampler
    learns the plain losses of the whole global batch once, in position order.
    """
    terms = _accumulate_gradients(state, inputs, settings)
    settings.phase("update")
    state.gather.start(torch.stack([value for value in terms.values() if value is not None]), float(word))
    update = apply_update(state.optimizer, lr=lr, weight_decay=settings.weight_decay, clip_norm=settings.clip_norm, scale=state.scale)
    state.optimizer.zero_grad(set_to_none=True)
    state.ema.update(update.skipped)
    gathered = state.gather.wait()
    values = dict(zip(terms, gathered.values, strict=True))
    state.resampler.update(inputs.t, values["loss"])
    state.health.update(skipped=update.skipped, t=inputs.t, losses=values["loss"])
    state.step += 1
    return StepOutcome(inputs.t, inputs.weights, values["loss"], values.get("mse"), values.get("vb"), gathered.words, update)


def _accumulate_gradients(state: TrainState, inputs: StepInputs, settings: StepSettings) -> dict[str, Tensor]:
    """Fills `.grad` with this rank's share of the gradient; returns per-sample terms [n]."""
    count = inputs.x_start.shape[0]
    global_batch = inputs.t.shape[0]
    t, weights = inputs.t[inputs.own], inputs.weights[inputs.own]
    share = settings.world_size / global_batch
    parts: list[dict[str, Tensor]] = []
    factor = state.scale.factor()
    for number, begin in enumerate(range(0, count, settings.microbatch)):
        piece = slice(begin, min(begin + settings.microbatch, count))
        if settings.dropout:
            torch.manual_seed(_dropout_seed(settings.seed, state.step, settings.rank, number))
        settings.phase("forward")
        with without_sync(state.replica, last=piece.stop == count):
            terms = training_losses(
                state.diffusion,
                under_autocast(state.replica, settings.autocast, inputs.x_start.device),
                x_start=inputs.x_start[piece],
                t=t[piece],
                noise=inputs.noise[piece],
                cond={name: value[piece] for name, value in inputs.cond.items()},
            )
            objective = (terms.loss * weights[piece]).sum() * share
            settings.phase("backward")
            (objective if factor is None else objective * factor).backward()
        parts.append({name: v.detach() for name, v in (("loss", terms.loss), ("mse", terms.mse), ("vb", terms.vb)) if v is not None})
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def under_autocast(network: Callable[..., Tensor], dtype: torch.dtype | None, device: torch.device) -> Callable[..., Tensor]:
    """The network under autocast; norms, softmax and everything outside it stay float32."""
    if dtype is None:
        return network

    def forward(x: Tensor, t: Tensor, **cond: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=dtype):
            return network(x, t, **cond)

    return forward


def _dropout_seed(seed: int, step: int, rank: int, microbatch: int) -> int:
    digest = hashlib.blake2b(f"dropout {seed} {step} {rank} {microbatch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
