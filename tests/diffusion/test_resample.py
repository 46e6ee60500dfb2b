"""Resamplers agree with a plain reading of their definition, pair after pair, and keep their laws at every size."""

import math

import numpy as np
import pytest
import torch
from no_sync import NoHostSync
from torch import Tensor

from iddpm_ray.diffusion.resample import TOTAL, LossSecondMomentResampler, UniformResampler, fixed_point, tree_sum
from iddpm_ray.errors import CheckpointError


class OnePairAfterAnother:
    """The definition with lists: a history fills from the left and then shifts left; losses that are not finite are passed over."""

    def __init__(self, num_timesteps: int, history: int) -> None:
        self.history: list[list[float]] = [[] for _ in range(num_timesteps)]
        self.size = history

    def update(self, t: np.ndarray, losses: np.ndarray) -> None:
        for step, loss in zip(t.tolist(), losses.tolist(), strict=True):
            if math.isfinite(loss):
                self.history[step] = [*self.history[step], loss][-self.size :]

    def probabilities(self, uniform_prob: float) -> np.ndarray:
        num_timesteps = len(self.history)
        if any(len(kept) < self.size for kept in self.history):
            return np.full(num_timesteps, 1.0 / num_timesteps)
        root_mean_square = np.sqrt(np.mean(np.square(np.array(self.history)), axis=1))
        return root_mean_square / root_mean_square.sum() * (1.0 - uniform_prob) + uniform_prob / num_timesteps


