"""Everything a run is made of between two steps, and its names in a checkpoint."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from iddpm_ray.diffusion.gaussian import GaussianDiffusion
from iddpm_ray.diffusion.resample import Resampler
from iddpm_ray.parallel.gather import SampleGather
from iddpm_ray.train.ema import Ema
from iddpm_ray.train.optim import LossScale, moments


@dataclass
class Health:
    """Counts of skipped steps, on the device, read only when a row is made.

    Attributes:
        streak: int64 scalar, skipped steps in a row up to now.
        skipped: int64 scalar, skipped steps of the whole run.
        nonfinite: [T] int64, samples with a non-finite loss by timestep, since the last row.
    """

    streak: Tensor
    skipped: Tensor
    nonfinite: Tensor

    @classmethod
    def begin(cls, num_timesteps: int, *, device: torch.device) -> "Health":
        """Nothing has gone wrong yet."""
        zero = torch.zeros((), dtype=torch.int64, device=device)
        return cls(zero, zero.clone(), torch.zeros(num_timesteps, dtype=torch.int64, device=device))

    def update(self, *, skipped: Tensor, t: Tensor, losses: Tensor) -> None:
        """Books a step: whether it was skipped (float32 scalar, 1 or 0), and the losses [G] at timesteps [G]."""
        self.streak = torch.where(skipped > 0, self.streak + 1, 0)
        self.skipped = self.skipped + skipped.long()
        self.nonfinite.index_add_(0, t, (~torch.isfinite(losses)).long())


@dataclass
class TrainState:
    """The whole state of training on one rank.

    Attributes:
        model: the network itself; `replica` is what a step calls (the network, or its data-parallel wrapper).
        step: updates completed.
    """

    model: nn.Module
    replica: nn.Module
    diffusion: GaussianDiffusion
    optimizer: torch.optim.AdamW
    ema: Ema
    resampler: Resampler
    scale: LossScale
    health: Health
    gather: SampleGather
    names: list[str] = field(default_factory=list)
    step: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that a checkpoint keeps, by name; views of the live ones, to be copied or loaded in place."""
        named = dict(self.model.named_parameters())
        out: dict[str, Tensor] = {f"model.{name}": parameter.data for name, parameter in named.items()}
        out |= {f"model.{name}": buffer for name, buffer in self.model.named_buffers()}
        for rate, averages in self.ema.averages.items():
            out |= {f"ema.{rate}.{name}": average for name, average in zip(self.names, averages, strict=True)}
        out |= {f"optimizer.{key}": tensor for key, tensor in moments(self.optimizer, self.names).items()}
        out |= {f"resampler.{key}": tensor for key, tensor in self.resampler.state_dict().items()}
        if self.scale.log2 is not None:
            out["loss_scale.log2"] = self.scale.log2
        out["health.streak"], out["health.skipped"], out["health.nonfinite"] = (
            self.health.streak,
            self.health.skipped,
            self.health.nonfinite,
        )
        return out

    def restore(self, tensors: dict[str, Tensor], *, step: int) -> None:
        """Puts back what `tensors` gave, copied into place."""
        live = self.tensors()
        with torch.no_grad():
            for name, tensor in live.items():
                if not name.startswith("resampler."):
                    tensor.copy_(tensors[name])
        prefix = "resampler."
        self.resampler.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)})
        self.step = step
