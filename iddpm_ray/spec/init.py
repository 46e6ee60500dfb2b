"""Section `init`: weights to begin from, other than the seed's."""

from typing import Annotated, Literal

from pydantic import Field

from iddpm_ray.spec.mark import AsTuple, Section, identity

Pattern = Annotated[str, Field(min_length=1)]


class InitSpec(Section):
    """Weights to begin from, other than the seed's."""

    from_: str | None = identity(
        None,
        "run, checkpoint, .pt, .safetensors, folder of diffusers or hf://org/name@revision to begin with; null: the seed",
        unit="URL",
        alias="from",
    )
    weights: Literal["raw"] | Annotated[float, Field(ge=0, lt=1)] = identity(
        "raw", "which weights of it: raw, or one of its EMA rates", unit="choice"
    )
    only: Annotated[tuple[Pattern, ...], AsTuple] = identity(
        (), "take only parameters whose names match one of these glob patterns; empty: all", unit="patterns"
    )
    skip: Annotated[tuple[Pattern, ...], AsTuple] = identity(
        (), "leave out parameters whose names match one of these glob patterns", unit="patterns"
    )
    sha256: str | None = identity(None, "checksum that the file must have", unit="hexadecimal", pattern=r"^[0-9a-f]{64}$")
