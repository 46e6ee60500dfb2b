"""One training step: ours against a plain-torch rendering of the original's."""

from collections.abc import Callable

import torch
from cases import digits, on_cpu, on_gpu
from our_step import OurTrainer
from plain_step import PlainTables, PlainTrainer
from timing import Comparison, Effort, compare

from iddpm_ray.train.inputs import to_float


def results(effort: Effort) -> list[Comparison]:
    """For each network the ratio of steps."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sync: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    out = []
    tiny = [] if effort.quick else [digits(batch=8, calls=5)]
    for case in [*tiny, *on_cpu(effort)] if device.type == "cpu" else on_gpu():
        ours = OurTrainer(case.spec, device=device)
        plain = PlainTrainer(OurTrainer(case.spec, device=device).kit.state.model, PlainTables.cosine(case.spec.diffusion.timesteps))
        pixels, labels = case.batch()
        out.append(
            compare(
                f"step, {case.name}",
                lambda ours=ours, pixels=pixels, labels=labels: ours.step(pixels, labels),
                lambda plain=plain, pixels=pixels, labels=labels: plain.step(to_float(pixels.to(device)), labels.to(device)),
                ours_label="train.step with draws and statistics",
                peer_label="plain torch, as the original",
                at_most=1.0,
                note=f"both {torch.get_num_threads()} threads; ours also draws every number by position, the peer takes torch's generator",
                calls=case.calls,
                repeats=effort.of(9 if case.calls > 1 else 5),
                sync=sync,
            )
        )
    return out
