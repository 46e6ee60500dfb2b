"""The likelihood of many pictures as a job of chunks: what a chunk holds, and what all of them say together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iddpm_ray import build
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.evaluate.chunks import Chunks, Work
from iddpm_ray.evaluate.drawing import Arithmetic
from iddpm_ray.evaluate.measured import load_rows
from iddpm_ray.evaluate.nll import Pictures, drawn_terms, noise_variance, seeded_noise, whole_bound
from iddpm_ray.evaluate.npz import decode, encode
from iddpm_ray.evaluate.rows import Side, choose_rows
from iddpm_ray.evaluate.strata import MeanEstimate, Strata, estimate_sums, make_strata, mean_estimate, pooled
from iddpm_ray.evaluate.subject import Subject
from iddpm_ray.evaluate.trained import Trained
from iddpm_ray.train.inputs import Augmentation, condition, to_float
from iddpm_ray.train.sources import decoding_of

FEWEST_PICTURES = 32  # whose scatter tells a stopping rule anything
_TERMS = ("vb", "mse", "xstart_mse")


@dataclass(frozen=True)
class Looking:
    """What is looked at, and how; decides every byte of a chunk, with the network and the threads.

    Attributes:
        side, count, seed: which rows; without a count all of the side.
        strata: how many; 0 for all timesteps.
        batch: pictures a chunk, and pairs of picture and timestep that the network sees at a time.
        clip: clamp predictions of x_start to [-1, 1].
    """

    side: Side
    count: int | None
    seed: int
    strata: int
    batch: int
    clip: bool = True


@dataclass(frozen=True)
class NllWorker:
    """Makes chunks; chunk c is block c % B of the chosen rows in pass c // B, where B blocks hold every row once."""

    subject: Subject
    looking: Looking
    manifest_url: str
    device: str

    def open(self) -> Work:
        """Loads network and list of rows."""
        trained = self.subject.open(self.device)
        manifest = manifests.read(self.manifest_url)
        rows = choose_rows(manifest, self.looking.side, count=self.looking.count, seed=self.looking.seed).rows

        def work(chunk: int) -> bytes:
            with Arithmetic(self.device).applied():
                return make_chunk(trained, manifest, rows, self.looking, chunk, device=torch.device(self.device))

        return work


