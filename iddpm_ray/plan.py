"""What a run will be, before anything is rented: its network, its cost, its data, and what it would go on from."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from iddpm_ray import build, storage
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.models.flops import forward_flops
from iddpm_ray.spec.spec import JobSpec

# A backward pass costs about twice its forward pass.
FORWARDS_A_STEP = 3


@dataclass(frozen=True)
class Cost:
    """What a spec costs, from shapes alone.

    Attributes:
        parameters: numbers in the network.
        forward_flop: floating-point operations of one picture's forward pass.
        state_bytes: weights, gradients, two moments and every average, on each worker.
        activation_bytes: kept for one picture's backward pass.
        checkpoint_bytes: one checkpoint on storage.
    """

    parameters: int
    forward_flop: int
    state_bytes: int
    activation_bytes: int
    checkpoint_bytes: int


@dataclass(frozen=True)
class Plan:
    """What a start would do.

    Attributes:
        cost: of the network.
        samples_a_worker: the largest slice of a global batch.
        microbatch: samples a backward pass; None where it is found at start.
        steps: of the whole run; None when it ends by the wall clock.
        epochs: of the whole run; None likewise.
        begins: what the run would begin from, in words.
    """

    spec: JobSpec
    manifest: Manifest
    cost: Cost
    samples_a_worker: int
    microbatch: int | None
    steps: int | None
    epochs: float | None
    begins: str

    def describe(self) -> str:
        """The plan as lines for a person."""
        cost, rows = self.cost, len(self.manifest.training_rows)
        low, high = self.spec.cluster.worker_range()
        held = len(self.manifest.validation_rows)
        classes = f", {len(self.manifest.classes)} classes" if self.manifest.classes else ""
        step_flop = FORWARDS_A_STEP * cost.forward_flop * self.spec.train.global_batch
        samples = self.microbatch or self.samples_a_worker
        memory = cost.state_bytes + samples * cost.activation_bytes
        length = "until the wall clock says stop" if self.steps is None else f"{self.steps:,} steps, {self.epochs:,.2f} epochs"
        workers = str(low) if low == high else f"{low} to {high}"
        keep = self.spec.checkpoint
        every = f" and one every {keep.keep_every}" if keep.keep_every else ""
        pieces = f"{self.microbatch} a backward pass" if self.microbatch else "microbatch found at start"
        lines = {
            "run": storage.shown(storage.join(self.spec.run.output_dir, self.spec.run.name)),
            "begins": self.begins,
            "data": f"{rows:,} training rows, {held:,} held out{classes}",
            "length": length,
            "network": f"{cost.parameters:,} parameters",
            "compute": f"{_scaled(cost.forward_flop, 'FLOP')} a picture forward, {_scaled(step_flop, 'FLOP')} a step",
            "workers": f"{workers}, at most {self.samples_a_worker} samples of each step a worker, {pieces}",
            "memory": f"about {_bytes(memory)} a worker: {_bytes(cost.state_bytes)} weights, gradients, moments, averages; "
            f"{_bytes(cost.activation_bytes)} activations a picture x {samples}" + ("" if self.microbatch else ", or less"),
            "checkpoint": f"{_bytes(cost.checkpoint_bytes)} each, every {keep.every}, newest {keep.keep_last} kept{every}",
        }
        price = self.spec.cluster.price_per_worker_hour
        if price is not None:
            lines["price"] = f"{price:,.4g} an hour for a worker, {high * price:,.4g} an hour for {high}"
        return "\n".join(f"{name:<12}{text}" for name, text in lines.items())


def make_plan(spec: JobSpec, manifest: Manifest, *, begins: str) -> Plan:
    """Works everything out; pure.

    Args:
        manifest: the data set.
        begins: what the run would begin from, in words.
    """
    batch, rows = spec.train.global_batch, len(manifest.training_rows)
    num_classes = (spec.model.num_classes or len(manifest.classes)) if spec.model.class_cond else None
    timed = spec.train.duration.unit == "minutes"
    samples = None if timed else spec.train.duration.samples(batch, rows)
    steps = None if samples is None else math.ceil(samples / batch)
    share = math.ceil(batch / spec.cluster.worker_range()[0])
    wanted = spec.optim.microbatch
    return Plan(
        spec=spec,
        manifest=manifest,
        cost=cost(spec, num_classes=num_classes),
        samples_a_worker=share,
        microbatch=share if wanted is None else min(wanted, share) if isinstance(wanted, int) else None,
        steps=steps,
        epochs=None if steps is None else steps * batch / rows,
        begins=begins,
    )


def _bytes(count: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count / 2**10:.3g} KiB"


def _scaled(count: int, unit: str) -> str:
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if count >= factor:
            return f"{count / factor:.3g} {prefix}{unit}"
    return f"{count} {unit}"


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


def _activation_bytes(spec: JobSpec, network: nn.Module, *, num_classes: int | None) -> int:
    """Bytes that autograd keeps for one picture, counted on the meta device; parameters are not among them."""
    kept: dict[int, int] = {}
    own = {id(parameter) for parameter in network.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        if id(tensor) not in own and not isinstance(tensor, nn.Parameter):
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
        if spec.model.low_res_noise:
            cond["low_res_level"] = torch.zeros(1)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            network(x, t, **cond)
    return sum(kept.values())
