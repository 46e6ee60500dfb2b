"""AdamW as a function of gradients already summed over ranks: learning rate, clipping, loss scale, and the skipped step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class LearningRate:
    """Learning rate over samples seen; `anneal` and `warmup` are in samples."""

    base: float
    schedule: Literal["constant", "linear", "cosine"]
    warmup: int = 0
    anneal: int | None = None

    def at(self, *, before: int, after: int) -> float:
        """The rate of the step that takes the run from `before` to `after` samples seen.

        Annealing looks at `before` (the first step has the full rate, as in Improved DDPM's trainer), warm-up at `after`
        (the first step is not idle).
        """
        rate = self.base
        if self.schedule != "constant":
            assert self.anneal is not None
            left = max(0.0, 1.0 - before / self.anneal)
            rate *= left if self.schedule == "linear" else 0.5 * (1.0 - math.cos(math.pi * left))
        if after < self.warmup:
            rate *= after / self.warmup
        return rate


@dataclass
class LossScale:
    """Dynamic loss scale for float16 gradients: up by `growth` in log2 after a good step, down by one after an overflow.

    Attributes:
        log2: float64 scalar on the device; None where gradients need no scale (float32, bfloat16).
    """

    log2: Tensor | None
    growth: float = 0.001

    @classmethod
    def begin(cls, *, enabled: bool, growth: float, device: torch.device) -> "LossScale":
        """The scale of a fresh run, 2**20, or none at all."""
        return cls(torch.full((), 20.0, dtype=torch.float64, device=device) if enabled else None, growth)

    def factor(self) -> Tensor | None:
        """What the loss is multiplied by, a float32 scalar."""
        return None if self.log2 is None else torch.exp2(self.log2).float()

    def update(self, skipped: Tensor) -> None:
        """Moves the scale after a step; `skipped` is 1 where the gradients were not finite, else 0."""
        if self.log2 is not None:
            self.log2 = torch.where(skipped > 0, self.log2 - 1.0, self.log2 + self.growth)


@dataclass(frozen=True)
class Update:
    """What one optimiser step did, as float32 scalars on the device.

    Attributes:
        grad_norm: L2 norm of the whole gradient before clipping.
        skipped: 1 if the gradient was not finite and nothing was changed, else 0.
    """

    grad_norm: Tensor
    skipped: Tensor


def make_adamw(parameters: Sequence[Tensor], *, betas: tuple[float, float], eps: float) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov and Hutter 2019) whose moments exist from the start, so that saving and loading never differ."""
    optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=betas, eps=eps, weight_decay=0.0, fused=True)
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
    return optimizer


def apply_update(
    optimizer: torch.optim.AdamW, *, lr: float, weight_decay: float, clip_norm: float | None = None, scale: LossScale | None = None
) -> Update:
    """One AdamW step on the gradients in `.grad`, skipped on the device when any of them is not finite.

    With data parallelism every rank holds the same averaged gradient, so all of them skip or none does.
    """
    group = optimizer.param_groups[0]
    gradients = [parameter.grad for parameter in group["params"] if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    factor = scale.factor() if scale is not None else None
    if factor is not None:
        norm = norm / factor
    shrink = None if factor is None else factor.reciprocal()
    if clip_norm is not None:
        clip = (clip_norm / (norm + 1e-6)).clamp(max=1.0)
        shrink = clip if shrink is None else shrink * clip
    if shrink is not None:
        torch._foreach_mul_(gradients, shrink)  # pyright: ignore[reportPrivateImportUsage] torch's own optimisers' interface
    skipped = (~torch.isfinite(norm)).float()
    group["lr"], group["weight_decay"] = lr, weight_decay
    optimizer.found_inf = skipped  # pyright: ignore[reportAttributeAccessIssue] as torch's GradScaler hands it over
    optimizer.step()
    if scale is not None:
        scale.update(skipped)
    return Update(grad_norm=norm, skipped=skipped)


def moments(optimizer: torch.optim.AdamW, names: Sequence[str]) -> dict[str, Tensor]:
    """The optimiser's tensors by parameter name, as a checkpoint keeps them: `{name}.step`, `.exp_avg`, `.exp_avg_sq`."""
    states: Sequence[Mapping[str, Tensor]] = [optimizer.state[parameter] for parameter in optimizer.param_groups[0]["params"]]
    return {f"{name}.{key}": state[key] for name, state in zip(names, states, strict=True) for key in ("step", "exp_avg", "exp_avg_sq")}