def draws_like(probabilities: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    cumulative = np.cumsum(probabilities)
    return np.searchsorted(cumulative / cumulative[-1], uniforms, side="right")


def table(reference: OnePairAfterAnother) -> np.ndarray:
    return np.array([kept + [0.0] * (reference.size - len(kept)) for kept in reference.history])


def warmed(num_timesteps: int, *, history: int = 3, uniform_prob: float = 0.001, losses: Tensor | None = None) -> LossSecondMomentResampler:
    resampler = LossSecondMomentResampler(num_timesteps, history=history, uniform_prob=uniform_prob)
    if losses is None:
        losses = torch.rand(num_timesteps * history, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    resampler.update(torch.arange(num_timesteps).repeat(history), losses)
    assert bool(resampler.warmed_up())
    return resampler


@pytest.mark.parametrize("seed", range(60))
def test_update_and_draw_equal_pair_after_pair(seed: int) -> None:
    rng = np.random.RandomState(seed)
    num_timesteps = int(rng.choice([1, 2, 3, 7, 20, 50, 129]))
    size = int(rng.choice([1, 2, 3, 10, 17]))
    uniform_prob = float(rng.choice([0.0, 0.001, 0.3, 1.0]))
    resampler = LossSecondMomentResampler(num_timesteps, history=size, uniform_prob=uniform_prob)
    reference = OnePairAfterAnother(num_timesteps, size)
    for _ in range(30):
        count = int(rng.choice([0, 1, 2, 9, 64, 3 * num_timesteps * size]))
        t = rng.randint(0, num_timesteps, size=count) if rng.rand() < 0.7 else np.full(count, rng.randint(num_timesteps))
        losses = rng.rand(count) * 10.0 ** rng.randint(-3, 4)
        spoilt = rng.rand(count)
        losses[spoilt < 0.05] = np.nan
        losses[(spoilt >= 0.05) & (spoilt < 0.1)] = np.inf
        losses[(spoilt >= 0.1) & (spoilt < 0.12)] = -np.inf
        resampler.update(torch.from_numpy(t), torch.from_numpy(losses))
        reference.update(t, losses)
        np.testing.assert_array_equal(resampler.history.numpy(), table(reference))
        np.testing.assert_array_equal(resampler.counts.numpy(), [len(kept) for kept in reference.history])

        probabilities = reference.probabilities(uniform_prob)
        weights = resampler.weights().numpy()
        np.testing.assert_allclose(weights / weights.sum(), probabilities, rtol=1e-12)
        uniforms = rng.random_sample(64)
        drawn = resampler.draw(torch.from_numpy(uniforms))
        np.testing.assert_array_equal(drawn.t.numpy(), draws_like(probabilities, uniforms))
        np.testing.assert_allclose(drawn.weights.numpy(), 1.0 / (num_timesteps * probabilities[drawn.t.numpy()]), rtol=1e-6)


def test_update_does_not_depend_on_how_pairs_are_cut_into_batches() -> None:
    rng = np.random.RandomState(5)
    t, losses = torch.from_numpy(rng.randint(0, 4, size=500)), torch.from_numpy(rng.rand(500))
    whole, pieces = LossSecondMomentResampler(4, history=7), LossSecondMomentResampler(4, history=7)
    whole.update(t, losses)
    for own in torch.arange(500).split([1, 0, 250, 3, 200, 46]):
        pieces.update(t[own], losses[own])
    assert torch.equal(whole.history, pieces.history)
    assert torch.equal(whole.digest(), pieces.digest())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_losses_of_any_precision_enter_as_they_are(dtype: torch.dtype) -> None:
    resampler = LossSecondMomentResampler(3, history=2)
    losses = torch.tensor([0.1, 2.7, 1e4], dtype=dtype, requires_grad=True)
    resampler.update(torch.arange(3), losses)
    assert torch.equal(resampler.history[:, 0], losses.detach().double())
    assert not resampler.history.requires_grad


def test_a_loss_whose_square_overflows_does_not_enter() -> None:
    resampler = warmed(3)
    before = resampler.digest()
    resampler.update(torch.arange(3), torch.tensor([1e200, -1e300, math.nan], dtype=torch.float64))
    assert torch.equal(before, resampler.digest())
    resampler.update(torch.arange(3), torch.tensor([3e38, -3e38, 0.0], dtype=torch.float32))
    assert bool(torch.isfinite(resampler.weights()).all())


@pytest.mark.parametrize("uniform_prob", [0.0, 0.001, 1.0])
@pytest.mark.parametrize("num_timesteps", [1, 2, 5])
def test_a_history_of_zeros_draws_evenly(num_timesteps: int, uniform_prob: float) -> None:
    resampler = warmed(num_timesteps, uniform_prob=uniform_prob, losses=torch.zeros(3 * num_timesteps))
    uniforms = (torch.arange(10 * num_timesteps, dtype=torch.float64) + 0.5) / (10 * num_timesteps)
    drawn = resampler.draw(uniforms)
    assert drawn.t.tolist() == [step for step in range(num_timesteps) for _ in range(10)]
    torch.testing.assert_close(drawn.weights, torch.ones_like(drawn.weights))


@pytest.mark.parametrize("zero", [[0], [4], [0, 1, 3, 4], [2], [1, 2]])
def test_a_timestep_of_no_probability_is_never_drawn(zero: list[int]) -> None:
    losses = torch.ones(5, dtype=torch.float64)
    losses[zero] = 0.0
    resampler = warmed(5, uniform_prob=0.0, losses=losses.repeat(3))
    edges = torch.linspace(0, 1, 61, dtype=torch.float64)[:-1]
    nearly_one = torch.tensor([1 - 2.0**-53, 2.0**-53, 0.0], dtype=torch.float64)
    drawn = resampler.draw(torch.cat((edges, nearly_one)))
    assert set(drawn.t.tolist()) == set(range(5)) - set(zero)
    assert bool(torch.isinf(resampler.importance(torch.tensor(zero))).all())
    torch.testing.assert_close(drawn.weights, torch.full_like(drawn.weights, (5 - len(zero)) / 5))


@pytest.mark.parametrize("num_timesteps", [1, 2, 3, 999, 4000])
def test_fixed_point_probabilities_total_exactly_and_keep_their_precision(num_timesteps: int) -> None:
    rng = np.random.RandomState(num_timesteps)
    for spread in (0, 3, 12):
        weights = torch.from_numpy(10.0 ** (spread * (rng.rand(num_timesteps) - 0.5)))
        fixed = fixed_point(weights)
        assert sum(fixed.tolist()) == TOTAL >= 2**52
        exact = np.array([float(weight) for weight in weights]) / math.fsum(weights.tolist())
        np.testing.assert_allclose(fixed.double().numpy() / TOTAL, exact, rtol=2e-12, atol=2.0**-61)


@pytest.mark.parametrize("num_timesteps", [1, 2, 20, 4000])
def test_uniform_draws_every_timestep_evenly_with_weight_one(num_timesteps: int) -> None:
    resampler = UniformResampler(num_timesteps)
    rng = np.random.RandomState(0)
    uniforms = np.concatenate((rng.random_sample(1000), [0.0, 1 - 2.0**-53]))
    drawn = resampler.draw(torch.from_numpy(uniforms))
    np.testing.assert_array_equal(drawn.t.numpy(), np.floor(uniforms * num_timesteps))
    assert drawn.t.dtype == torch.int64
    assert torch.equal(drawn.weights, torch.ones(1002))
    assert torch.equal(resampler.weights(), torch.ones(num_timesteps, dtype=torch.float64))
    assert torch.equal(resampler.importance(drawn.t), torch.ones(1002, dtype=torch.float64))
    resampler.update(drawn.t, torch.rand(1002))
    assert int(resampler.digest()) == 0
    resampler.load_state_dict(resampler.state_dict())


def test_weighted_draws_are_unbiased() -> None:
    resampler = warmed(20, uniform_prob=0.01)
    uniforms = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    drawn = resampler.draw(uniforms)
    values = torch.cos(torch.arange(20, dtype=torch.float64))
    estimate = (values[drawn.t] * drawn.weights).mean()
    assert abs(float(estimate - values.mean())) < 1e-3
    assert abs(float(values[drawn.t].mean() - values.mean())) > 5e-3


def test_update_of_one_step_sees_draws_of_the_state_before_it() -> None:
    resampler = warmed(4)
    uniforms = torch.rand(16, dtype=torch.float64)
    drawn = resampler.draw(uniforms)
    resampler.update(drawn.t, torch.full((16,), 50.0))
    assert not torch.equal(drawn.weights, resampler.draw(uniforms).weights)
    assert torch.equal(drawn.weights, warmed(4).draw(uniforms).weights)


def test_nothing_waits_for_the_device_and_no_shape_depends_on_data() -> None:
    uniforms, t = torch.rand(9, dtype=torch.float64), torch.randint(0, 5, (9,))
    losses = torch.rand(9)
    resamplers = [warmed(5), LossSecondMomentResampler(5), UniformResampler(5)]
    with NoHostSync():
        for resampler in resamplers:
            resampler.update(t, losses)
            resampler.draw(uniforms)
            resampler.digest()
    for resampler in (LossSecondMomentResampler(5, device="meta"), UniformResampler(5, device="meta")):
        resampler.update(t.to("meta"), losses.to("meta"))
        assert resampler.draw(uniforms.to("meta")).weights.shape == (9,)
        assert resampler.digest().device.type == "meta"


def test_the_number_of_threads_leaves_no_trace() -> None:
    rng = np.random.RandomState(1)
    t, losses = torch.from_numpy(rng.randint(0, 4000, size=400_000)), torch.from_numpy(rng.rand(400_000))
    uniforms = torch.from_numpy(rng.rand(5000))
    threads, found = torch.get_num_threads(), []
    for number in (1, 2, 4):
        torch.set_num_threads(number)
        resampler = LossSecondMomentResampler(4000)
        resampler.update(t, losses)
        assert bool(resampler.warmed_up())
        found.append((resampler.weights(), resampler.draw(uniforms), resampler.digest()))
    torch.set_num_threads(threads)
    for weights, drawn, digest in found[1:]:
        assert torch.equal(weights, found[0][0])
        assert torch.equal(drawn.t, found[0][1].t)
        assert torch.equal(drawn.weights, found[0][1].weights)
        assert torch.equal(digest, found[0][2])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 1000])
