"""Builds the state of a run on one rank, in the order that makes a restart bitwise: wrap, settle, then load."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from iddpm_ray import build
from iddpm_ray.data.order import slice_of
from iddpm_ray.models.weights import init_weights
from iddpm_ray.parallel.gather import SampleGather
from iddpm_ray.parallel.replicas import replicate, settle
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.clock import Clock
from iddpm_ray.train.conditions import conditions, device_model
from iddpm_ray.train.ema import Ema
from iddpm_ray.train.inputs import Augmentation
from iddpm_ray.train.optim import LearningRate, LossScale, make_adamw
from iddpm_ray.train.probe import Microbatch, find_microbatch
from iddpm_ray.train.rehearsal import Rehearsal
from iddpm_ray.train.session import Session
from iddpm_ray.train.sources import Sources
from iddpm_ray.train.state import Health, TrainState
from iddpm_ray.train.step import StepSettings

AUTOCAST = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Kit:
    """A run's parts on one rank: the state, and the settled values that the loop hands to functions.

    Attributes:
        own: this rank's place in every global batch.
        counts: samples of every rank's slice.
        num_classes: rows of the label map that the network knows; None without labels.
    """

    state: TrainState
    clock: Clock
    own: slice
    counts: tuple[int, ...]
    num_classes: int | None
    augmentation: Augmentation
    learning_rate: LearningRate
    step_settings: StepSettings
    microbatch: Microbatch
    conditions: dict[str, str]


def make(
    spec: JobSpec,
    session: Session,
    *,
    sources: Sources,
    known_microbatch: Callable[[str, int], int | None],
    phase: Callable[[str], None] = lambda name: None,
) -> Kit:
    """Everything before the checkpoint is read: network, optimiser, averages, resampler, data parallelism settled.

    Args:
        known_microbatch: given device and slice, what an earlier attempt found on them; asked for `microbatch: auto` alone.
        phase: told the name of each part of the start, and of every step, as it begins.
    """
    _set_precision(spec)
    device, global_batch = session.device, spec.train.global_batch
    slices = [slice_of(global_batch, rank=rank, world_size=session.world_size) for rank in range(session.world_size)]
    counts = tuple(piece.stop - piece.start for piece in slices)
    num_classes = (spec.model.num_classes or len(sources.classes)) if spec.model.class_cond else None
    network = _network(spec, num_classes=num_classes, device=device)
    diffusion = build.diffusion(spec.diffusion).to(device)
    augmentation = _augmentation(spec, num_classes=num_classes, device=device)
    autocast = AUTOCAST[spec.optim.precision]
    rehearsal = Rehearsal(diffusion, spec.picture_shape(), augmentation, autocast, device)
    parameters = list(network.parameters())
    optimizer = make_adamw(parameters, betas=spec.optim.betas, eps=spec.optim.adam_eps)
    ema = Ema.begin(parameters, spec.optim.ema_rates)

    def probe(samples: int) -> None:
        rehearsal.alone(network, samples=samples)
        ema.update(torch.ones((), device=device))  # changes nothing, and takes the memory that it takes in a step

    phase("compile")
    known = known_microbatch(device_model(device), max(counts)) if spec.optim.microbatch == "auto" else None
    microbatch = find_microbatch(
        spec.optim.microbatch,
        count=max(counts),
        known=known,
        attempt=probe,
        device=device,
    )
    network.zero_grad(set_to_none=True)
    if spec.optim.compile and microbatch.origin == "probed":
        torch.compiler.reset()  # the run compiles as one that knew its microbatch does
    settings = StepSettings(
        microbatch=microbatch.samples,
        weight_decay=spec.optim.weight_decay,
        clip_norm=spec.optim.clip_norm,
        autocast=autocast,
        dropout=spec.model.dropout > 0,
        seed=spec.run.seed,
        rank=session.rank,
        world_size=session.world_size,
        phase=phase,
    )
    replica = replicate(network, device=device)
    settle(replica, lambda: rehearsal.backward(replica, samples=min(microbatch.samples, counts[session.rank])))
    phase("build")
    kl = spec.diffusion.loss in ("kl", "rescaled_kl")
    learned = spec.diffusion.variance in ("learned", "learned_range")
    state = TrainState(
        model=network,
        replica=replica,
        diffusion=diffusion,
        optimizer=optimizer,
        ema=ema,
        resampler=build.resampler(spec.resampler, num_timesteps=diffusion.num_timesteps, device=device),
        scale=LossScale.begin(enabled=spec.optim.precision == "fp16", growth=spec.optim.fp16_scale_growth, device=device),
        health=Health.begin(diffusion.num_timesteps, device=device),
        gather=SampleGather(counts, rank=session.rank, num_values=1 if kl else 3 if learned else 2, device=device),
        names=[name for name, _ in network.named_parameters()],
    )
    return Kit(
        state=state,
        clock=_clock(spec, sources),
        own=slices[session.rank],
        counts=counts,
        num_classes=num_classes,
        augmentation=augmentation,
        learning_rate=_learning_rate(spec, num_rows=sources.num_rows),
        step_settings=settings,
        microbatch=microbatch,
        conditions=conditions(spec, world_size=session.world_size, microbatch=microbatch.samples, device=device),
    )


def _set_precision(spec: JobSpec) -> None:
    """Process-wide switches of torch that the spec names; recorded with the attempt."""
    torch.set_float32_matmul_precision(spec.optim.matmul_precision)
    torch.backends.cudnn.allow_tf32 = spec.optim.matmul_precision != "highest"
    torch.use_deterministic_algorithms(spec.optim.deterministic)
    torch.backends.cudnn.benchmark = not spec.optim.deterministic
    torch.set_num_threads(spec.cluster.threads_per_worker)


def _network(spec: JobSpec, *, num_classes: int | None, device: torch.device) -> nn.Module:
    """The network on its device; its weights are a function of the seed, made on the CPU."""
    network = build.model(spec, num_classes=num_classes)
    init_weights(network, seed=spec.run.seed)
    network.to(device)
    if spec.optim.channels_last:
        network = network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] torch's stubs lack this overload
    if spec.optim.compile:
        network.compile(dynamic=False)  # code for many sizes would depend on which sizes came first, and so on restarts
    return network.train()


def _augmentation(spec: JobSpec, *, num_classes: int | None, device: torch.device) -> Augmentation:
    noise = build.condition_noise(spec)
    return Augmentation(
        flip=spec.data.flip,
        class_dropout=spec.model.class_dropout,
        class_cond=num_classes is not None,
        null_class=num_classes,
        low_res_size=spec.low_res_height_width(),
        low_res_noise=None if noise is None else noise.to(device),
        channels_last=spec.optim.channels_last,
    )


def _learning_rate(spec: JobSpec, *, num_rows: int) -> LearningRate:
    optim, batch = spec.optim, spec.train.global_batch
    anneal = None if optim.anneal is None else optim.anneal.samples(batch, num_rows)
    return LearningRate(optim.lr, optim.schedule, warmup=optim.warmup.samples(batch, num_rows), anneal=anneal)


def _clock(spec: JobSpec, sources: Sources) -> Clock:
    return Clock(
        global_batch=spec.train.global_batch,
        rows_per_epoch=sources.num_rows,
        duration=spec.train.duration,
        row_every=spec.log.every,
        validate_every=spec.log.validate_every,
        sample_every=spec.sample.every,
        save_every=spec.checkpoint.every,
    )
