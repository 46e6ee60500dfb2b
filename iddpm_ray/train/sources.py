"""Where the loop's pictures come from; the loop does not care whether Ray Data or a thread decodes them."""

from collections.abc import Generator, Iterator
from typing import Protocol

from iddpm_ray.data.batch import Batch


class Sources(Protocol):
    """The data of a run as one rank sees it."""

    @property
    def num_rows(self) -> int:
        """Training rows of an epoch."""
        ...

    @property
    def num_classes(self) -> int | None:
        """Classes of the label map, or None."""
        ...

    def batches(self, *, start_step: int, stop_step: int | None) -> Generator[Batch, None, None]:
        """This rank's slice of every step from `start_step` on."""
        ...

    def validation(self) -> Iterator[Batch]:
        """This rank's part of the held-out rows, in row order; equal pieces on every pass."""
        ...
