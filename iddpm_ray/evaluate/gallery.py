"""Pictures by number, wherever they come from: drawn from a run, read out of an npz, or rows of a data set."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.image import Decoding
from iddpm_ray.evaluate.chunks import Chunks, Work
from iddpm_ray.evaluate.drawing import Arithmetic
from iddpm_ray.evaluate.features import FeatureBatch, FeatureFile
from iddpm_ray.evaluate.generate import Job, Painter
from iddpm_ray.evaluate.measured import load_rows
from iddpm_ray.evaluate.npz import PictureFile, decode, encode
from iddpm_ray.evaluate.rows import Side, choose_rows

Look = Callable[[range], Tensor]
"""Pictures [N, C, H, W] uint8 of consecutive numbers."""

_AT_ONCE = 64  # pictures that a feature network sees together


class Gallery(Protocol):
    """Numbered pictures; small, so that every worker can be sent one and open it."""

    @property
    def count(self) -> int:
        """How many."""
        ...

    @property
    def together(self) -> int:
        """How many can only be had at once; work is cut between those."""
        ...

    def settings(self) -> dict[str, object]:
        """What a job must remember of them."""
        ...

    def open(self) -> Look:
        """Loads what looking at them needs."""
        ...


@dataclass(frozen=True, eq=False)
class DrawnGallery:
    """Samples of a run, drawn as jobs/sample.py draws them."""

    job: Job

    @property
    def count(self) -> int:
        """How many are drawn."""
        return self.job.count

    @property
    def together(self) -> int:
        """A batch."""
        return self.job.batch

    def settings(self) -> dict[str, object]:
        """Those of the sampling job."""
        return {**self.job.settings(), "job": "evaluate", "drawn": self.job.batch}

    def open(self) -> Look:
        """Loads the networks; whole batches are drawn, so that a picture has the bits that jobs/sample.py gives it."""
        painter, batch = Painter(self.job), self.job.batch

        def look(numbers: range) -> Tensor:
            begins = range(numbers.start // batch * batch, numbers.stop, batch)
            drawn = torch.cat([painter(torch.arange(begin, begin + batch)).pictures for begin in begins])
            return drawn[numbers.start - begins.start :][: len(numbers)]

        return look


@dataclass(frozen=True)
class FileGallery:
    """Pictures of an npz as jobs/sample.py writes it."""

    url: str
    count: int
    fingerprint: tuple[tuple[str, int], ...]
    together: int = 1

    def settings(self) -> dict[str, object]:
        """The file, by name and checksums."""
        return {"job": "evaluate", "file": storage.shown(self.url), **dict(self.fingerprint)}

    def open(self) -> Look:
        """Opens the file; rows are read as they are looked at."""
        file = PictureFile(self.url)
        return lambda numbers: torch.from_numpy(file.rows(numbers.start, numbers.stop).copy())


def file_gallery(url: str) -> FileGallery:
    """An npz of pictures.

    Raises:
        DataError: it is none, or damaged.
    """
    file = PictureFile(url)
    file.check()
    gallery = FileGallery(url, file.shape[0], tuple(sorted(file.fingerprint.items())))
    file.close()
    return gallery


@dataclass(frozen=True)
class RowsGallery:
    """Rows of a data set whose manifest lies at a URL."""

    manifest_url: str
    digest: str
    decoding: Decoding
    side: Side
    count: int
    seed: int = 0
    together: int = 1

    def settings(self) -> dict[str, object]:
        """The data set and which of its rows."""
        return {"job": "evaluate", "data": self.digest, "size": list(self.decoding.shape), "rows": self.side, "seed": self.seed}

    def open(self) -> Look:
        """Reads the manifest; pictures are read as they are looked at."""
        manifest = manifests.read(self.manifest_url)
        rows = choose_rows(manifest, self.side, count=self.count, seed=self.seed).rows
        return lambda numbers: load_rows(manifest, self.decoding, rows[numbers.start : numbers.stop])[0]


@dataclass(frozen=True, eq=False)
class FeatureWorker:
    """Makes chunks of features: npz of `pooled`, `spatial` and `logits`."""

    gallery: Gallery
    features: FeatureFile
    chunks: Chunks
    device: str

    def open(self) -> Work:
        """Loads what draws or reads, and what looks."""
        look, features = self.gallery.open(), self.features.open(self.device)

        def work(chunk: int) -> bytes:
            pictures = look(self.chunks.items(chunk))  # by the arithmetic of whoever draws them
            with Arithmetic(self.device).applied():
                parts = [features(some) for some in pictures.split(_AT_ONCE)]
            return encode(
                {
                    name: torch.cat([torch.from_numpy(getattr(part, name)) for part in parts]).numpy()
                    for name in ("pooled", "spatial", "logits")
                }
            )

        return work


def read_features(data: bytes) -> FeatureBatch:
    """A chunk's content."""
    arrays = decode(data, name="a chunk of features")
    return FeatureBatch(arrays["pooled"], arrays["spatial"], arrays["logits"])
