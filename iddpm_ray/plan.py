"""What a run will be, before anything is rented: its network, its cost, its data, and what it would go on from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray import build
from iddpm_ray.models.flops import forward_flops
from iddpm_ray.spec.spec import JobSpec


@dataclass(frozen=True)
class Cost:
    """What a spec costs, from shapes alone.

    Attributes:
        parameters: numbers in the network.
        forward_flop: floating-point operations of one picture's forward pass; a training step takes three times that.
        state_bytes: weights, gradients, two moments and every average.
        activation_bytes: kept for one picture's backward pass in float32; None where it was not measured.
        checkpoint_bytes: one checkpoint on storage.
    """

    parameters: int
    forward_flop: int
    state_bytes: int
    activation_bytes: int
    checkpoint_bytes: int


def cost(spec: JobSpec, *, num_classes: int | None) -> Cost:
    """Builds the network on the meta device, which holds no numbers, and counts."""
    with torch.device("meta"):
        network = build.model(spec, num_classes=num_classes)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    averages = len(spec.optim.ema_rates)
    return Cost(
        parameters=parameters,
        forward_flop=forward_flops(network, spec.picture_shape(), low_res=spec.low_res_height_width()),
        state_bytes=4 * parameters * (4 + averages),
        activation_bytes=_activation_bytes(spec, network, num_classes=num_classes),
        checkpoint_bytes=4 * parameters * (3 + averages),
    )


def _activation_bytes(spec: JobSpec, network: torch.nn.Module, *, num_classes: int | None) -> int:
    """Bytes that autograd keeps for one picture, counted on the meta device; parameters are not among them."""
    kept: dict[int, int] = {}
    own = {id(parameter) for parameter in network.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        if id(tensor) not in own and not isinstance(tensor, torch.nn.Parameter):
            kept[id(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        return tensor

    shape = spec.picture_shape()
    with torch.device("meta"):
        x, t = torch.zeros(1, *shape), torch.zeros(1)
        cond: dict[str, Tensor] = {}
        if num_classes is not None:
            cond["y"] = torch.zeros(1, dtype=torch.int64)
        low_res = spec.low_res_height_width()
        if low_res is not None:
            cond["low_res"] = torch.zeros(1, shape[0], *low_res)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            network(x, t, **cond)
    return sum(kept.values())
