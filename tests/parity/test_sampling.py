"""DDPM, DDIM and DDIM-backwards under formula networks against the recorded chains.

Each step starts from the recorded state before it, so that rounding does not pile up and the comparison stays tight; the loops
themselves are judged by where they end in float64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from golden import Golden, GoldenFile
from process import FormulaNetwork, process_of
from torch import Tensor

from iddpm_ray.diffusion.sample import (
    StepSample,
    ddim_reverse_step,
    ddim_reverse_steps,
    ddim_step,
    ddpm_step,
)
from iddpm_ray.diffusion.seeded import chain


def _denoised(case: dict[str, Any]) -> Callable[[Tensor], Tensor] | None:
    return (lambda x: 0.5 * x) if case.get("denoised_fn") else None


def _step(g: GoldenFile, case: dict[str, Any], done: int, dtype: torch.dtype) -> StepSample:
    """The step after `done` others, from the recorded state."""
    diffusion, network, clip, denoised = process_of(case), FormulaNetwork(case), bool(case["clip"]), _denoised(case)
    before = g.input(f"{case['id']}.start") if done == 0 else g.arrays[f"{case['id']}.sample"][done - 1]
    x_t = torch.from_numpy(before).to(dtype)
    index = done if case["kind"] == "ddim_reverse" else diffusion.num_timesteps - 1 - done
    t = torch.full((x_t.shape[0],), index)
    if case["kind"] == "ddim_reverse":
        return ddim_reverse_step(diffusion, network, x_t=x_t, t=t, cond={}, clip=clip, denoised=denoised)
    noise = torch.from_numpy(g.input(f"{case['id']}.noise")[done])
    if case["kind"] == "ddim":
        return ddim_step(diffusion, network, x_t=x_t, t=t, noise=noise, cond={}, eta=case["eta"], clip=clip, denoised=denoised)
    assert case["kind"] == "p", case
    return ddpm_step(diffusion, network, x_t=x_t, t=t, noise=noise, cond={}, clip=clip, denoised=denoised)


def _chain(g: GoldenFile, case: dict[str, Any], network: FormulaNetwork) -> list[StepSample]:
    """The whole loop in float64."""
    diffusion, clip, denoised = process_of(case), bool(case["clip"]), _denoised(case)
    start = torch.from_numpy(g.input(f"{case['id']}.start")).double()
    if case["kind"] == "ddim_reverse":
        return list(ddim_reverse_steps(diffusion, network, start=start, cond={}, clip=clip, denoised=denoised))
    noises = torch.from_numpy(g.input(f"{case['id']}.noise"))

    def noise(done: int) -> Tensor:
        return noises[done]

    method, eta = ("ddim", case["eta"]) if case["kind"] == "ddim" else ("ddpm", 0.0)
    steps = chain(diffusion, network, method=method, start=start, noise=noise, cond={}, eta=eta, clip=clip, denoised=denoised)
    return list(steps)


def test_steps_are_the_recorded_ones(golden: Golden) -> None:
    g = golden.open("sampling.npz")
    with g.collecting():
        for case in golden.records("sampling.json", "sampling"):
            steps = range(process_of(case).num_timesteps)
            for part in ("sample", "pred_xstart"):
                rounded, exact = (
                    torch.stack([getattr(_step(g, case, done, dtype), part) for done in steps]) for dtype in (torch.float32, torch.float64)
                )
                g.check(f"{case['id']}.{part}", rounded, rtol=1e-5, atol=5e-7 + _rounding(rounded, exact))


def _rounding(rounded: Tensor, exact: Tensor) -> np.ndarray:
    """How far two float32 programs may differ in each element: a few times our own error in it, or its picture's typical one.

    A coefficient such as the root of a difference that is almost 0 is off for the whole picture.
    """
    error = (rounded.double() - exact).abs()
    typical = error.square().mean(dim=(2, 3, 4), keepdim=True).sqrt()
    return (3 * error + typical).numpy()


def test_the_network_is_told_the_recorded_timesteps(golden: Golden) -> None:
    g = golden.open("sampling.npz")
    with g.collecting():
        for case in golden.records("sampling.json", "sampling"):
            network, name = FormulaNetwork(case), f"{case['id']}.model_t"
            _chain(g, case, network)
            assert network.told().numpy().dtype == g.arrays[name].dtype, name
            g.check(name, network.told())


def test_loops_end_where_recorded_in_float64(golden: Golden) -> None:
    g = golden.open("sampling.npz")
    with g.collecting():
        for case in golden.records("sampling.json", "sampling"):
            exact = _chain(g, case, FormulaNetwork(case))[-1].sample
            unrounded = _chain(g, case, FormulaNetwork(case, exact_tau=True))[-1].sample
            # A rescaled timestep that float32 cannot hold may have been rounded in the recorded run or not.
            g.check(f"{case['id']}.final.f64", exact, rtol=1e-9, atol=1e-12 + 2 * (exact - unrounded).abs().numpy())
