"""KL divergence, approximate cdf and binned log-likelihood against the recorded ones, in float64 and in float32."""

import numpy as np
import torch
from binning import slack
from golden import Golden, GoldenFile
from torch import Tensor

from iddpm_ray.diffusion.likelihood import approximate_normal_cdf, discretized_log_likelihood, mean_over_pixels, normal_kl


def _input(g: GoldenFile, name: str) -> Tensor:
    return torch.from_numpy(g.input(name))


def _check_both(g: GoldenFile, name: str, *, exact: Tensor, rounded: Tensor) -> None:
    g.check(f"{name}.f64", exact, rtol=1e-10, atol=1e-14)
    g.check_rounded(f"{name}.f32", rounded, exact=exact, rtol=1e-5, atol=2e-7)


def test_kl_is_the_recorded_one(golden: Golden) -> None:
    g = golden.open("likelihood.npz")
    if "kl.f64" in g.names():
        mean1, logvar1, mean2, logvar2 = (_input(g, f"kl.{name}") for name in ("mean1", "logvar1", "mean2", "logvar2"))
        with g.collecting():
            exact = normal_kl(mean1=mean1, log_variance1=logvar1, mean2=mean2, log_variance2=logvar2)
            rounded = normal_kl(mean1=mean1.float(), log_variance1=logvar1.float(), mean2=mean2.float(), log_variance2=logvar2.float())
            _check_both(g, "kl", exact=exact, rounded=rounded)
            zero = torch.zeros((), dtype=torch.float64)
            standard = normal_kl(mean1=mean1, log_variance1=logvar1, mean2=zero, log_variance2=zero)
            g.check("kl.vs_standard.f64", standard, rtol=1e-10, atol=1e-14)


def test_cdf_is_the_recorded_one(golden: Golden) -> None:
    g = golden.open("likelihood.npz")
    if "cdf.x" in g.names():
        x = _input(g, "cdf.x")
        with g.collecting():
            _check_both(g, "cdf", exact=approximate_normal_cdf(x), rounded=approximate_normal_cdf(x.float()))


def test_binned_log_likelihood_is_the_recorded_one(golden: Golden) -> None:
    g = golden.open("likelihood.npz")
    if "dgll.x" in g.names():
        x, mean, log_scale = torch.meshgrid(*(_input(g, f"dgll.{axis}") for axis in ("x", "means", "log_scales")), indexing="ij")
        with g.collecting():
            exact = discretized_log_likelihood(x, mean=mean, log_scale=log_scale)
            room = slack(x, mean=mean, log_scale=log_scale, dtype=torch.float64).numpy()
            g.check("dgll.f64", exact, rtol=1e-10, atol=1e-14 + room)
            rounded = discretized_log_likelihood(x.float(), mean=mean.float(), log_scale=log_scale.float())
            g.check_rounded("dgll.f32", _nearest(rounded, g.arrays["dgll.f32"]), exact=exact, rtol=1e-5, atol=2e-7)


def _nearest(rounded: Tensor, recorded: np.ndarray) -> Tensor:
    """Log-likelihoods of float32, moved to that of a neighbouring probability where the recorded one is nearer to it.

    float32 knows probabilities between two cdfs near 0 or 1 as multiples of 2^-25, and programs differ by a few of them.
    """
    multiples = torch.arange(-4, 5, dtype=torch.float64) * 2.0**-25
    neighbours = (rounded.double().exp()[..., None] + multiples).clamp(min=1e-12).log()
    neighbours[..., 4] = rounded.double()
    best = (neighbours - torch.from_numpy(recorded).double()[..., None]).abs().argmin(dim=-1, keepdim=True)
    return neighbours.gather(-1, best)[..., 0].to(rounded.dtype)


def test_mean_over_pixels_is_the_recorded_one(golden: Golden) -> None:
    g = golden.open("likelihood.npz")
    if "mean_flat.in" in g.names():
        g.check("mean_flat.out", mean_over_pixels(_input(g, "mean_flat.in")), rtol=1e-5, atol=1e-7)
