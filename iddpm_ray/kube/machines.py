"""Google's machine types as far as a run needs them: CPUs, memory, GPUs, and what of them a pod may have.

Sources: cloud.google.com/compute/docs/gpus and /general-purpose-machines (types),
cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes (what the kubelet keeps for itself),
NVIDIA's data sheets (peak rates without sparsity).
"""

from dataclasses import dataclass

GIB = 2**30
# Agents of logging, metrics, network and the GPU driver on each machine.
_DAEMONS_CPU, _DAEMONS_GIB = 0.6, 0.6


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: as Ray detects it.
        label: value of the node label cloud.google.com/gke-accelerator.
        memory_gib: of the device.
        fp32, tf32, bf16: peak rate of dense matrix products, in TFLOP/s.
    """

    name: str
    label: str
    memory_gib: float
    fp32: float
    tf32: float
    bf16: float


@dataclass(frozen=True)
class Machine:
    """One machine type; `gpu` is None where `gpus` is 0."""

    name: str
    cpus: int
    memory_gib: float
    gpus: int = 0
    gpu: Gpu | None = None

    @property
    def pod_cpus(self) -> int:
        """Whole CPUs that one pod can have on this machine, beside the kubelet and the agents."""
        kept = 0.06 + 0.01 * (self.cpus > 1) + 0.005 * min(max(self.cpus - 2, 0), 2) + 0.0025 * max(self.cpus - 4, 0)
        return int(self.cpus - kept - _DAEMONS_CPU)

    @property
    def pod_gib(self) -> int:
        """Whole GiB that one pod can have on this machine."""
        kept, left = 0.0, self.memory_gib
        for span, share in ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (float("inf"), 0.02)):
            kept += min(left, span) * share
            left = max(left - span, 0.0)
        return int(self.memory_gib - kept - 0.1 - _DAEMONS_GIB)


L4 = Gpu("L4", "nvidia-l4", 24, 30, 60, 121)
A100_40 = Gpu("A100", "nvidia-tesla-a100", 40, 19.5, 156, 312)
A100_80 = Gpu("A100", "nvidia-a100-80gb", 80, 19.5, 156, 312)
H100 = Gpu("H100", "nvidia-h100-80gb", 80, 67, 494, 989)

MACHINES = {
    machine.name: machine
    for machine in (
        Machine("e2-standard-4", 4, 16),
        Machine("e2-standard-8", 8, 32),
        Machine("g2-standard-4", 4, 16, 1, L4),
        Machine("g2-standard-8", 8, 32, 1, L4),
        Machine("g2-standard-12", 12, 48, 1, L4),
        Machine("g2-standard-16", 16, 64, 1, L4),
        Machine("g2-standard-24", 24, 96, 2, L4),
        Machine("g2-standard-48", 48, 192, 4, L4),
        Machine("g2-standard-96", 96, 384, 8, L4),
        *(Machine(f"a2-highgpu-{n}g", 12 * n, 85 * n, n, A100_40) for n in (1, 2, 4, 8)),
        *(Machine(f"a2-ultragpu-{n}g", 12 * n, 170 * n, n, A100_80) for n in (1, 2, 4, 8)),
        *(Machine(f"a3-highgpu-{n}g", 26 * n, 234 * n, n, H100) for n in (1, 2, 4, 8)),
    )
}
"""By name."""