def test_a_sum_is_halves_added_to_halves(count: int) -> None:
    values = torch.from_numpy(np.random.RandomState(count).rand(count))
    padded = values.tolist() + [0.0] * ((1 << (count - 1).bit_length()) - count)
    while len(padded) > 1:
        half = len(padded) // 2
        padded = [a + b for a, b in zip(padded[:half], padded[half:], strict=True)]
    assert float(tree_sum(values)) == padded[0]


def test_digest_tells_any_bit_of_history_or_counts() -> None:
    base = warmed(6)
    digests = {int(base.digest())}
    changes = 0
    for name in ("history", "counts"):
        for place in range(getattr(base, name).numel()):
            other = warmed(6)
            flat = getattr(other, name).view(torch.int64).flatten()
            flat[place] ^= 1
            digests.add(int(other.digest()))
            changes += 1
    swapped = warmed(6)
    swapped.history = swapped.history[torch.tensor([1, 0, 2, 3, 4, 5])]
    digests.add(int(swapped.digest()))
    assert len(digests) == changes + 2
    assert int(warmed(6).digest()) == int(base.digest())


def test_restored_goes_on_bit_for_bit_and_shares_no_memory() -> None:
    rng = np.random.RandomState(3)
    first, uniforms = warmed(8, history=4), torch.from_numpy(rng.rand(32))
    second = LossSecondMomentResampler(8, history=4)
    state = first.state_dict()
    second.load_state_dict(state)
    for tensor in state.values():
        tensor.zero_()
    for _ in range(5):
        a, b = first.draw(uniforms), second.draw(uniforms)
        assert torch.equal(a.t, b.t)
        assert torch.equal(a.weights, b.weights)
        losses = torch.from_numpy(rng.rand(32))
        first.update(a.t, losses)
        second.update(b.t, losses)
        assert torch.equal(first.digest(), second.digest())


def test_a_state_of_another_resampler_is_refused() -> None:
    resampler = LossSecondMomentResampler(8, history=4)
    before = resampler.digest()
    good = warmed(8, history=4).state_dict()
    bad = [
        {},
        LossSecondMomentResampler(9, history=4).state_dict(),
        LossSecondMomentResampler(8, history=5).state_dict(),
        {**good, "more": good["counts"]},
        {**good, "history": good["history"].float()},
        {**good, "counts": good["counts"] + 1},
        {**good, "counts": good["counts"] - 5},
        {**good, "history": good["history"] * math.nan},
    ]
    for state in bad:
        with pytest.raises(CheckpointError, match="resampler"):
            resampler.load_state_dict(state)
    assert torch.equal(before, resampler.digest())
    with pytest.raises(CheckpointError, match=r"\[8, 4\].*nothing"):
        UniformResampler(8).load_state_dict(good)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_timesteps": 0},
        {"num_timesteps": 4, "history": 0},
        {"num_timesteps": 4, "uniform_prob": 1.5},
        {"num_timesteps": 4, "uniform_prob": -0.1},
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        LossSecondMomentResampler(**arguments)  # type: ignore[arg-type]


def test_uniform_of_no_timesteps_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        UniformResampler(0)
