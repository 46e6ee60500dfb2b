"""The process, the model's step, the bound's terms, the losses and their gradients against the recorded ones.

Everything is computed in float32 and in float64: recorded `.f64` twins are compared to 1e-9, and how far our two results lie apart
says how far two float32 programs may.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from binning import decoder_slack, gradient_slack
from golden import Golden, GoldenFile
from process import in_both, process
from torch import Tensor

from iddpm_ray.diffusion import gaussian
from iddpm_ray.diffusion.gaussian import GaussianDiffusion, LossType
from iddpm_ray.diffusion.likelihood import prior_bpd, vb_term
from iddpm_ray.diffusion.loss import LossTerms, training_losses

RTOL, ATOL = 1e-5, 1e-7
# One or two ulps of the exponential in a KL divergence, which is near 1 when the divergence is near 0: 4.3e-8 bits each.
KL_ATOL, PRIOR_ATOL = 1e-7, 6e-8


def _meta(golden: Golden) -> dict[str, Any]:
    return golden.json("meta.json")["diffusion"]


def _input(g: GoldenFile, name: str, dtype: torch.dtype) -> Tensor:
    value = torch.from_numpy(g.input(name))
    return value.to(dtype) if value.is_floating_point() else value


def _output(g: GoldenFile, diffusion: GaussianDiffusion, dtype: torch.dtype) -> Tensor:
    """What a network of this process's variance type is taken to return."""
    output = _input(g, "model_output", dtype)
    return output if diffusion.variance_type.learned else output[:, : g.input("x_start").shape[1]]


def _shaped(value: Tensor, recorded: np.ndarray) -> Tensor:
    """[N, 1, 1, 1] as [N] where that is what was recorded."""
    return value.flatten() if recorded.ndim == 1 and value.ndim > 1 and value.numel() == recorded.size else value


def _check(
    g: GoldenFile,
    name: str,
    compute: Callable[[torch.dtype], Tensor],
    *,
    atol: float = ATOL,
    room: dict[torch.dtype, np.ndarray] | None = None,
) -> None:
    """Against the array and its `.f64` twin; `room` is what may be added to `atol` in each precision."""
    more = room or {torch.float32: np.zeros(()), torch.float64: np.zeros(())}
    rounded, exact = (_shaped(value, g.arrays[name]) for value in in_both(compute))
    g.check_rounded(name, rounded, exact=exact, rtol=RTOL, atol=atol + more[torch.float32])
    if f"{name}.f64" in g.names():
        g.check(f"{name}.f64", exact, rtol=1e-9, atol=1e-6 * atol + more[torch.float64])


def _room(
    g: GoldenFile, diffusion: GaussianDiffusion, *, t: str = "t", clip: bool = False, factor: float = 1.0
) -> dict[torch.dtype, np.ndarray]:
    """What rounding may do to terms of the bound, for `_check`."""
    x_start, times = _input(g, "x_start", torch.float64), _input(g, t, torch.float64)
    x_t = gaussian.q_sample(diffusion, x_start=x_start, t=times, noise=_input(g, "noise", torch.float64))
    output = _output(g, diffusion, torch.float64)
    return {
        dtype: factor * decoder_slack(diffusion, output=output, x_start=x_start, x_t=x_t, t=times, clip=clip, dtype=dtype).numpy()
        for dtype in (torch.float32, torch.float64)
    }


