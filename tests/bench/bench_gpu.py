"""On a GPU: the published networks in float32, bf16 and compiled bf16, with memory and the share of the peak that they reach."""

from typing import Any

import torch
from cases import on_gpu
from our_step import OurTrainer
from timing import Comparison, Effort, NotRun, spread, timed

from iddpm_ray import build
from iddpm_ray.models.flops import forward_flops

# Dense TFLOP/s of bf16 tensor cores by the name that torch gives the device, as its maker states them.
PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "T4": 65.0}
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {"precision": "float32"},
    "bf16": {"precision": "bf16", "channels_last": True, "deterministic": False},
    "bf16, compiled": {"precision": "bf16", "channels_last": True, "deterministic": False, "compile": True},
}


def results(effort: Effort) -> list[Comparison | NotRun]:
    """Every precision against float32 of the same network."""
    if not torch.cuda.is_available():
        names = ", ".join(PRECISIONS)
        return [NotRun(f"images/s, memory and share of the peak on a GPU ({names})", "this machine has no GPU")]
    device = torch.device("cuda")
    found: list[Comparison | NotRun] = []
    for place, base in enumerate(on_gpu()):
        with torch.device("meta"):
            flops = 3 * forward_flops(build.model(base.spec, num_classes=10), base.spec.picture_shape())
        first: tuple[float, ...] = ()
        for name, optim in PRECISIONS.items():
            case = on_gpu(optim=optim)[place]
            ours = OurTrainer(case.spec, device=device)
            pixels, labels = case.batch()
            for _ in range(3):
                ours.step(pixels, labels)
            torch.cuda.reset_peak_memory_stats()
            times = tuple(
                timed(
                    lambda ours=ours, pixels=pixels, labels=labels: ours.step(pixels, labels), calls=case.calls, sync=torch.cuda.synchronize
                )
                for _ in range(effort.of(9))
            )
            first = first or times
            rate = case.spec.train.global_batch / spread(times).median
            memory = torch.cuda.max_memory_allocated() / 2**30
            note = f"{rate:.0f} images/s, {memory:.1f} GiB, {_of_peak(flops * rate)}"
            found.append(Comparison(f"GPU step, {case.name}, {name}", times, first, name, "float32", note=note))
            del ours
            torch.cuda.empty_cache()
    return found


def _of_peak(flops: float) -> str:
    """Floating-point operations a second, counted as three forward passes, as a share of the device's peak in bf16."""
    name = torch.cuda.get_device_name()
    peak = next((peak for known, peak in PEAK_TFLOPS.items() if known in name), None)
    reached = f"{flops / 1e12:.0f} TFLOP/s"
    return reached if peak is None else f"{reached}, {100 * flops / 1e12 / peak:.0f} % of the {peak:.0f} that bf16 could reach"
