"""The whole bound of pictures: ours against a plain rendering of the original's loop; and what an estimate costs."""

import torch
from bench_sample import network_of
from cases import DIGITS
from our_step import bench_spec
from plain_sample import PlainProcess, bits
from timing import Comparison, Effort, compare

from iddpm_ray import build
from iddpm_ray.evaluate.nll import Pictures, drawn_terms, seeded_noise, whole_bound
from iddpm_ray.evaluate.strata import make_strata

STRATA = 8


def results(effort: Effort) -> list[Comparison]:
    """Seconds a batch."""
    process = {"timesteps": effort.of(100, quick=4), "rescale_timesteps": True}
    spec = bench_spec(size=16, channels=1, batch=32, sections={**DIGITS, "diffusion": process})
    network = network_of(spec).network()
    diffusion = build.diffusion(spec.diffusion)
    count, timesteps = (4 if effort.quick else 32), spec.diffusion.timesteps
    labels, generator = torch.arange(count) % 10, torch.Generator().manual_seed(0)
    x_start = torch.randint(0, 256, (count, *spec.picture_shape()), generator=generator) / 127.5 - 1
    pictures = Pictures(x_start, torch.arange(count), {"y": labels})
    plain = PlainProcess.cosine(timesteps, kept=list(range(timesteps)))
    noise = seeded_noise(pictures, num_timesteps=timesteps, seed=0)
    strata = make_strata(timesteps, count=min(STRATA, timesteps))
    name = f"bound, digits, 16 px, 0.9 M parameters, {count} pictures, {timesteps} timesteps"
    whole = compare(
        name,
        lambda: whole_bound(diffusion, network, pictures, noise=noise),
        lambda: bits(plain, network, x_start, labels, noise=lambda done: torch.randn_like(x_start)),
        ours_label="whole bound",
        peer_label="plain loop, as the original",
        at_most=1.0,
        note="ours draws every noise by picture and timestep, the peer takes torch's generator",
        repeats=effort.of(7),
    )
    estimate = compare(
        name,
        lambda: drawn_terms(diffusion, network, pictures, strata=strata, seed=0, batch=count),
        lambda: whole_bound(diffusion, network, pictures, noise=noise),
        ours_label=f"estimate, {len(strata)} strata",
        peer_label="whole bound",
        note=f"{2 * len(strata)} of {timesteps} timesteps a picture; of a process of 1000 the whole bound costs ten times as much",
        repeats=effort.of(7),
    )
    return [whole, estimate]