def _q(g: GoldenFile, diffusion: GaussianDiffusion, what: str, dtype: torch.dtype) -> Tensor:
    x_start, x_t, noise, x_prev = (_input(g, name, dtype) for name in ("x_start", "x_t", "noise", "x_prev"))
    t = _input(g, "t", dtype)
    match what:
        case "mean" | "variance" | "log_variance":
            return getattr(gaussian.q_moments(diffusion, x_start=x_start, t=t), what)
        case "sample":
            return gaussian.q_sample(diffusion, x_start=x_start, t=t, noise=noise)
        case "posterior_mean" | "posterior_variance":
            return getattr(gaussian.q_posterior(diffusion, x_start=x_start, x_t=x_t, t=t), what.removeprefix("posterior_"))
        case "posterior_log_variance_clipped":
            return gaussian.q_posterior(diffusion, x_start=x_start, x_t=x_t, t=t).log_variance
        case "xstart_from_eps":
            return gaussian.xstart_from_eps(diffusion, x_t=x_t, t=t, eps=noise)
        case "xstart_from_xprev":
            return gaussian.xstart_from_previous(diffusion, x_t=x_t, t=t, x_previous=x_prev)
        case "eps_from_xstart":
            return gaussian.eps_from_xstart(diffusion, x_t=x_t, t=t, x_start=x_start)
        case "prior_bpd":
            return prior_bpd(diffusion, x_start=x_start)
        case _:
            raise AssertionError(f"no function for q.*.{what}")


