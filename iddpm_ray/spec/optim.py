"""Section `optim`: AdamW, its learning rate over the run, averages of the weights, and the arithmetic."""

from typing import Annotated, Literal

from pydantic import Field

from iddpm_ray.spec.duration import Duration, Interval, Span
from iddpm_ray.spec.mark import AsTuple, Section, identity, may_change

Rate = Annotated[float, Field(ge=0, lt=1)]


class OptimSpec(Section):
    """AdamW, its learning rate over the run, averages of the weights, and the arithmetic."""

    lr: float = may_change(1e-4, "learning rate before warm-up and annealing", unit="per step", gt=0)
    weight_decay: float = may_change(0.0, "decoupled weight decay of AdamW", unit="per step, times lr", ge=0)
    betas: Annotated[tuple[Rate, Rate], AsTuple] = identity((0.9, 0.999), "decay of AdamW's two moments", unit="per step")
    adam_eps: float = identity(1e-8, "AdamW's epsilon", unit="gradient", gt=0)
    schedule: Literal["constant", "linear", "cosine"] = identity(
        "constant", "learning rate over the run: how it falls to 0 over anneal", unit="choice"
    )
    anneal: Interval | None = identity(
        None, "length over which a linear or cosine learning rate falls to 0, whatever train.duration is", unit="duration"
    )
    warmup: Span = identity(Duration(0.0, "steps"), "length over which the learning rate rises from 0", unit="duration")
    clip_norm: float | None = may_change(None, "gradients with a larger L2 norm are scaled down to it; null: never", unit="gradient", gt=0)
    ema_rates: Annotated[tuple[Rate, ...], AsTuple] = identity(
        (0.9999,), "exponential moving averages of the weights to keep", unit="per step"
    )
    precision: Literal["float32", "bf16", "fp16"] = identity(
        "float32", "arithmetic of the network; weights, normalisation and loss stay float32", unit="choice"
    )
    fp16_scale_growth: float = identity(0.001, "growth of the loss scale after a good step, with fp16", unit="log2 per step", gt=0)
    max_nonfinite_steps: int = may_change(10, "skipped steps in a row after which the run gives up", unit="steps", ge=1)
    microbatch: Annotated[int, Field(ge=1)] | Literal["auto"] | None = may_change(
        None, "samples a backward pass; auto: found at start; null: a worker's whole slice", unit="samples"
    )
    matmul_precision: Literal["highest", "high", "medium"] = may_change(
        "highest", "float32 products: highest is exact, high is TF32, medium bfloat16 (where the GPU has them)", unit="choice"
    )
    compile: bool = may_change(False, "compile the network with torch.compile", unit="yes or no")
    compile_cache: str | None = may_change(
        None, "directory that keeps compiled code for later starts; null: the run's own", unit="URL", min_length=1
    )
    channels_last: bool = may_change(False, "keep channels innermost in memory", unit="yes or no")
    deterministic: bool = may_change(
        True, "only deterministic GPU kernels, so that a resume is bitwise; costs some speed", unit="yes or no"
    )
