"""Section `diffusion`: the process, what the network predicts of it, and the loss."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, WithJsonSchema

from iddpm_ray.spec.mark import Section, identity


def _sections_as_text(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):  # a list, as the command line has it
        return ",".join(part.strip() for part in value[1:-1].split(","))
    if isinstance(value, list | tuple) and value and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return ",".join(map(str, value))
    return value


_SCHEMA = {"type": ["string", "integer", "array"], "items": {"type": "integer"}, "examples": ["250", "10,15,20", "ddim50"]}

Respacing = Annotated[str, BeforeValidator(_sections_as_text), WithJsonSchema(_SCHEMA)]
"""`250`, `10,15,20` (also as a list) or `ddim50`; empty for every timestep."""


class DiffusionSpec(Section):
    """The process, what the network predicts of it, and the loss (Nichol and Dhariwal 2021)."""

    timesteps: int = identity(1000, "timesteps of the whole process, T", unit="timesteps", ge=1, le=1_000_000)
    schedule: Literal["linear", "cosine"] = identity("linear", "betas over timesteps: linear (Ho et al. 2020) or cosine", unit="choice")
    respacing: Respacing = identity("", 'train on fewer timesteps: "250", "10,15,20" a section each, "ddim50"; empty: all', unit="text")
    predicts: Literal["eps", "x_start", "previous_x"] = identity(
        "eps", "what the network predicts: the noise, the data, or the step before", unit="choice"
    )
    variance: Literal["fixed_small", "fixed_large", "learned", "learned_range"] = identity(
        "fixed_large", "variance of the reverse process; learned_range is the paper's interpolation", unit="choice"
    )
    loss: Literal["mse", "rescaled_mse", "kl", "rescaled_kl"] = identity(
        "rescaled_mse",
        "rescaled_mse: L_simple, or L_hybrid with a learned variance; rescaled_kl: L_vlb; mse, kl: without the factors",
        unit="choice",
    )
    rescale_timesteps: bool = identity(True, "the network sees t as if there were 1000 timesteps", unit="yes or no")
