"""Where the loop's pictures come from; the loop does not care whether Ray Data or threads of its own decode them."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from iddpm_ray.data.batch import Batch
from iddpm_ray.data.blocks import Share
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.local import held_out, local_stream, validation_batches
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.spec.spec import JobSpec


class Sources(Protocol):
    """The data of a run as one rank sees it."""

    @property
    def num_rows(self) -> int:
        """Training rows of an epoch."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """The text of each class; () without labels."""
        ...

    @property
    def num_validation(self) -> int:
        """Held-out rows that a validation looks at."""
        ...

    def batches(self, *, start_step: int, stop_step: int | None) -> Generator[Batch, None, None]:
        """This rank's slice of every step from `start_step` on."""
        ...

    def validation(self, own: slice, *, size: int) -> Iterator[Batch]:
        """The held-out rows of that slice, in row order, `size` at a time."""
        ...

    def pictures(self, own: slice) -> Batch:
        """Rows of that slice of the manifest, the same on every call: what a super-resolution preview enlarges."""
        ...


@dataclass(frozen=True)
class LocalSources:
    """Pictures decoded by threads of this process."""

    manifest: Manifest
    share: Share
    validate_rows: int
    tasks: int = 1
    prefetch_blocks: int = 2

    @classmethod
    def of(cls, spec: JobSpec, manifest: Manifest, *, rank: int, world_size: int) -> "LocalSources":
        """The sources that a spec describes."""
        tasks = max(1, spec.data.tasks // world_size)
        share = share_of(spec, rank=rank, world_size=world_size)
        return cls(manifest, share, spec.log.validate_rows, tasks, spec.data.prefetch_blocks)

    @property
    def num_rows(self) -> int:
        """Training rows of an epoch."""
        return len(self.manifest.training_rows)

    @property
    def classes(self) -> tuple[str, ...]:
        """The text of each class."""
        return self.manifest.classes

    @cached_property
    def _held_out(self) -> NDArray[np.int64]:
        return held_out(self.manifest, limit=self.validate_rows, seed=self.share.seed)

    @property
    def num_validation(self) -> int:
        """Held-out rows that a validation looks at."""
        return len(self._held_out)

    def batches(self, *, start_step: int, stop_step: int | None) -> Generator[Batch, None, None]:
        """This rank's slice of every step from `start_step` on."""
        return local_stream(
            self.manifest, self.share, start_step=start_step, stop_step=stop_step, tasks=self.tasks, prefetch_blocks=self.prefetch_blocks
        )

    def validation(self, own: slice, *, size: int) -> Iterator[Batch]:
        """The held-out rows of that slice, in row order, `size` at a time."""
        return self._load(self._held_out[own], size=size)

    def pictures(self, own: slice) -> Batch:
        """Rows of that slice of the manifest; beyond its end it begins again."""
        rows = np.arange(own.start, own.stop) % self.manifest.num_rows
        return next(iter(self._load(rows, size=max(1, len(rows)))))

    def _load(self, rows: NDArray[np.int64], *, size: int) -> Generator[Batch, None, None]:
        share = self.share
        return validation_batches(self.manifest, rows, size=size, decoding=share.decoding, on_error=share.on_error, rank=share.rank)


def decoding_of(spec: JobSpec) -> Decoding:
    """What pixels a run wants."""
    height, width = spec.data.height_width()
    return Decoding(height, width, channels=spec.data.channels, background=spec.data.background, max_pixels=spec.data.max_pixels)


def share_of(spec: JobSpec, *, rank: int, world_size: int) -> Share:
    """A rank's part of the data."""
    return Share(
        seed=spec.run.seed,
        global_batch=spec.train.global_batch,
        decoding=decoding_of(spec),
        rank=rank,
        world_size=world_size,
        on_error=spec.data.on_error,
        steps_per_block=spec.data.steps_per_block,
    )
