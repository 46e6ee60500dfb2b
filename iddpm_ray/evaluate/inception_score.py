"""The Inception Score (Salimans et al. 2016): how sure a classifier is of each picture, and how many classes it sees in all."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SPLITS = 10


@dataclass(frozen=True)
class SplitScore:
    """Mean and standard deviation over the splits of the pictures."""

    mean: float
    deviation: float
    splits: int


def inception_score(parts: Iterable[NDArray[np.floating]], *, count: int) -> SplitScore:
    """exp E KL(p(y given x) || p(y)) in each of ten splits of consecutive pictures (fewer pictures, fewer splits).

    Args:
        parts: logits [n, K] in picture order.
        count: pictures in all.
    """
    splits = min(SPLITS, count)
    ends = [count * (split + 1) // splits for split in range(splits)]
    seen, entropy, sums, numbers = 0, np.zeros(splits), None, np.zeros(splits)
    for logits in parts:
        values = logits.astype(np.float64)
        log_p = values - values.max(axis=1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
        p = np.exp(log_p)
        sums = np.zeros((splits, p.shape[1])) if sums is None else sums
        of = np.searchsorted(ends, np.arange(seen, seen + len(p)), side="right")
        np.add.at(entropy, of, (p * log_p).sum(axis=1))
        np.add.at(sums, of, p)
        np.add.at(numbers, of, 1)
        seen += len(p)
    assert seen == count
    assert sums is not None
    marginal = sums / numbers[:, None]
    log_marginal = np.log(marginal, out=np.zeros_like(marginal), where=marginal > 0)
    scores = np.exp(entropy / numbers - (marginal * log_marginal).sum(axis=1))
    return SplitScore(float(scores.mean()), float(scores.std()), splits)
