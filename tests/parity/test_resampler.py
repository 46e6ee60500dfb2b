"""Recorded resampler: every update, history, weight and draw through the product's own."""

from typing import Any

import numpy as np
import torch
from golden import Golden, GoldenFile

from iddpm_ray.diffusion.resample import LossSecondMomentResampler, UniformResampler


def _resampler(golden: Golden) -> tuple[GoldenFile, LossSecondMomentResampler]:
    meta: Any = golden.json("meta.json")
    settings = meta["resampler"]
    resampler = LossSecondMomentResampler(settings["T"], history=settings["history"], uniform_prob=settings["uniform_prob"])
    return golden.open("resampler.npz"), resampler


def _all_updates(file: GoldenFile, resampler: LossSecondMomentResampler) -> None:
    for t, losses in zip(file.input("ts"), file.input("losses"), strict=True):
        resampler.update(torch.from_numpy(t), torch.from_numpy(losses))


def test_every_update_leaves_the_recorded_state(golden: Golden) -> None:
    file, resampler = _resampler(golden)
    counts, weights, warmed_up = [], [], []
    at_first_warm = None
    for t, losses in zip(file.input("ts"), file.input("losses"), strict=True):
        resampler.update(torch.from_numpy(t), torch.from_numpy(losses))
        counts.append(resampler.counts.numpy())
        weights.append(resampler.weights().numpy())
        warmed_up.append(int(resampler.warmed_up()))
        if warmed_up[-1] and at_first_warm is None:
            at_first_warm = resampler.history.clone()
    file.check("counts", np.stack(counts))
    file.check("warmed_up", np.array(warmed_up))
    file.check("weights", np.stack(weights), rtol=1e-12)
    file.check("history.final", resampler.history, rtol=1e-12)
    if at_first_warm is not None or "history.at_first_warm" in file.names():
        assert at_first_warm is not None, "a history at first warmth is recorded, but ours was never warm"
        file.check("history.at_first_warm", at_first_warm, rtol=1e-12)


def test_importance_weights_are_the_recorded_ones(golden: Golden) -> None:
    file, resampler = _resampler(golden)
    _all_updates(file, resampler)
    importance = resampler.importance(torch.from_numpy(file.input("importance.indices")))
    file.check("importance.weights.f64", importance, rtol=1e-12)
    file.check("importance.weights", importance.float(), rtol=1e-6)


def test_draws_are_the_recorded_ones(golden: Golden) -> None:
    file, resampler = _resampler(golden)
    _all_updates(file, resampler)
    drawn = resampler.draw(torch.from_numpy(file.input("draw.uniforms")))
    file.check("draw.indices", drawn.t)
    file.check("draw.weights", drawn.weights, rtol=1e-6)


def test_uniform_draws_are_the_recorded_ones(golden: Golden) -> None:
    file, resampler = _resampler(golden)
    drawn = UniformResampler(resampler.num_timesteps).draw(torch.from_numpy(file.input("uniform.uniforms")))
    file.check("uniform.indices", drawn.t)
    file.check("uniform.weights", drawn.weights, rtol=1e-6)
