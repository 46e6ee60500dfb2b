"""Small states of every dtype for checkpoint tests, and a save of them in one call."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from iddpm_ray.checkpoint.saver import AsyncSaver, SaveOutcome

DIGEST = "d" * 64
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool),
]


def state(seed: int) -> dict[str, dict[str, Tensor]]:
    """Nested tensors of every dtype: 0-dim, empty, not contiguous, with NaN payloads; bits are a function of the seed."""
    generator = torch.Generator().manual_seed(seed)

    def bits(*shape: int) -> Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

    typed: dict[str, Tensor] = {}
    for dtype in DTYPES:
        raw = bits(24 * dtype.itemsize)
        typed[str(dtype)] = (raw & 1).bool().view(4, 6) if dtype == torch.bool else raw.view(dtype).view(4, 6)
    odd = {
        "scalar": torch.tensor(float(seed)),
        "step": torch.tensor(seed, dtype=torch.int64),
        "empty": torch.empty(0, 3),
        "transposed": bits(6 * 4).view(torch.float32).view(2, 3).t(),
        "channels_last": torch.randn(2, 3, 4, 4, generator=generator).to(memory_format=torch.channels_last),
        "one": bits(4).view(torch.float32),
    }
    return {"typed": typed, "odd": odd, "model": {"weight": torch.randn(33, 65, generator=generator)}}


def empty_like(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Tensors of the same kind, with other content."""
    return {key: {name: torch.zeros_like(tensor) for name, tensor in group.items()} for key, group in tensors.items()}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal in shape, dtype and every bit (NaNs too)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))


def all_same_bits(a: Mapping[str, Mapping[str, Tensor]], b: Mapping[str, Mapping[str, Tensor]]) -> bool:
    """`same_bits` for nested tensors."""
    return all(same_bits(tensor, b[key][name]) for key, group in a.items() for name, tensor in group.items())


def save_alone(
    run_url: str, step: int, *, attempt: int = 1, seed: int | None = None, before_mark: Callable[[], None] | None = None
) -> SaveOutcome:
    """One process saves `state(seed or step)` and waits."""
    saver = AsyncSaver(run_url, attempt=attempt, group=None, spec_digest=DIGEST, asynchronous=False, before_mark=before_mark)
    saver.start(step, samples_seen=step * 10, tensors=state(step if seed is None else seed), extra_files={"state.json": b'{"a": 1}'})
    outcome = saver.close()
    assert outcome is not None
    return outcome