def test_the_noising_process_is_the_recorded_one(golden: Golden) -> None:
    g = golden.open("diffusion.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"q\.(\w+)\.(\w+)", name):
                diffusion, what = process(match[1], _meta(golden)["T"]), match[2]
                atol = PRIOR_ATOL if what == "prior_bpd" else 0.0 if "variance" in what or what == "mean" else ATOL
                _check(g, name, lambda dtype, d=diffusion, what=what: _q(g, d, what, dtype), atol=atol)


def _p(
    g: GoldenFile,
    diffusion: GaussianDiffusion,
    what: str,
    dtype: torch.dtype,
    *,
    clip: bool,
    denoised: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    output, t = _output(g, diffusion, dtype), _input(g, "t", dtype)
    moments = gaussian.p_moments(diffusion, output=output, x_t=_input(g, "x_t", dtype), t=t, clip=clip, denoised=denoised)
    if what == "variance":
        return gaussian.p_variance(diffusion, log_variance=moments.log_variance, t=t)
    return getattr(moments, what)


def test_the_models_step_is_the_recorded_one(golden: Golden) -> None:
    g = golden.open("diffusion.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"pmv\.(\w+)\.(\w+)\.(\w+)\.(?:clip([01])\.)?(\w+)", name):
                diffusion = process(match[1], _meta(golden)["T"], mean=match[2], variance=match[3])
                atol = 0.0 if match[5] == "variance" else ATOL
                _check(g, name, lambda dtype, d=diffusion, m=match: _p(g, d, m[5], dtype, clip=m[4] == "1"), atol=atol)


def test_a_postprocessed_prediction_is_clamped_as_recorded(golden: Golden) -> None:
    g = golden.open("diffusion.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"pmv_denoised_fn\.(\w+)", name):
                meta = _meta(golden)
                diffusion = process(meta["full_schedule"], meta["T"], mean="EPSILON", variance="LEARNED_RANGE")
                _check(
                    g,
                    name,
                    lambda dtype, d=diffusion, what=match[1]: _p(g, d, what, dtype, clip=True, denoised=lambda x: 0.25 * x + 0.1),
                )


def _vb(g: GoldenFile, diffusion: GaussianDiffusion, dtype: torch.dtype, *, clip: bool) -> Tensor:
    x_start, t = _input(g, "x_start", dtype), _input(g, "t", dtype)
    x_t = gaussian.q_sample(diffusion, x_start=x_start, t=t, noise=_input(g, "noise", dtype))
    moments = gaussian.p_moments(diffusion, output=_output(g, diffusion, dtype), x_t=x_t, t=t, clip=clip)
    return vb_term(diffusion, moments=moments, x_start=x_start, x_t=x_t, t=t)


def test_terms_of_the_bound_are_the_recorded_ones(golden: Golden) -> None:
    g = golden.open("diffusion.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"vb\.(\w+)\.(\w+)\.clip([01])", name):
                meta = _meta(golden)
                diffusion = process(meta["full_schedule"], meta["T"], mean=match[1], variance=match[2])
                clip = match[3] == "1"
                _check(
                    g,
                    name,
                    lambda dtype, d=diffusion, clip=clip: _vb(g, d, dtype, clip=clip),
                    atol=KL_ATOL,
                    room=_room(g, diffusion, clip=clip),
                )


def _losses(g: GoldenFile, diffusion: GaussianDiffusion, dtype: torch.dtype, *, t: str = "t", output: Tensor | None = None) -> LossTerms:
    given = _output(g, diffusion, dtype) if output is None else output
    return training_losses(
        diffusion,
        lambda x, tau: given,
        x_start=_input(g, "x_start", dtype),
        t=_input(g, t, dtype),
        noise=_input(g, "noise", dtype),
        cond={},
    )


def _bound_factor(diffusion: GaussianDiffusion, term: str) -> float:
    """What the term of the bound is multiplied by in a term of the loss."""
    if diffusion.loss_type in (LossType.KL, LossType.RESCALED_KL):
        return diffusion.num_timesteps if diffusion.loss_type is LossType.RESCALED_KL else 1.0
    if term == "mse" or not diffusion.variance_type.learned:
        return 0.0
    return diffusion.num_timesteps / 1000 if diffusion.loss_type is LossType.RESCALED_MSE else 1.0


def test_losses_are_the_recorded_ones(golden: Golden) -> None:
    g = golden.open("diffusion.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"loss\.(\w+)\.(\w+)\.(\w+)\.(loss|mse|vb)", name):
                meta = _meta(golden)
                diffusion = process(meta["full_schedule"], meta["T"], mean=match[2], variance=match[3], loss=match[1])
                factor = _bound_factor(diffusion, match[4])
                _check(
                    g,
                    name,
                    lambda dtype, d=diffusion, term=match[4]: getattr(_losses(g, d, dtype), term),
                    atol=max(1.0, factor) * KL_ATOL,
                    room=_room(g, diffusion, factor=factor),
                )


def test_recorded_losses_are_sums_and_multiples_of_recorded_terms(golden: Golden) -> None:
    """Rounding may move a decoder's term by more than a small mistake would, but not one record of it against another."""
    g = golden.open("diffusion.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"loss\.(\w+)\.(\w+)\.(\w+)\.(loss|vb)", name):
                meta = _meta(golden)
                diffusion = process(meta["full_schedule"], meta["T"], mean=match[2], variance=match[3], loss=match[1])
                _check_related(g, name, bound=f"vb.{match[2]}.{match[3]}.clip0", diffusion=diffusion)
            if re.fullmatch(r"vb\.PREVIOUS_X\.\w+\.clip1(\.f64)?", name) and name.replace("clip1", "clip0") in g.names():
                # Clamping what a predicted x_{t-1} says of x_start does not touch the step.
                g.check(name, g.input(name.replace("clip1", "clip0")), rtol=1e-6)
            if match := re.fullmatch(r"respaced(\d+)\.(\w+)\.(loss|vb)", name):
                schedule, num_timesteps, sections = _meta(golden)["respaced"][int(match[1])]
                diffusion = process(schedule, num_timesteps, sections, variance="LEARNED_RANGE", loss=match[2], rescale=True)
                _check_related(g, name, bound=f"respaced{match[1]}.KL.loss", diffusion=diffusion)


def _check_related(g: GoldenFile, name: str, *, bound: str, diffusion: GaussianDiffusion) -> None:
    """The recorded term or loss `name` against those it is made of."""
    stem, term = name.rsplit(".", 1)
    for twin in ("", ".f64"):
        if f"{name}{twin}" not in g.names() or f"{bound}{twin}" not in g.names():
            continue
        made = _bound_factor(diffusion, term) * g.input(f"{bound}{twin}")
        if f"{stem}.mse" in g.names():
            # The squared error has no twin of its own.
            if twin:
                continue
            made = made + (g.input(f"{stem}.mse") if term == "loss" else 0.0)
        g.check(f"{name}{twin}", made, rtol=1e-6 if twin == "" else 1e-12)


def _gradient(g: GoldenFile, diffusion: GaussianDiffusion, dtype: torch.dtype) -> Tensor:
    """With respect to all channels recorded, also those that a network of fixed variance would not have."""
    output = _input(g, "model_output", dtype).clone().requires_grad_()
    channels = g.input("x_start").shape[1] * (2 if diffusion.variance_type.learned else 1)
    _losses(g, diffusion, dtype, output=output[:, :channels]).loss.sum().backward()
    assert output.grad is not None
    return output.grad


def _gradient_room(g: GoldenFile, diffusion: GaussianDiffusion, rounded: Tensor, exact: Tensor) -> np.ndarray:
    """What rounding may do to each element: for t > 0 about what it does to any of ours in that picture, for t = 0 what it does to the
    decoder's bins."""
    x_start, t = _input(g, "x_start", torch.float64), _input(g, "t", torch.float64)
    x_t = gaussian.q_sample(diffusion, x_start=x_start, t=t, noise=_input(g, "noise", torch.float64))
    moments = gaussian.p_moments(diffusion, output=_output(g, diffusion, torch.float64), x_t=x_t, t=t, clip=False)
    share = gradient_slack(x_start, mean=moments.mean, log_scale=0.5 * moments.log_variance, dtype=torch.float32)
    decoder = torch.cat([share, share], dim=1) * exact.abs()
    usual = 2 * (rounded - exact).abs().amax(dim=(1, 2, 3), keepdim=True)
    largest = exact.abs().amax(dim=(1, 2, 3), keepdim=True)
    return (3e-6 * largest + torch.where((t == 0).view(-1, 1, 1, 1), decoder, usual)).numpy()


def test_gradients_of_losses_are_the_recorded_ones(golden: Golden) -> None:
    g = golden.open("diffusion.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"grad\.(\w+)\.(\w+)\.(\w+)", name):
                meta = _meta(golden)
                diffusion = process(meta["full_schedule"], meta["T"], mean=match[2], variance=match[3], loss=match[1])
                rounded, exact = in_both(lambda dtype, d=diffusion: _gradient(g, d, dtype))
                g.check_rounded(name, rounded, exact=exact, rtol=RTOL, atol=_gradient_room(g, diffusion, rounded, exact))


def test_losses_of_shortened_processes_are_the_recorded_ones(golden: Golden) -> None:
    g = golden.open("diffusion.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"respaced(\d+)\.(\w+)\.(loss|mse|vb)", name):
                schedule, num_timesteps, sections = _meta(golden)["respaced"][int(match[1])]
                diffusion = process(schedule, num_timesteps, sections, variance="LEARNED_RANGE", loss=match[2], rescale=True)
                factor = _bound_factor(diffusion, match[3])
                _check(
                    g,
                    name,
                    lambda dtype, d=diffusion, m=match: getattr(_losses(g, d, dtype, t=f"respaced{m[1]}.t"), m[3]),
                    atol=max(1.0, factor) * KL_ATOL,
                    room=_room(g, diffusion, t=f"respaced{match[1]}.t", factor=factor),
                )


def test_the_network_of_a_shortened_process_is_told_the_recorded_timesteps(golden: Golden) -> None:
    g = golden.open("diffusion.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"respaced(\d+)\.model_t", name):
                schedule, num_timesteps, sections = _meta(golden)["respaced"][int(match[1])]
                diffusion = process(schedule, num_timesteps, sections, variance="LEARNED_RANGE", rescale=True)
                told: list[Tensor] = []
                training_losses(
                    diffusion,
                    lambda x, tau, d=diffusion, told=told: (told.append(tau), _output(g, d, torch.float32))[1],
                    x_start=_input(g, "x_start", torch.float32),
                    t=_input(g, f"respaced{match[1]}.t", torch.float32),
                    noise=_input(g, "noise", torch.float32),
                    cond={},
                )
                g.check(name, told[0])