def chunks_a_pass(num_rows: int, batch: int) -> int:
    """How many chunks hold every row once."""
    return -(-num_rows // batch)


def make_chunk(
    trained: Trained, manifest: Manifest, rows: NDArray[np.int64], looking: Looking, chunk: int, *, device: torch.device
) -> bytes:
    """A chunk's file: an npz of per-picture values, and for the whole bound the sums over its pictures by timestep."""
    number, block = divmod(chunk, chunks_a_pass(len(rows), looking.batch))
    own = rows[block * looking.batch : (block + 1) * looking.batch]
    pictures = _pictures(trained, manifest, own, device=device)
    diffusion = build.diffusion(trained.spec.diffusion).to(device)
    if looking.strata:
        strata = make_strata(diffusion.num_timesteps, count=looking.strata)
        drawn = drawn_terms(
            diffusion, trained.network, pictures, strata=strata, seed=looking.seed, number=number, batch=looking.batch, clip=looking.clip
        )
        return encode({"rows": own, **vars(drawn)})
    noise = seeded_noise(pictures, num_timesteps=diffusion.num_timesteps, seed=looking.seed)
    bound = whole_bound(diffusion, trained.network, pictures, noise=noise, clip=looking.clip)
    terms = {name: getattr(bound, name).double().cpu().numpy() for name in ("vb", "mse", "xstart_mse", "prior_bpd", "total_bpd")}
    sums = {f"{name}_sum": terms[name].sum(axis=0) for name in _TERMS}
    per_picture = {"bpd": terms["total_bpd"], "prior_bpd": terms["prior_bpd"], "variance": noise_variance(terms["vb"])}
    return encode({"rows": own, **per_picture, **sums})


@dataclass(frozen=True, eq=False)
class Measured:
    """What a job has found so far.

    Attributes:
        estimate: of the mean bits a dimension over the side.
        rows, bpd, prior_bpd, variance: [N] by picture; `variance` is what draws of timesteps and noises add to `bpd`.
        by_timestep: `vb`, `mse`, `xstart_mse`, [T] float64 means from the noisiest timestep on; {} for an estimate.
        by_stratum: for an estimate, one mapping a stratum: `from`, `to` (inclusive), and means of a timestep of it.
        forwards: pictures that the network saw, timesteps counted apart; `forwards_whole` for the whole bound of the same pictures.
    """

    estimate: MeanEstimate
    rows: NDArray[np.int64]
    bpd: NDArray[np.float64]
    prior_bpd: NDArray[np.float64]
    variance: NDArray[np.float64]
    by_timestep: Mapping[str, NDArray[np.float64]]
    by_stratum: Sequence[Mapping[str, Any]]
    forwards: int
    forwards_whole: int


def measured_whole(parts: Sequence[bytes], *, population: int, num_timesteps: int) -> Measured:
    """All chunks of a whole bound, in order."""
    opened = [decode(part, name="a chunk") for part in parts]
    rows, bpd, prior, variance = (np.concatenate([part[name] for part in opened]) for name in ("rows", "bpd", "prior_bpd", "variance"))
    by_timestep = {name: np.sum([part[f"{name}_sum"] for part in opened], axis=0) / len(rows) for name in _TERMS}
    forwards = len(rows) * num_timesteps
    estimate = mean_estimate(bpd, variance, population=population)
    return Measured(estimate, rows, bpd, prior, variance, by_timestep, (), forwards, forwards)


def measured_drawn(parts: Sequence[bytes], *, population: int, num_timesteps: int, strata: Strata, num_rows: int, batch: int) -> Measured:
    """A beginning of the chunks of an estimate, in order; a picture that later passes reached counts with all its draws.

    Args:
        num_rows: chosen rows, so how many a pass has.
    """
    opened = [decode(part, name="a chunk") for part in parts]
    each = chunks_a_pass(num_rows, batch)
    blocks = [opened[block::each] for block in range(min(each, len(opened)))]
    rows = np.concatenate([block[0]["rows"] for block in blocks])
    prior = np.concatenate([block[0]["prior_bpd"] for block in blocks])
    sums = [estimate_sums(strata, pooled([part["vb"] for part in block])) for block in blocks]
    bpd = np.concatenate([one.total for one in sums]) + prior
    variance = np.concatenate([one.variance for one in sums])
    terms = {name: _mean_terms(blocks, name) for name in _TERMS}
    by_stratum = [
        {"from": strata.edges[s], "to": strata.edges[s + 1] - 1, **{name: float(values[s]) for name, values in terms.items()}}
        for s in range(len(strata))
    ]
    forwards = sum(part["vb"].size for part in opened)
    estimate = mean_estimate(bpd, variance, population=population)
    return Measured(estimate, rows, bpd, prior, variance, {}, by_stratum, forwards, len(rows) * num_timesteps)


def first_goal(num_rows: int, batch: int) -> int:
    """How many chunks a stopping rule looks at first."""
    return chunks_a_pass(min(FEWEST_PICTURES, num_rows), batch)


def enough(measured: Measured, *, target: float) -> bool:
    """Whether the standard error is as small as was asked for."""
    return measured.estimate.standard_error <= target


def hopeless(measured: Measured, *, num_rows: int, target: float) -> bool:
    """Whether further draws cannot make the standard error so small, all chosen pictures having been seen."""
    return measured.estimate.count == num_rows and measured.estimate.unseen > target


def next_goal(measured: Measured, *, done: int, each: int, most: int, target: float) -> int:
    """How many chunks will probably be enough, given that `done` are not: the square of the error falls as chunks are added.

    Args:
        each: chunks of a pass; another is begun only after a look at the whole first one.
    """
    error = measured.estimate.standard_error
    factor = 4.0 if not np.isfinite(error) else min(8.0, max(1.05, 1.1 * (error / target) ** 2))
    return min(most if done >= each else each, max(done + 1, int(np.ceil(done * factor))))


def _pictures(trained: Trained, manifest: Manifest, rows: NDArray[np.int64], *, device: torch.device) -> Pictures:
    spec = trained.spec
    pixels, labels = load_rows(manifest, decoding_of(spec), rows)
    x_start = to_float(pixels.to(device))
    num_classes = (spec.model.num_classes or len(trained.classes)) if spec.model.class_cond else None
    plain = Augmentation(
        class_cond=num_classes is not None,
        null_class=num_classes,
        low_res_size=spec.low_res_height_width(),
        low_res_noise=build.condition_noise(spec),
    )
    return Pictures(x_start, torch.from_numpy(rows).to(device), condition(x_start, labels.to(device), augmentation=plain))


def _mean_terms(blocks: Sequence[Sequence[Mapping[str, NDArray[Any]]]], name: str) -> NDArray[np.float64]:
    """The mean of a term over pictures and draws, by stratum."""
    return np.concatenate([pooled([part[name] for part in block]).mean(axis=2) for block in blocks]).mean(axis=0)


def only(chunks: Chunks, count: int) -> Chunks:
    """The first `count` chunks of a job, as a job."""
    return replace(chunks, count=min(chunks.count, count * chunks.size))
