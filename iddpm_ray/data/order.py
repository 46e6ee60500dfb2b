"""Which row of the data set stands at which position of the endless sample sequence: a pure function of (seed, position).

Epoch e is positions [e * num_rows, (e + 1) * num_rows), a permutation of the rows keyed by (seed, e): an alternating Feistel network
(Luby and Rackoff 1988) on the smallest sufficient number of bits, with cycle walking (Black and Rogaway 2002) to stay inside the rows.
Any position is found at once, in constant memory, so a run resumes anywhere at no cost. All arithmetic is on unsigned 64-bit integers and
belongs to this file, so the order can never change with a library.
"""

import numpy as np
from numpy.typing import NDArray

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 12
# A network on fewer bits cannot reach most permutations; walking costs 2^bits / num_rows rounds, nothing for so few rows.
_FEWEST_BITS = 6


def rows(seed: int, positions: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    """The row at each position, 0 <= row < num_rows; within an epoch every row comes exactly once.

    Args:
        seed: the run's seed, taken modulo 2^64.
        positions: int64 [N], not negative, any order.
        num_rows: training rows of the data set.
    """
    assert num_rows > 0
    epochs, places = np.divmod(positions.astype(np.int64), np.int64(num_rows))
    bits = max(_FEWEST_BITS, int(num_rows - 1).bit_length())
    keys = _mix(_mix(np.full(1, (seed + _GOLDEN) % 2**64, dtype=np.uint64)) ^ epochs.astype(np.uint64))
    out = _permute(places.astype(np.uint64), keys, bits=bits)
    outside = np.flatnonzero(out >= num_rows)
    while outside.size:
        out[outside] = _permute(out[outside], keys[outside], bits=bits)
        outside = outside[out[outside] >= num_rows]
    return out.astype(np.int64)


def slice_of(global_batch: int, *, rank: int, world_size: int) -> slice:
    """A rank's place in every global batch: contiguous in rank order, lengths differ by at most one."""
    return slice(global_batch * rank // world_size, global_batch * (rank + 1) // world_size)


def positions(first_step: int, *, global_batch: int, rank: int = 0, world_size: int = 1, num_steps: int = 1) -> NDArray[np.int64]:
    """Positions of a rank's samples in `num_steps` consecutive steps, in order.

    Args:
        first_step: updates completed before; its global batch is positions [first_step * G, (first_step + 1) * G).
    """
    own = slice_of(global_batch, rank=rank, world_size=world_size)
    starts = np.arange(first_step, first_step + num_steps, dtype=np.int64) * global_batch
    return (starts[:, None] + np.arange(own.start, own.stop, dtype=np.int64)[None, :]).reshape(-1)


def _permute(values: NDArray[np.uint64], keys: NDArray[np.uint64], *, bits: int) -> NDArray[np.uint64]:
    """A keyed bijection of [0, 2^bits): halves take turns to be changed by a hash of the other one."""
    low_bits = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64((1 << (bits // 2)) - 1), np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = values & low_mask, values >> low_bits
    for turn in range(_ROUNDS):
        key = keys + np.uint64((turn + 1) * _GOLDEN % 2**64)
        if turn % 2:
            low = low ^ (_mix(key ^ _mix(high)) & low_mask)
        else:
            high = high ^ (_mix(key ^ _mix(low)) & high_mask)
    return (high << low_bits) | low


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit words that spreads every bit: variant 13 of Stafford's finaliser, as in SplitMix64 (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))
