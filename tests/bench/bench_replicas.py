"""How replicas are kept equal: ours against the other ways, on two gloo ranks of one thread each."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cases import Case, on_cpu
from timing import Comparison, Effort, by_turns, timed
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_with_fsdp
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from iddpm_ray import build
from iddpm_ray.models.unet import UNet
from iddpm_ray.models.weights import init_weights
from iddpm_ray.parallel.replicas import replicate, settle
from iddpm_ray.train.inputs import Augmentation
from iddpm_ray.train.rehearsal import Rehearsal

WORLD_SIZE = 2
OURS = "DDP, two throw-away iterations"
# Whether a step after a restart adds up in the order of the undisturbed run, whatever the number of ranks.
BITWISE = {
    OURS: "yes",
    "DDP as it is": "no, from four ranks on: it regroups its buckets after the first iteration",
    "DDP find_unused_parameters": "yes",
    "FSDP2 fully_shard": "yes",
    "FSDP2 replicate": "yes",
    "all-reduce after backward": "yes",
}


def results(effort: Effort) -> list[Comparison]:
    """For each network ours against every other way: forward, backward and exchange, without the update."""
    found: list[Comparison] = []
    for number, case in enumerate(on_cpu(effort)):
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            mp.spawn(_rank, args=(Path(name), number, effort), nprocs=WORLD_SIZE)
            times = json.loads((Path(name) / "times.json").read_text())
        found += [
            Comparison(
                f"replicas, {case.name}",
                tuple(times[OURS]),
                tuple(times[way]),
                ours_label=OURS,
                peer_label=way,
                note=f"{way}: bitwise after a restart: {bitwise}",
            )
            for way, bitwise in BITWISE.items()
            if way != OURS
        ]
    return found


def _rank(rank: int, folder: Path, number: int, effort: Effort) -> None:
    """One rank of one case; rank 0 leaves its times."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD_SIZE)
    case = on_cpu(effort)[number]
    ways = {name: _way(name, case) for name in BITWISE}
    for iterate in ways.values():
        iterate()
    times = by_turns(
        {name: lambda iterate=iterate: timed(iterate, calls=case.calls, sync=dist.barrier) for name, iterate in ways.items()},
        repeats=effort.of(9 if case.calls > 1 else 5),
    )
    if rank == 0:
        (folder / "times.json").write_text(json.dumps(times))
    dist.destroy_process_group()


def _way(name: str, case: Case) -> Callable[[], None]:
    """One iteration on this rank's half of the batch, and the gradients dropped."""
    samples = case.spec.train.global_batch // WORLD_SIZE
    network = build.model(case.spec, num_classes=10)
    init_weights(network, seed=0)
    rehearsal = Rehearsal(
        build.diffusion(case.spec.diffusion), case.spec.picture_shape(), Augmentation(class_cond=True), None, torch.device("cpu")
    )
    exchange: Callable[[nn.Module], None] = _nothing
    match name:
        case "all-reduce after backward":
            replica, exchange = network, _all_reduce
        case "DDP find_unused_parameters":
            replica = DistributedDataParallel(network, find_unused_parameters=True)
        case "DDP as it is":
            replica = DistributedDataParallel(network)
        case "FSDP2 fully_shard":
            replica = _composed(network, fully_shard)
        case "FSDP2 replicate":
            replica = _composed(network, replicate_with_fsdp)
        case _:
            replica = replicate(network, device=torch.device("cpu"))
            settle(replica, lambda: rehearsal.backward(replica, samples=samples))

    def iterate() -> None:
        rehearsal.backward(replica, samples=samples)
        exchange(network)
        replica.zero_grad(set_to_none=True)

    return iterate


def _composed(network: UNet, wrap: Callable[..., object]) -> nn.Module:
    """The blocks one by one, then what is left."""
    mesh = dist.init_device_mesh("cpu", (WORLD_SIZE,))
    for block in (*network.input_blocks, network.middle_block, *network.output_blocks):
        wrap(block, mesh=mesh)
    wrap(network, mesh=mesh)
    return network


def _nothing(network: nn.Module) -> None:
    """Backward has exchanged already."""


def _all_reduce(network: nn.Module) -> None:
    """One sum of all gradients, averaged."""
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= WORLD_SIZE
    for gradient, piece in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(piece.view_as(gradient))
