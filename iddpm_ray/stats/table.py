"""Named rows of moments on the host."""

from collections.abc import Sequence

import torch
from torch import Tensor

from iddpm_ray.stats import moments


class Table:
    """A row of moments a name; a name never seen has the row of no values."""

    def __init__(self) -> None:
        self._place: dict[str, int] = {}
        self._rows = moments.empty(0)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._place)

    def take(self, names: Sequence[str]) -> Tensor:
        """The rows of these names, in their order: float64 [n, 6]."""
        padded = torch.cat((self._rows, moments.empty(1)))
        return padded[[self._place.get(name, -1) for name in names]].reshape(len(names), moments.WIDTH)

    def merge(self, names: Sequence[str], rows: Tensor) -> None:
        """Merges rows [n, 6] of n different names into theirs."""
        self.put(names, moments.merge(self.take(names), rows))

    def put(self, names: Sequence[str], rows: Tensor) -> None:
        """Sets the rows of n different names to [n, 6]."""
        for name in names:
            self._place.setdefault(name, len(self._place))
        self._rows = torch.cat((self._rows, moments.empty(len(self._place) - self._rows.shape[0])))
        self._rows[[self._place[name] for name in names]] = rows
