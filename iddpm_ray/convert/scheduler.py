"""diffusers' `DDPMScheduler`: the process of a spec as its configuration, and a configuration as the spec's fields."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from iddpm_ray import build
from iddpm_ray.convert.diffusers import VERSION
from iddpm_ray.diffusion.gaussian import GaussianDiffusion, model_timesteps
from iddpm_ray.diffusion.schedule import make_betas
from iddpm_ray.errors import CheckpointError
from iddpm_ray.spec.diffusion import DiffusionSpec

PREDICTS = {"eps": "epsilon", "x_start": "sample"}
VARIANCES = ("fixed_small", "fixed_large", "learned_range")


def process_of(spec: DiffusionSpec, *, respacing: str | None) -> GaussianDiffusion:
    """The process that is exported: that of training, or the same shortened."""
    return build.diffusion(spec, respacing=respacing)


def scheduler_config(spec: DiffusionSpec, *, respacing: str | None = None) -> dict[str, Any]:
    """The configuration of a DDPMScheduler that draws by the same process.

    Args:
        respacing: export the process shortened so; None for that of training.

    Raises:
        CheckpointError: diffusers cannot express it; gives every reason.
    """
    process = process_of(spec, respacing=respacing)
    reasons: list[str] = []
    fix = "export it as .pt or .safetensors"
    if spec.predicts not in PREDICTS:
        reasons.append(f"diffusion.predicts={spec.predicts}: DDPMScheduler has no such prediction")
    if spec.variance not in VARIANCES:
        reasons.append(f"diffusion.variance={spec.variance}: DDPMScheduler takes a learned variance for itself, not for its logarithm")
    told = model_timesteps(process, torch.arange(process.num_timesteps)).double()
    if not torch.allclose(told, torch.arange(process.num_timesteps).double(), rtol=0, atol=1e-3):
        reasons.append(
            f"the network is told {told[1]:g}, {told[2]:g} ... {told[-1]:g} for timesteps 1, 2 ... {process.num_timesteps - 1}"
            if process.num_timesteps > 2
            else "the network is told other numbers than the index of the timestep"
        )
        reasons[-1] += " (diffusion.rescale_timesteps, diffusion.respacing); diffusers tells it the index"
        stride = spec.timesteps / 1000
        if spec.rescale_timesteps and stride == int(stride) and not spec.respacing:
            fix = f"--respacing ddim1000 exports every timestep of {stride:g}, for which the network is told 0 to 999; or " + fix
    if reasons:
        raise CheckpointError("diffusers cannot express this process: " + "; ".join(reasons), fix=fix)
    shortened = process.num_timesteps != spec.timesteps
    scale = 1000 / spec.timesteps
    return {
        "_class_name": "DDPMScheduler",
        "_diffusers_version": VERSION,
        "num_train_timesteps": process.num_timesteps,
        "beta_start": 1e-4 * scale,
        "beta_end": 0.02 * scale,
        "beta_schedule": "linear" if shortened or spec.schedule == "linear" else "squaredcos_cap_v2",
        "trained_betas": process.tables.betas.tolist() if shortened else None,
        "variance_type": spec.variance,
        "prediction_type": PREDICTS[spec.predicts],
        "clip_sample": True,
        "clip_sample_range": 1.0,
        "thresholding": False,
        "timestep_spacing": "linspace",  # the ends included, as the spec's respacing by a number
        "steps_offset": 0,
        "rescale_betas_zero_snr": False,
    }


def fields_of_scheduler(config: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    """Spec fields of a scheduler of theirs, by dotted path; `diffusion.variance` only where the configuration has it.

    Raises:
        CheckpointError: a process that no spec describes; gives every reason.
    """
    has = {
        "num_train_timesteps": 1000,
        "beta_start": 1e-4,
        "beta_end": 0.02,
        "beta_schedule": "linear",
        "trained_betas": None,
        "prediction_type": "epsilon",
        "rescale_betas_zero_snr": False,
        **config,
    }
    timesteps = has["num_train_timesteps"]
    reasons: list[str] = []
    schedule = _schedule(has, timesteps)
    if schedule is None:
        said = "trained_betas" if has["trained_betas"] is not None else f"beta_schedule={has['beta_schedule']}"
        reasons.append(f"{said}, {has['beta_start']:g} to {has['beta_end']:g}: neither the linear nor the cosine schedule of a spec")
    if has["rescale_betas_zero_snr"]:
        reasons.append("rescale_betas_zero_snr: the schedules here keep some of the picture to the end")
    predicts = {theirs: ours for ours, theirs in PREDICTS.items()}.get(has["prediction_type"])
    if predicts is None:
        reasons.append(f"prediction_type={has['prediction_type']}: networks here predict the noise or the picture")
    variance = has.get("variance_type", "fixed_small" if has.get("_class_name") == "DDPMScheduler" else None)
    if variance == "learned":
        reasons.append("variance_type=learned: its network says the variance itself, networks here its logarithm")
    if reasons:
        raise CheckpointError(f"{name} is no process of this package: " + "; ".join(reasons), fix="there is no conversion for it")
    fields: dict[str, Any] = {
        "diffusion.timesteps": timesteps,
        "diffusion.schedule": schedule,
        "diffusion.predicts": predicts,
        "diffusion.rescale_timesteps": False,
    }
    if variance is not None:
        fields["diffusion.variance"] = str(variance).removesuffix("_log")
    return fields


def remarks_of_scheduler(config: Mapping[str, Any], *, name: str) -> tuple[str, ...]:
    """What a scheduler of theirs does to predicted pictures and no spec says, in words."""
    usual = {"thresholding": False, "clip_sample": True, "clip_sample_range": 1.0}
    other = [f"{key}={config[key]}" for key, value in usual.items() if config.get(key, value) != value]
    clamped = "predictions of the picture are clamped to -1 .. 1 here, so it draws other pictures there"
    return (f"{name} has {', '.join(other)}: {clamped}",) if other else ()


def _schedule(has: Mapping[str, Any], timesteps: int) -> str | None:
    if has["trained_betas"] is not None:
        for name in ("linear", "cosine"):
            if np.shape(has["trained_betas"]) == (timesteps,) and np.allclose(
                has["trained_betas"], make_betas(name, num_timesteps=timesteps), rtol=1e-5
            ):
                return name
        return None
    scale = 1000 / timesteps
    ends = math.isclose(has["beta_start"], 1e-4 * scale, rel_tol=1e-6) and math.isclose(has["beta_end"], 0.02 * scale, rel_tol=1e-6)
    return "linear" if has["beta_schedule"] == "linear" and ends else "cosine" if has["beta_schedule"] == "squaredcos_cap_v2" else None
