"""An actor in the place of each rank, with what a rank would have: its device, the link to the others, its pace, its upload."""

import socket
import time
from datetime import timedelta

import ray
import torch
import torch.distributed as dist

from iddpm_ray.runtime.look import upload
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.pace import seconds_a_picture

REDUCED_BYTES = 64 * 2**20
REPEATS = 3
LINK_S = 120


class Seat:
    """Asked by preflight; every answer is measured."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.device = torch.device("cuda" if spec.cluster.gpus_per_worker and torch.cuda.is_available() else "cpu")

    def node(self) -> str:
        """The machine it is on."""
        return ray.get_runtime_context().get_node_id()

    def gpu(self) -> str | None:
        """Name of the GPU that it can use; None if it sees none."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None

    def address(self) -> str:
        """Where the others can meet this one."""
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        return f"tcp://{ray.util.get_node_ip_address()}:{port}"

    def reduce(self, *, rank: int, world_size: int, address: str) -> float:
        """Seconds of an all-reduce of 64 MB, the best of three, as the ranks' gradients would travel."""
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=address, rank=rank, world_size=world_size, timeout=timedelta(seconds=LINK_S))
        try:
            numbers, best = torch.ones(REDUCED_BYTES // 4, device=self.device), float("inf")
            for _ in range(REPEATS + 1):  # the first makes the connections
                numbers.fill_(1)
                began = time.perf_counter()
                dist.all_reduce(numbers)
                wrong = bool((numbers != world_size).any().item())  # waits for the device
                best = min(best, time.perf_counter() - began)
                if wrong:
                    raise RuntimeError(f"the sum of {world_size} ones came out wrong on rank {rank}")
            return best
        finally:
            dist.destroy_process_group()

    def pace(self, *, num_classes: int | None, samples: int) -> float:
        """Seconds of forward and backward for a picture."""
        return seconds_a_picture(self.spec, num_classes=num_classes, device=self.device, samples=samples)

    def upload(self, url: str, *, num_bytes: int) -> float:
        """Seconds of an upload."""
        return upload(url, num_bytes=num_bytes)
