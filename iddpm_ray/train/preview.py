"""What a run shows of itself while it trains: held-out loss by timestep, and a grid of pictures on fixed noise."""

import torch
from torch import Tensor

from iddpm_ray import build
from iddpm_ray.data.order import slice_of
from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.condition import drawing_condition
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.diffusion.loss import training_losses
from iddpm_ray.diffusion.seeded import draw_pictures
from iddpm_ray.parallel.collective import Group, broadcast_bytes, gather_ragged
from iddpm_ray.sinks.pictures import is_kept
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.inputs import condition, to_float
from iddpm_ray.train.session import Session
from iddpm_ray.train.setup import Kit
from iddpm_ray.train.sources import Sources
from iddpm_ray.train.step import under_autocast

# Successive multiples of this, modulo 1, fill the unit interval evenly, so neighbouring rows meet distant timesteps.
GOLDEN_RATIO = 0.6180339887498949
GRID = "samples"


def validate(spec: JobSpec, kit: Kit, session: Session, *, sources: Sources) -> dict[str, float]:
    """Loss over the held-out rows, each with one timestep and noise that never change; whole and by quartile of timestep.

    Returns:
        `val_loss`, `val_loss_q0` .. `_q3`, equal on all ranks and at any world size up to float tolerance.
    """
    state, device = kit.state, session.device
    num_timesteps = state.diffusion.num_timesteps
    total = sources.num_validation
    slices = [slice_of(total, rank=rank, world_size=session.world_size) for rank in range(session.world_size)]
    losses: list[Tensor] = []
    first = slices[session.rank].start
    network = under_autocast(state.model, kit.step_settings.autocast, device)
    state.model.eval()
    with torch.no_grad(), state.ema.applied(spec.sample.ema):
        for batch in sources.validation(slices[session.rank], size=kit.microbatch.samples):
            session.phase("validate")  # as long as pieces get done nothing hangs
            count = batch.pixels.shape[0]
            x_start = to_float(batch.pixels.to(device))
            positions = torch.arange(first, first + count, device=device)
            first += count
            terms = training_losses(
                state.diffusion,
                network,
                x_start=x_start,
                t=_timesteps(positions, num_timesteps=num_timesteps),
                noise=draws.normals(spec.run.seed, Purpose.VALIDATION, positions, tuple(x_start.shape[1:])),
                cond=condition(x_start, batch.labels.to(device), augmentation=kit.augmentation),
            )
            losses.append(terms.loss)
    state.model.train()
    own = torch.cat(losses) if losses else torch.zeros(0, device=device)
    everyone = gather_ragged(own, counts=[piece.stop - piece.start for piece in slices]).double()
    quartile = 4 * _timesteps(torch.arange(total, device=device), num_timesteps=num_timesteps) // num_timesteps
    values = {"val_loss": float(everyone.mean())}
    return values | {f"val_loss_q{q}": float(everyone[quartile == q].mean()) for q in range(4)}


def _timesteps(positions: Tensor, *, num_timesteps: int) -> Tensor:
    return ((positions.double() * GOLDEN_RATIO + 0.5) % 1.0 * num_timesteps).long().clamp(max=num_timesteps - 1)


def is_owed(run_url: str, session: Session, *, step: int, group: Group) -> bool:
    """Whether the grid of a step is missing, because an attempt that a preemption ended had no time for it. A collective."""
    owed = session.rank == 0 and not is_kept(run_url, GRID, step)
    return bool(broadcast_bytes(b"owed" if owed else b"", group=group))


def draw(spec: JobSpec, kit: Kit, session: Session, *, sources: Sources) -> Tensor:
    """Draws `sample.count` pictures, every rank its part; picture i has the same noise every time.

    A super-resolution network enlarges the first rows of the data set.

    Returns:
        [count, C, H, W] uint8 on every rank.
    """
    state, device, shape = kit.state, session.device, spec.picture_shape()
    slices = [slice_of(spec.sample.count, rank=rank, world_size=session.world_size) for rank in range(session.world_size)]
    own = slices[session.rank]
    counts = [piece.stop - piece.start for piece in slices]
    if counts[session.rank] == 0:
        own = slice(0, 1)  # drawn for nobody: whoever is idle would wait for the others longer than a collective may take
    indices = torch.arange(own.start, own.stop, device=device)
    cond = _conditions(spec, kit, sources=sources, own=own, indices=indices)
    network = under_autocast(state.model, kit.step_settings.autocast, device)

    def alive(x: Tensor, t: Tensor, **cond: Tensor) -> Tensor:
        session.phase("sample")  # drawing may take longer than a hang is borne
        return network(x, t, **cond)

    state.model.eval()
    with state.ema.applied(spec.sample.ema):
        pictures = draw_pictures(
            build.diffusion(spec.diffusion, respacing=spec.sample.respacing).to(device),
            alive,
            indices=indices,
            shape=shape,
            seed=spec.run.seed,
            cond=cond,
            way=build.way(spec, num_classes=kit.num_classes),
        )
    state.model.train()
    return gather_ragged(pictures[: counts[session.rank]], counts=counts)


def _conditions(spec: JobSpec, kit: Kit, *, sources: Sources, own: slice, indices: Tensor) -> dict[str, Tensor]:
    cond: dict[str, Tensor] = {}
    labels = torch.zeros_like(indices)
    if kit.augmentation.low_res_size is not None:
        rows = sources.pictures(own)
        labels = rows.labels.to(indices.device)
        cond = condition(to_float(rows.pixels.to(indices.device)), labels, augmentation=kit.augmentation)
        noise, level = kit.augmentation.low_res_noise, spec.sample.low_res_noise
        cond |= drawing_condition(cond["low_res"], augment=noise, level=level, seed=spec.run.seed, indices=indices)
    elif kit.num_classes is not None:
        choice = torch.tensor(spec.sample.classes or range(kit.num_classes), device=indices.device)
        cond["y"] = choice[indices % len(choice)]
    return cond
