"""Initial weights as a function of a seed: equal on every machine, at every world size, whatever was drawn before."""

import hashlib
import math

import torch
from torch import Tensor, nn

from iddpm_ray.models.nn import ZeroConv1d, ZeroConv2d


def init_weights(model: nn.Module, *, seed: int) -> None:
    """Fills every parameter; each is a function of (seed, its name), made on the CPU in float32.

    Distributions are those of the original, torch's defaults: convolutions and linear layers uniform within 1 / sqrt(fan_in)
    (He et al. 2015 with a = sqrt(5)), embeddings standard normal, normalisations 1 and 0, and zero for the last layer of every
    residual and attention branch and of the network.

    Args:
        model: on any device, also fresh from `to_empty`; its own random state and torch's are left alone.
        seed: of the run.
    """
    with torch.no_grad():
        for prefix, module in model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                key = f"{prefix}.{name}" if prefix else name
                parameter.copy_(_initial(module, name, key=key, shape=parameter.shape, seed=seed))


def _initial(module: nn.Module, name: str, *, key: str, shape: torch.Size, seed: int) -> Tensor:
    values = torch.empty(shape, dtype=torch.float32, device="cpu")
    match module:
        case ZeroConv1d() | ZeroConv2d():
            return values.zero_()
        case nn.GroupNorm():
            return values.fill_(1.0 if name == "weight" else 0.0)
        case nn.Embedding():
            return values.normal_(generator=_generator(seed, key))
        case nn.Conv1d() | nn.Conv2d() | nn.Linear():
            bound = 1.0 / math.sqrt(module.weight[0].numel())
            return values.uniform_(-bound, bound, generator=_generator(seed, key))
        case _:
            raise AssertionError(f"no rule for the weights of {key} ({type(module).__name__})")


def _generator(seed: int, key: str) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed} {key}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
