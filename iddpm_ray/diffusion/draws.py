"""Randomness without state: every draw is a function of (seed, purpose, position, element).

The generator is Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a keyed bijection on 128-bit
counters. The key is the seed; the counter holds position, purpose and block of elements side by side, so two different draws can never
meet on one counter. Nothing is ever advanced, so rank, world size, microbatch and restart cannot change a draw.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
# How many numbers are made at once: on a CPU what stays in cache and below the allocator's page-fault threshold, elsewhere what bounds
# the temporaries (12 bytes a number) without costing launches. The bits do not depend on it.
_CHUNK_CPU = 1 << 18
_CHUNK_DEVICE = 1 << 26


class Purpose(IntEnum):
    """What a draw is for; part of the counter, so the numbers are fixed for ever."""

    NOISE = 0
    TIMESTEP = 1
    FLIP = 2
    LABEL_DROP = 3
    ORDER = 4
    SAMPLE_START = 5
    SAMPLE_NOISE = 6
    VALIDATION = 7
    SPLIT = 8
    INIT = 9
    CONDITION_NOISE = 10
    UPSAMPLE_START = 11
    UPSAMPLE_NOISE = 12
    CONDITION_LEVEL = 13
    UPSAMPLE_CONDITION = 14
    LIKELIHOOD_NOISE = 15
    STRATUM_TIMESTEP = 16
    STRATUM_NOISE = 17
    SUBSET = 18
    BOOTSTRAP = 19


@dataclass(frozen=True)
class Words:
    """Four tensors of 32-bit words kept in int64, of shapes that broadcast with each other."""

    w0: Tensor
    w1: Tensor
    w2: Tensor
    w3: Tensor


def philox(counter: Words, *, key: tuple[int, int]) -> Words:
    """Philox4x32-10 of every counter under one key of two 32-bit words.

    Integer arithmetic only, so the bits are the same on every device. Products of two words need 64 bits: int64 multiplication wraps
    modulo 2^64, and the arithmetic shift's sign bits are masked away.
    """
    c0, c1, c2, c3 = counter.w0, counter.w1, counter.w2, counter.w3
    key0, key1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        # c1 and c3 carry whole products: only their low words survive the mask of the next round.
        c0, c1 = _high_word(product1, mixed_with=c1, key=key0), product1
        c2, c3 = _high_word(product0, mixed_with=c3, key=key1), product0
        key0, key1 = (key0 + _KEY_STEPS[0]) & _WORD, (key1 + _KEY_STEPS[1]) & _WORD
    return Words(c0, c1 & _WORD, c2, c3 & _WORD)


def uniforms(seed: int, purpose: Purpose, positions: Tensor, count: int = 1) -> Tensor:
    """`count` uniforms in [0, 1) a position, each a multiple of 2^-53; the same bits on every device.

    Args:
        seed: the run's seed, taken modulo 2^64.
        purpose: what the numbers are for.
        positions: int64 [N], places in the endless sample sequence, any order, any device.
        count: how many a position; a longer row begins with the shorter one.

    Returns:
        float64 [N, count] on the device of `positions`.
    """
    words = _words(seed, purpose, positions, num_blocks=(count + 1) // 2)
    pairs = torch.stack((_fraction(words.w0, words.w1), _fraction(words.w2, words.w3)), dim=-1)
    return pairs.flatten(1)[:, :count]


def normals(seed: int, purpose: Purpose, positions: Tensor, shape: Sequence[int]) -> Tensor:
    """Standard normals of the given shape for every position, by the method of Box and Muller (1958).

    The radius comes from a uniform of at least 2^-33, so values reach 6.7 and are never infinite. The words are the same on every
    device; log, sine and cosine make the values agree to a few units in the last place.

    Args:
        seed: the run's seed, taken modulo 2^64.
        purpose: what the numbers are for.
        positions: int64 [N], places in the endless sample sequence, any order, any device.
        shape: shape of one sample, such as (C, H, W); element k of its flattened form is the same number whatever the shape.

    Returns:
        float32 [N, *shape] on the device of `positions`.
    """
    num_elements = math.prod(shape)
    num_blocks = (num_elements + 3) // 4
    out = torch.empty((positions.shape[0], num_blocks, 4), dtype=torch.float32, device=positions.device)
    chunk = _CHUNK_CPU if positions.device.type == "cpu" else _CHUNK_DEVICE
    rows = max(1, chunk // max(1, 4 * num_blocks))
    for begin in range(0, positions.shape[0], rows):
        words = _words(seed, purpose, positions[begin : begin + rows], num_blocks=num_blocks)
        part = out[begin : begin + rows]
        _box_muller(words.w0, words.w1, out=part[..., :2])
        _box_muller(words.w2, words.w3, out=part[..., 2:])
    return out.flatten(1)[:, :num_elements].reshape(positions.shape[0], *shape)


def _words(seed: int, purpose: Purpose, positions: Tensor, *, num_blocks: int) -> Words:
    """Four words for every (position, block): [N, num_blocks] each."""
    if positions.dtype != torch.int64 or positions.dim() != 1:
        raise ValueError(f"positions must be int64 [N], not {positions.dtype} {list(positions.shape)}")
    counter = Words(
        torch.arange(num_blocks, device=positions.device)[None, :],
        torch.full((1, 1), int(purpose), dtype=torch.int64, device=positions.device),
        (positions & _WORD)[:, None],
        ((positions >> 32) & _WORD)[:, None],
    )
    return philox(counter, key=(seed & _WORD, (seed >> 32) & _WORD))


def _high_word(product: Tensor, *, mixed_with: Tensor, key: int) -> Tensor:
    """The high word of each product, xor another word, xor the round key."""
    high = product >> 32
    # In place once the first rounds have broadcast everything to one shape: memory traffic is what this costs on a CPU.
    high = high.bitwise_xor_(mixed_with) if high.shape == mixed_with.shape else high ^ mixed_with
    return high.bitwise_xor_(key).bitwise_and_(_WORD)


def _fraction(first: Tensor, second: Tensor) -> Tensor:
    """The leading 27 bits of one word and 26 of another as a float64 in [0, 1): exact at every operation."""
    return ((first >> 5) * (1 << 26) + (second >> 6)).to(torch.float64) * 2.0**-53


def _box_muller(radius_word: Tensor, angle_word: Tensor, *, out: Tensor) -> None:
    """Two independent standard normals of two words, into out [..., 2]."""
    uniform = radius_word.to(torch.float32).mul_(2.0**-32).add_(2.0**-33)
    radius = uniform.log_().mul_(-2.0).sqrt_()
    angle = angle_word.to(torch.float32).mul_(2.0 * math.pi / 2.0**32)
    torch.mul(radius, torch.cos(angle), out=out[..., 0])
    torch.mul(radius, angle.sin_(), out=out[..., 1])
