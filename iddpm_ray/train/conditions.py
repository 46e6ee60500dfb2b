"""What exactness depends on: recorded with every attempt, compared at a restart, and said in one line when it differs."""

import hashlib
import platform
from collections.abc import Mapping

import numpy as np
import PIL
import torch
from torch.cuda import nccl

import iddpm_ray
from iddpm_ray.parallel.collective import all_gather_rows
from iddpm_ray.spec.spec import JobSpec


def conditions(spec: JobSpec, *, world_size: int, microbatch: int, device: torch.device) -> dict[str, str]:
    """Topology, device, versions, threads, microbatch and precision flags, as text. A collective where ranks have GPUs."""
    return {
        "workers": str(world_size),
        **(_of_gpus(platform.node(), device=device) if device.type == "cuda" else {}),
        "device": device_model(device),
        "threads a worker": str(torch.get_num_threads()),
        "microbatch": str(microbatch),
        **arithmetic(spec),
        "iddpm_ray": iddpm_ray.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "python": platform.python_version(),
    }


def _of_gpus(host: str, *, device: torch.device) -> dict[str, str]:
    """Which ranks share a machine, which decides in what order NCCL adds, and the versions of what computes. A collective."""
    return {
        "machine of each rank": machines(host, device=device),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "nccl": ".".join(str(number) for number in nccl.version()),
    }


def machines(host: str, *, device: torch.device) -> str:
    """The machine of every rank in rank order, numbered as they first appear: `0 0 1 1`. A collective.

    Args:
        host: this rank's name of its machine.
    """
    own = int.from_bytes(hashlib.sha256(host.encode()).digest()[:8], "big", signed=True)
    of_ranks = all_gather_rows(torch.tensor(own, device=device)).tolist()
    numbers = {machine: number for number, machine in enumerate(dict.fromkeys(of_ranks))}
    return " ".join(str(numbers[machine]) for machine in of_ranks)


def arithmetic(spec: JobSpec) -> dict[str, str]:
    """Which kernels the spec asks for, as text; how much memory a microbatch takes depends on it too."""
    return {
        "precision": f"{spec.optim.precision}, matmul {spec.optim.matmul_precision}",
        "compile": str(spec.optim.compile),
        "channels_last": str(spec.optim.channels_last),
        "attention": spec.model.attention,
        "gradient checkpointing": str(spec.model.gradient_checkpointing),
        "deterministic": str(spec.optim.deterministic),
    }


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What both know and say differently, with both values."""
    return [f"{name} {before[name]} -> {now[name]}" for name in now if name in before and before[name] != now[name]]


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """One line naming what changed, or None when the run goes on bit for bit."""
    differences = differing(before, now)
    return f"from here on equal to float tolerance, no longer bit for bit: {'; '.join(differences)}" if differences else None


def device_model(device: torch.device) -> str:
    """The GPU's name, or the processor's instruction set as torch uses it; kernels, and so bits, depend on it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
