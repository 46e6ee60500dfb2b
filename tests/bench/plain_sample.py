"""The peer: drawing pictures and measuring their likelihood as a straightforward program of 2021 does it, timestep by timestep.

It computes what ours computes, with the same network. Every coefficient is a float64 table on the host that travels to the device at each
look-up, and every timestep is a call of its own with a tensor of equal timesteps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from plain_step import PlainTables, discretised_log_likelihood, look_up
from torch import Tensor, nn


@dataclass(frozen=True)
class PlainProcess:
    """A process of fewer timesteps than the network knows: its own tables, and what the network is told at each of its timesteps."""

    tables: PlainTables
    told_at: np.ndarray

    @classmethod
    def cosine(cls, num_timesteps: int, *, kept: list[int]) -> "PlainProcess":
        """Of a cosine process of so many timesteps, those that are kept, in order."""
        bars = PlainTables.cosine(num_timesteps).alphas_bar[kept]
        return cls(PlainTables(1.0 - bars / np.concatenate([[1.0], bars[:-1]])), np.array(kept) * (1000.0 / num_timesteps))

    def __len__(self) -> int:
        return len(self.told_at)

    def told(self, t: Tensor) -> Tensor:
        """Timesteps [N] as the network is told them."""
        return torch.from_numpy(self.told_at).to(t.device)[t].float()


@dataclass(frozen=True)
class PlainMoments:
    """Of x_{t-1} given x_t: mean and logarithm of the variance; and the guess of x_start; [N, C, H, W] each."""

    mean: Tensor
    log_variance: Tensor
    guess: Tensor


def moments(process: PlainProcess, model: nn.Module, x: Tensor, t: Tensor, labels: Tensor) -> PlainMoments:
    """What the network says at one timestep, with its learned variance and the guess clipped."""
    tables = process.tables
    eps, values = model(x, process.told(t), y=labels).chunk(2, dim=1)
    share = (values + 1) / 2
    log_variance = share * look_up(np.log(tables.betas), t, x) + (1 - share) * look_up(tables.posterior_log_variance(), t, x)
    guess = look_up(np.sqrt(1.0 / tables.alphas_bar), t, x) * x - look_up(np.sqrt(1.0 / tables.alphas_bar - 1.0), t, x) * eps
    guess = guess.clamp(-1, 1)
    return PlainMoments(posterior_mean(tables, guess, x, t), log_variance, guess)


def posterior_mean(tables: PlainTables, x_start: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """The mean of x_{t-1} given x_t and x_start (Ho et al. 2020, equation 7)."""
    first = tables.betas * np.sqrt(tables.alphas_bar_before) / (1.0 - tables.alphas_bar)
    second = (1.0 - tables.alphas_bar_before) * np.sqrt(1.0 - tables.betas) / (1.0 - tables.alphas_bar)
    return look_up(first, t, x) * x_start + look_up(second, t, x) * x


def draw(process: PlainProcess, model: nn.Module, start: Tensor, labels: Tensor, *, noise: Callable[[int], Tensor]) -> Tensor:
    """Ancestral sampling from [N, C, H, W] noise to bytes; `noise` is given how many steps are done."""
    x, steps = start, len(process)
    with torch.no_grad():
        for index in reversed(range(steps)):
            t = torch.tensor([index] * len(x), device=x.device)
            found = moments(process, model, x, t, labels)
            nonzero = (t != 0).float().view(-1, *[1] * (x.dim() - 1))
            x = found.mean + nonzero * torch.exp(0.5 * found.log_variance) * noise(steps - 1 - index)
    return ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class PlainBits:
    """Of each picture: the whole bound [N] in bits a dimension; its terms and the mean squared errors [N, T], the noisiest first."""

    total: Tensor
    vb: Tensor
    xstart_mse: Tensor
    mse: Tensor


def bits(process: PlainProcess, model: nn.Module, x_start: Tensor, labels: Tensor, *, noise: Callable[[int], Tensor]) -> PlainBits:
    """The whole variational bound of pictures [N, C, H, W], and what the original reports with it."""
    tables, steps = process.tables, len(process)
    vb: list[Tensor] = []
    xstart_mse: list[Tensor] = []
    mse: list[Tensor] = []
    with torch.no_grad():
        for index in reversed(range(steps)):
            t = torch.tensor([index] * len(x_start), device=x_start.device)
            drawn = noise(steps - 1 - index)
            x = look_up(np.sqrt(tables.alphas_bar), t, x_start) * x_start + look_up(np.sqrt(1.0 - tables.alphas_bar), t, x_start) * drawn
            found = moments(process, model, x, t, labels)
            vb.append(_term(tables, found, x_start, x, t))
            eps = (look_up(np.sqrt(1.0 / tables.alphas_bar), t, x) * x - found.guess) / look_up(
                np.sqrt(1.0 / tables.alphas_bar - 1.0), t, x
            )
            xstart_mse.append(((found.guess - x_start) ** 2).flatten(1).mean(1))
            mse.append(((eps - drawn) ** 2).flatten(1).mean(1))
        last = torch.tensor([steps - 1] * len(x_start), device=x_start.device)
        mean = look_up(np.sqrt(tables.alphas_bar), last, x_start) * x_start
        log_variance = look_up(np.log(1.0 - tables.alphas_bar), last, x_start)
        prior = 0.5 * (-1.0 - log_variance + torch.exp(log_variance) + mean**2)
    terms = torch.stack(vb, dim=1)
    total = terms.sum(dim=1) + prior.flatten(1).mean(1) / math.log(2.0)
    return PlainBits(total, terms, torch.stack(xstart_mse, dim=1), torch.stack(mse, dim=1))


def _term(tables: PlainTables, found: PlainMoments, x_start: Tensor, x: Tensor, t: Tensor) -> Tensor:
    true_log_variance = look_up(tables.posterior_log_variance(), t, x)
    kl = 0.5 * (
        found.log_variance
        - true_log_variance
        - 1.0
        + torch.exp(true_log_variance - found.log_variance)
        + (posterior_mean(tables, x_start, x, t) - found.mean) ** 2 * torch.exp(-found.log_variance)
    )
    nll = -discretised_log_likelihood(x_start, mean=found.mean, log_scale=0.5 * found.log_variance)
    return torch.where(t == 0, nll.flatten(1).mean(1), kl.flatten(1).mean(1)) / math.log(2.0)
