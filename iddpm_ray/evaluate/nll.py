"""Bits a dimension of pictures under a network: the whole bound, timestep by timestep, or an unbiased estimate of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.diffusion.gaussian import GaussianDiffusion
from iddpm_ray.diffusion.likelihood import BitsPerDim, bits_per_dim, bound_terms, prior_bpd
from iddpm_ray.evaluate.strata import DRAWS_A_PASS, Strata, draw_timesteps

# Positions of one picture's noises; more than any process has timesteps.
NOISES_A_PICTURE = 2**20


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures to measure.

    Attributes:
        x_start: [N, C, H, W] float32 in [-1, 1].
        rows: [N] int64; seed and row decide every draw.
        cond: further inputs of the network, [N, ...] each.
    """

    x_start: Tensor
    rows: Tensor
    cond: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class DrawnTerms:
    """Terms of the bound at drawn timesteps: [N, S, 2] each, two draws in each of S strata; `prior_bpd` [N]; bits as in `BitsPerDim`."""

    t: NDArray[np.int64]
    vb: NDArray[np.float64]
    mse: NDArray[np.float64]
    xstart_mse: NDArray[np.float64]
    prior_bpd: NDArray[np.float64]


def seeded_noise(pictures: Pictures, *, num_timesteps: int, seed: int) -> Callable[[int], Tensor]:
    """Given how many timesteps are done, the noise of the next; at timestep t a function of (seed, row, t)."""
    shape = tuple(pictures.x_start.shape[1:])

    def noise(done: int) -> Tensor:
        positions = pictures.rows * NOISES_A_PICTURE + (num_timesteps - 1 - done)
        return draws.normals(seed, Purpose.LIKELIHOOD_NOISE, positions, shape)

    return noise


def whole_bound(
    diffusion: GaussianDiffusion, network: Callable[..., Tensor], pictures: Pictures, *, noise: Callable[[int], Tensor], clip: bool = True
) -> BitsPerDim:
    """The bound of every picture over all timesteps, as the original program reckons it.

    Args:
        noise: given how many timesteps are done, the noise [N, C, H, W] of the next.
        clip: clamp predictions of x_start to [-1, 1].
    """
    return bits_per_dim(diffusion, network, x_start=pictures.x_start, noise=noise, cond=pictures.cond, clip=clip)


def drawn_terms(
    diffusion: GaussianDiffusion,
    network: Callable[..., Tensor],
    pictures: Pictures,
    *,
    strata: Strata,
    seed: int,
    number: int = 0,
    batch: int = 128,
    clip: bool = True,
) -> DrawnTerms:
    """Terms at two timesteps of each stratum, every draw a function of (seed, row, stratum, pass).

    Args:
        number: of the pass; another one is independent of it.
        batch: how many pairs of picture and timestep the network sees at a time.
        clip: clamp predictions of x_start to [-1, 1].
    """
    drawn = draw_timesteps(strata, rows=pictures.rows, seed=seed, number=number)
    each = len(strata) * DRAWS_A_PASS
    parts: list[Tensor] = []
    with torch.no_grad():
        for begin in range(0, len(drawn.t), batch):
            piece = slice(begin, min(begin + batch, len(drawn.t)))
            who = torch.arange(piece.start, piece.stop, device=drawn.t.device) // each
            noise = draws.normals(seed, Purpose.STRATUM_NOISE, drawn.positions[piece], tuple(pictures.x_start.shape[1:]))
            cond = {name: value[who] for name, value in pictures.cond.items()}
            terms = bound_terms(diffusion, network, x_start=pictures.x_start[who], t=drawn.t[piece], noise=noise, cond=cond, clip=clip)
            parts.append(torch.stack([terms.vb, terms.mse, terms.xstart_mse]))
        prior = prior_bpd(diffusion, x_start=pictures.x_start)
    vb, mse, xstart_mse = torch.cat(parts, dim=1).double().cpu().view(3, len(pictures), len(strata), DRAWS_A_PASS).numpy()
    return DrawnTerms(drawn.t.cpu().view(vb.shape).numpy(), vb, mse, xstart_mse, prior.double().cpu().numpy())


def noise_variance(vb: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the noises add to the variance of each picture's bound, [N], from its terms [N, T] under one noise a timestep.

    A term less the mean of its neighbours shows the noises alone where the curve is straight: a sixth of the squares of second
    differences (Gasser, Sroka and Jennen-Steinmetz 1986). The ends, and the decoder's term, which has no neighbour of its kind, count as
    those beside them; of fewer than four terms nothing can be said, and 0 is.
    """
    kl = vb[:, :-1]  # the noisiest first; the last column is the decoder's
    if kl.shape[1] < 3:
        return np.zeros(len(vb))
    squares = np.diff(kl, n=2, axis=1) ** 2 / 6
    return squares.sum(axis=1) + squares[:, 0] + 2 * squares[:, -1]
