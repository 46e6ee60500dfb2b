"""Reading statistics: over all ranks, over the interval since the collector's own last update."""

import re

import torch

from iddpm_ray.stats import moments
from iddpm_ray.stats.agree import Exchange, agree, gathered
from iddpm_ray.stats.moments import Summary
from iddpm_ray.stats.report import Statistics, current
from iddpm_ray.stats.table import Table


class Collector:
    """Sees what was reported after it was made, under names that match; several look at the same reports, each in its own rhythm.

    Args:
        regex: which names, matched whole.
        keep_previous: a name with nothing reported in an interval keeps its previous numbers, rather than having none.
        statistics: whose; those in use when the collector is made, if not given.
    """

    def __init__(self, regex: str = ".*", *, keep_previous: bool = True, statistics: Statistics | None = None) -> None:
        self._pattern = re.compile(regex)
        self._keep_previous = keep_previous
        self._statistics = current() if statistics is None else statistics
        self._books = self._statistics.attach(regex)

    def update(self, exchange: Exchange | None = None) -> None:
        """Ends the interval: after it, all ranks answer with the same numbers, merged in rank order.

        A collective that every rank must enter: a header of fixed size, the names only where ranks know different ones, the moments.

        Args:
            exchange: an all-gather; None for a single process.
        """
        device = self._statistics.device
        self._statistics.close_segment()
        known = [name for name in self._statistics.names if self._pattern.fullmatch(name)]
        names = agree(known, exchange, subject=f"collector {self._pattern.pattern}", device=device)
        self._statistics.register(names)
        rows = self._books.interval.take(names)
        if names:
            rows = moments.fold(gathered(rows, exchange, device=device))
        self._books.interval = Table()
        if self._keep_previous:
            rows = torch.where(moments.something(rows)[:, None], rows, self._books.latest.take(names))
        self._books.latest = Table()
        self._books.latest.put(names, rows)

    def names(self) -> list[str]:
        """Every matching name known to any rank at the last update, sorted."""
        return self._books.latest.names()

    def summary(self, name: str) -> Summary:
        """All numbers of one name over the interval that the last update ended; of a name never reported, those of no values."""
        return moments.summary(self._books.latest.take([name])[0].tolist())

    def num(self, name: str) -> int:
        """How many finite values were reported."""
        return self.summary(name).num

    def mean(self, name: str) -> float:
        """Their mean; NaN for none."""
        return self.summary(name).mean

    def std(self, name: str) -> float:
        """Their standard deviation; 0 for one value, NaN for none."""
        return self.summary(name).std

    def minimum(self, name: str) -> float:
        """The least; NaN for none."""
        return self.summary(name).minimum

    def maximum(self, name: str) -> float:
        """The greatest; NaN for none."""
        return self.summary(name).maximum

    def num_nonfinite(self, name: str) -> int:
        """How many infinities and NaNs were reported; they enter no other number."""
        return self.summary(name).num_nonfinite

    def __getitem__(self, name: str) -> float:
        """The mean."""
        return self.mean(name)

    def as_dict(self) -> dict[str, dict[str, float]]:
        """{name: {num, mean, std, minimum, maximum, num_nonfinite}} of every name."""
        return {name: dict(vars(found)) for name, found in self._summaries().items()}

    def means(self) -> dict[str, float]:
        """{name: mean} of the names that have one."""
        return {name: found.mean for name, found in self._summaries().items() if found.num}

    def _summaries(self) -> dict[str, Summary]:
        names = self.names()
        return {name: moments.summary(row) for name, row in zip(names, self._books.latest.take(names).tolist(), strict=True)}
