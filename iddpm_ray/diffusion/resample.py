"""Timestep resamplers: which timesteps to train on, and what a draw must be weighted by to stay unbiased.

The same bits on every rank and every device: the history and the weights are float64 with every addition in a written order (no
reduction whose order a device chooses), probabilities become int64 fixed point before they are summed, and both the draw and its
importance weight come from those integers. Nothing here waits for the device, and no shape depends on data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from iddpm_ray.errors import CheckpointError

# All probabilities together, in fixed point: every float64 uniform times this is exact, and a double's 53 bits of a probability survive.
TOTAL = 1 << 62
# A loss beyond this is refused like an infinite one: the sum of squares of a history must stay finite.
_LARGEST_LOSS = 1e150


@dataclass(frozen=True)
class Drawn:
    """Timesteps for a batch: t int64 [G] and the importance weights 1 / (T p_t), float32 [G]."""

    t: Tensor
    weights: Tensor


class Resampler(Protocol):
    """Given uniforms, draws timesteps; given losses, learns. Knows neither ranks nor positions."""

    num_timesteps: int

    def weights(self) -> Tensor:
        """How often each timestep should be drawn, up to a factor: float64 [T]."""
        ...

    def importance(self, t: Tensor) -> Tensor:
        """1 / (T p_t) for each timestep of t [G]: float64 [G]; infinite where p_t is zero."""
        ...

    def draw(self, uniforms: Tensor) -> Drawn:
        """The timesteps that uniforms in [0, 1), float64 [G], stand for."""
        ...

    def update(self, t: Tensor, losses: Tensor) -> None:
        """Learns from the unweighted losses [G] of timesteps t [G]: the whole global batch, in the order of its positions."""
        ...

    def digest(self) -> Tensor:
        """A hash of the state's bits, int64 [] on its device: two ranks that agree have equal ones, two that differ practically never."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of what must be saved."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state_dict` gave."""
        ...


class UniformResampler:
    """Every timestep equally often; all importance weights are 1."""

    def __init__(self, num_timesteps: int, *, device: torch.device | str = "cpu") -> None:
        if num_timesteps < 1:
            raise ValueError(f"num_timesteps must be at least 1, not {num_timesteps}")
        self.num_timesteps = num_timesteps
        self._fixed = fixed_point(torch.ones(num_timesteps, dtype=torch.float64, device=device))

    def weights(self) -> Tensor:
        """Ones [T]."""
        return torch.ones_like(self._fixed, dtype=torch.float64)

    def importance(self, t: Tensor) -> Tensor:
        """Ones, float64 [G]."""
        return torch.ones_like(t, dtype=torch.float64)

    def draw(self, uniforms: Tensor) -> Drawn:
        """Timesteps of uniforms in [0, 1), float64 [G]."""
        return Drawn(_invert(self._fixed, uniforms), torch.ones_like(uniforms, dtype=torch.float32))

    def update(self, t: Tensor, losses: Tensor) -> None:
        """Nothing to learn."""

    def digest(self) -> Tensor:
        """Zero: there is no state to differ in."""
        return torch.zeros((), dtype=torch.int64, device=self._fixed.device)

    def state_dict(self) -> dict[str, Tensor]:
        """Empty."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Accepts the empty state only.

        Raises:
            CheckpointError: the state is some other resampler's.
        """
        _check_state(state, {})


