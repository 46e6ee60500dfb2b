"""The data that an evaluation measures: a run's own pinned pictures, or others labelled and decoded in the same way."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.changes import check_classes, check_decoding, check_same
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.load import load
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.errors import DataError
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.kept import MANIFEST_FILE
from iddpm_ray.train.sources import decoding_of


def pinned_data(run_url: str, spec: JobSpec) -> Manifest:
    """The data set that a run began with, held against what is there now.

    Raises:
        DataError: the run has none beside it, or it has changed since; shows how.
    """
    url = storage.join(run_url, MANIFEST_FILE)
    if not storage.exists(url):
        what = f"no {MANIFEST_FILE}, which a run keeps beside its checkpoints"
        raise DataError(what, value=storage.shown(run_url), fix="name the pictures with --data")
    pinned = manifests.read(url)
    check_same(pinned, _built(pinned.root, spec, classes=pinned.classes))
    return pinned


def other_data(path: str, spec: JobSpec, *, classes: tuple[str, ...]) -> Manifest:
    """Pictures that a network was not trained on, with the class indices that it knows.

    Raises:
        DataError: missing or unreadable, or classes that the network does not know.
    """
    manifest = _built(path, spec, classes=classes)
    check_decoding(manifest, decoding_of(spec))
    if spec.model.class_cond:
        known = len(classes) or spec.model.num_classes
        check_classes(manifest, num_classes=known)
        if not classes and len(manifest.classes) != known:
            what = (
                f"{storage.shown(manifest.root)} has {len(manifest.classes)} of the {known} classes of weights that do not say their names"
            )
            raise DataError(what, fix="give pictures of every class, or make a file that knows them with jobs/convert.py import --classes")
    return manifest


def _built(path: str, spec: JobSpec, *, classes: tuple[str, ...]) -> Manifest:
    data = spec.data
    return manifests.build(
        path,
        labels=data.labels,
        image_column=data.image_column,
        label_column=data.label_column,
        seed=spec.run.seed,
        validation_fraction=data.validation_fraction,
        classes=classes,
    )


def load_rows(manifest: Manifest, decoding: Decoding, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Pixels [N, C, H, W] uint8 and labels [N] int64 of rows, decoded as in training and never mirrored; a bad picture is an error, since
    another in its place would be counted twice.

    Raises:
        DataError: a picture cannot be read.
    """
    loaded = load(manifest, rows, decoding=decoding)
    return torch.from_numpy(loaded.pixels), torch.from_numpy(loaded.labels)
