"""The peer: one training step as a straightforward trainer of 2021 does it, in plain torch, with the habits that cost time.

It computes what our step computes (eps prediction, learned-range variance, hybrid loss of Improved DDPM) with the same network, and:
gives a host read to every parameter's gradient norm, copies a float64 table to the device at every coefficient lookup and
recomputes logarithms of tables, steps an unfused AdamW and averages tensor by tensor, and books losses example by example in Python.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn


@dataclass
class PlainTables:
    """The coefficients of a diffusion of T steps as float64 arrays on the host, each [T]."""

    betas: np.ndarray
    alphas_bar: np.ndarray = field(init=False)
    alphas_bar_before: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.alphas_bar = np.cumprod(1.0 - self.betas)
        self.alphas_bar_before = np.concatenate([[1.0], self.alphas_bar[:-1]])

    @classmethod
    def cosine(cls, num_timesteps: int) -> "PlainTables":
        """The cosine schedule (Improved DDPM, equation 17)."""
        edges = np.cos((np.linspace(0.0, 1.0, num_timesteps + 1) + 0.008) / 1.008 * math.pi / 2) ** 2
        return cls(np.minimum(1.0 - edges[1:] / edges[:-1], 0.999))

    def posterior_variance(self) -> np.ndarray:
        """The variance of x_{t-1} given x_t and x_start."""
        return self.betas * (1.0 - self.alphas_bar_before) / (1.0 - self.alphas_bar)

    def posterior_log_variance(self) -> np.ndarray:
        """Its logarithm, the first (minus infinity) replaced by the second."""
        variance = self.posterior_variance()
        return np.log(np.append(variance[1], variance[1:]))


def look_up(table: np.ndarray, t: Tensor, like: Tensor) -> Tensor:
    """Entries of a host table at timesteps [N], shaped to broadcast over pictures; the whole table travels every time."""
    values = torch.from_numpy(table).to(device=t.device)[t].float()
    return values.reshape(-1, *[1] * (like.dim() - 1)).expand(like.shape)


@dataclass
class PlainTrainer:
    """The state of the plain trainer: unfused AdamW, averages one tensor at a time, and a book of losses."""

    model: nn.Module
    tables: PlainTables
    lr: float = 1e-4
    ema_rate: float = 0.9999
    book: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr, weight_decay=0.0, foreach=False, fused=False)
        self.averages = [parameter.detach().clone() for parameter in self.model.parameters()]

    def step(self, x_start: Tensor, labels: Tensor | None = None) -> None:
        """One update on pictures [N, C, H, W] in [-1, 1]."""
        num_timesteps = len(self.tables.betas)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.detach_()
                parameter.grad.zero_()
        drawn = np.random.choice(num_timesteps, size=len(x_start), p=np.full(num_timesteps, 1.0 / num_timesteps))
        t = torch.from_numpy(drawn).long().to(x_start.device)
        weights = torch.from_numpy(np.ones(len(x_start))).float().to(x_start.device)
        terms = self.losses(x_start, t, labels)
        loss = (terms["loss"] * weights).mean()
        self.log_losses(t, {name: term * weights for name, term in terms.items()})
        loss.backward()
        self.log_gradient_norm()
        self.optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(self.averages, self.model.parameters(), strict=True):
                average.mul_(self.ema_rate).add_(parameter, alpha=1 - self.ema_rate)

    def losses(self, x_start: Tensor, t: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """The hybrid loss (Improved DDPM, equation 16) and its two parts, [N] each."""
        tables, num_timesteps = self.tables, len(self.tables.betas)
        noise = torch.randn_like(x_start)
        x_t = look_up(np.sqrt(tables.alphas_bar), t, x_start) * x_start + look_up(np.sqrt(1.0 - tables.alphas_bar), t, x_start) * noise
        scaled = t.float() * (1000.0 / num_timesteps)
        output = self.model(x_t, scaled) if labels is None else self.model(x_t, scaled, y=labels)
        eps, values = output.chunk(2, dim=1)
        vb = self.variational(x_start, x_t, t, eps.detach(), values) * num_timesteps / 1000.0
        mse = ((noise - eps) ** 2).flatten(1).mean(1)
        return {"loss": mse + vb, "mse": mse, "vb": vb}

    def variational(self, x_start: Tensor, x_t: Tensor, t: Tensor, eps: Tensor, values: Tensor) -> Tensor:
        """The term of the variational bound at `t` in bits a dimension, [N]; gradients reach only the variance."""
        tables = self.tables
        low = look_up(tables.posterior_log_variance(), t, x_t)
        high = look_up(np.log(tables.betas), t, x_t)
        share = (values + 1) / 2
        log_variance = share * high + (1 - share) * low
        guess = look_up(np.sqrt(1.0 / tables.alphas_bar), t, x_t) * x_t - look_up(np.sqrt(1.0 / tables.alphas_bar - 1.0), t, x_t) * eps
        mean = self.posterior_mean(guess, x_t, t)
        true_mean = self.posterior_mean(x_start, x_t, t)
        true_log_variance = look_up(tables.posterior_log_variance(), t, x_t)
        kl = 0.5 * (
            log_variance
            - true_log_variance
            - 1.0
            + torch.exp(true_log_variance - log_variance)
            + (true_mean - mean) ** 2 * torch.exp(-log_variance)
        )
        nll = -discretised_log_likelihood(x_start, mean=mean, log_scale=0.5 * log_variance)
        return torch.where(t == 0, nll.flatten(1).mean(1), kl.flatten(1).mean(1)) / math.log(2.0)

    def posterior_mean(self, x_start: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        """The mean of x_{t-1} given x_t and x_start (Ho et al. 2020, equation 7)."""
        tables = self.tables
        first = tables.betas * np.sqrt(tables.alphas_bar_before) / (1.0 - tables.alphas_bar)
        second = (1.0 - tables.alphas_bar_before) * np.sqrt(1.0 - tables.betas) / (1.0 - tables.alphas_bar)
        return look_up(first, t, x_t) * x_start + look_up(second, t, x_t) * x_t

    def log_losses(self, t: Tensor, terms: dict[str, Tensor]) -> None:
        """Books each term's mean and each example under its quartile of the timestep."""
        for name, term in terms.items():
            self.book[name].append(term.mean().item())
            for one_t, one in zip(t.cpu().numpy(), term.detach().cpu().numpy(), strict=True):
                self.book[f"{name}_q{int(4 * one_t / len(self.tables.betas))}"].append(one.item())

    def log_gradient_norm(self) -> None:
        """Reads a sum of squares from the device for each parameter."""
        total = 0.0
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                total += (parameter.grad**2).sum().item()
        self.book["grad_norm"].append(math.sqrt(total))


def discretised_log_likelihood(x: Tensor, *, mean: Tensor, log_scale: Tensor) -> Tensor:
    """Log-probability of bytes in [-1, 1] under a Gaussian cut into 256 bins, with the tanh approximation of its distribution function."""

    def below(z: Tensor) -> Tensor:
        return 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z**3)))

    precision = torch.exp(-log_scale)
    upper, lower = below(precision * (x - mean + 1.0 / 255.0)), below(precision * (x - mean - 1.0 / 255.0))
    inside = (upper - lower).clamp(min=1e-12).log()
    return torch.where(x < -0.999, upper.clamp(min=1e-12).log(), torch.where(x > 0.999, (1.0 - lower).clamp(min=1e-12).log(), inside))