class LossSecondMomentResampler:
    """Draws a timestep in proportion to the root mean square of its last losses (Nichol & Dhariwal 2021, section 3.3, equation 18).

    Uniform until every timestep has a full history. A timestep's history fills from the left; once full it shifts left and the newest
    loss enters at the right. Losses that are not finite never enter and displace nothing.

    Args:
        num_timesteps: T.
        history: how many losses are kept for a timestep.
        uniform_prob: share of the probability that is spread evenly, so that no timestep starves.
        device: where the history lives and draws are made.
    """

    def __init__(self, num_timesteps: int, *, history: int = 10, uniform_prob: float = 0.001, device: torch.device | str = "cpu") -> None:
        if num_timesteps < 1 or history < 1:
            raise ValueError(f"num_timesteps and history must be at least 1, not {num_timesteps} and {history}")
        if not 0.0 <= uniform_prob <= 1.0:
            raise ValueError(f"uniform_prob must be between 0 and 1, not {uniform_prob}")
        self.num_timesteps = num_timesteps
        self.uniform_prob = uniform_prob
        self.history = torch.zeros((num_timesteps, history), dtype=torch.float64, device=device)
        self.counts = torch.zeros(num_timesteps, dtype=torch.int64, device=device)

    def warmed_up(self) -> Tensor:
        """Whether every timestep has a full history: bool []."""
        return (self.counts == self.history.shape[1]).all()

    def weights(self) -> Tensor:
        """Ones until warmed up, then the root mean squares in proportion, mixed with the uniform share: float64 [T]."""
        squares = _squares_left_to_right(self.history)
        root_mean_square = (squares / self.history.shape[1]).sqrt()
        total = tree_sum(root_mean_square)
        even = 1.0 / self.num_timesteps
        share = torch.where(total > 0, root_mean_square / torch.where(total > 0, total, 1.0), even)
        mixed = share * (1.0 - self.uniform_prob) + self.uniform_prob / self.num_timesteps
        return torch.where(self.warmed_up(), mixed, 1.0)

    def importance(self, t: Tensor) -> Tensor:
        """1 / (T p_t), float64 [G], from the integers that draw; infinite for a timestep that is never drawn."""
        return self._importance(fixed_point(self.weights()), t)

    def draw(self, uniforms: Tensor) -> Drawn:
        """Timesteps of uniforms in [0, 1), float64 [G], with their importance weights."""
        fixed = fixed_point(self.weights())
        t = _invert(fixed, uniforms)
        return Drawn(t, self._importance(fixed, t).to(torch.float32))

    def update(self, t: Tensor, losses: Tensor) -> None:
        """As if the pairs (t, loss) were handled one after another, all at once; a timestep may occur any number of times.

        Sorting the pairs by timestep, stably, puts each timestep's new losses in one run, from which its new history can be gathered:
        of its old losses followed by the run, the last H.
        """
        num_slots = self.history.shape[1]
        losses = losses.detach().to(self.history)
        steps = torch.where(losses.abs() <= _LARGEST_LOSS, t.to(self.counts), self.num_timesteps)
        steps, order = torch.sort(steps, stable=True)
        # One entry more, so that an empty batch can be gathered from.
        ordered = torch.cat((losses[order], losses.new_zeros(1)))

        each = torch.arange(self.num_timesteps, device=self.counts.device)
        run_begin = torch.searchsorted(steps, each)
        total = self.counts + torch.searchsorted(steps, each, right=True) - run_begin
        fallen = (total - num_slots).clamp_(min=0)

        entry = torch.arange(num_slots, device=self.counts.device)[None, :] + fallen[:, None]
        place_in_run = entry - self.counts[:, None]
        old = self.history.gather(1, entry.clamp(max=num_slots - 1))
        new = ordered[(run_begin[:, None] + place_in_run).clamp_(min=0, max=losses.shape[0])]
        filled = torch.where(place_in_run < 0, old, new)
        self.history = torch.where(entry < total[:, None], filled, 0.0)
        self.counts = total.clamp_(max=num_slots)

    def digest(self) -> Tensor:
        """A hash of the bits of history and counts: int64 [] on their device."""
        bits = torch.cat((self.history.flatten().view(torch.int64), self.counts))
        mixed = bits + torch.arange(1, bits.shape[0] + 1, device=bits.device) * _signed(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            mixed = (mixed ^ (mixed >> shift)) * _signed(factor)
        return mixed.sum()  # integers wrap: no order of additions to speak of

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of `history` float64 [T, H] and `counts` int64 [T]."""
        return {"history": self.history.clone(), "counts": self.counts.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state_dict` gave, on whatever device it lies.

        Raises:
            CheckpointError: other tensors, shapes or types than this resampler's, or contents it could not have produced.
        """
        _check_state(state, {"history": self.history, "counts": self.counts})
        history, counts = state["history"], state["counts"]
        if not bool(torch.isfinite(history).all()) or not bool(((counts >= 0) & (counts <= history.shape[1])).all()):
            raise CheckpointError("the saved resampler history is damaged: losses not finite or counts out of range", fix="load another")
        self.history = history.to(self.history.device, copy=True)
        self.counts = counts.to(self.counts.device, copy=True)

    def _importance(self, fixed: Tensor, t: Tensor) -> Tensor:
        return TOTAL / (fixed.to(torch.float64) * self.num_timesteps)[t]


def tree_sum(values: Tensor) -> Tensor:
    """The sum of float64 [T] with a written order: halves are added elementwise, [n/2] + [n/2], until one value is left."""
    size = 1 << (values.shape[0] - 1).bit_length()
    values = torch.cat((values, values.new_zeros(size - values.shape[0])))
    while size > 1:
        size //= 2
        values = values[:size] + values[size:]
    return values[0]


def fixed_point(weights: Tensor) -> Tensor:
    """Probabilities in proportion to float64 [T] weights (none negative, not all zero) as integers that total exactly TOTAL: int64 [T].

    What rounding leaves over, a few parts in 10^16, goes to the first of the most probable timesteps, so a weight of zero stays zero.
    """
    fixed = (weights / tree_sum(weights) * float(TOTAL)).to(torch.int64)
    largest = fixed == fixed.max()
    first_of_largest = largest & (torch.cumsum(largest, dim=0) == 1)
    return fixed + first_of_largest * (TOTAL - fixed.sum())


def _invert(fixed: Tensor, uniforms: Tensor) -> Tensor:
    """Index = how many entries of the cumulative sum are at most u: never one of zero probability."""
    return torch.searchsorted(torch.cumsum(fixed, dim=0), (uniforms * float(TOTAL)).to(torch.int64), right=True)


def _squares_left_to_right(history: Tensor) -> Tensor:
    """Sum of squares over the columns of [T, H], added from left to right: [T]."""
    total = history[:, 0] * history[:, 0]
    for slot in range(1, history.shape[1]):
        total = total + history[:, slot] * history[:, slot]
    return total


def _signed(word: int) -> int:
    """The int64 with the bits of an unsigned 64-bit word."""
    return word - (1 << 64) if word >> 63 else word


def _check_state(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    described = {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in state.items()}
    wanted = {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in expected.items()}
    if described != wanted:
        raise CheckpointError(
            "the saved resampler state is not of this resampler", value=described or "nothing", fix=f"this run keeps {wanted or 'nothing'}"
        )
