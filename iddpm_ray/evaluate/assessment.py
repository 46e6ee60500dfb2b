"""An evaluation as a plan: which samples, against what, by which features, in which folders; carried out by whoever does the chunks."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from iddpm_ray import storage
from iddpm_ray.errors import DataError
from iddpm_ray.evaluate.chunks import Chunks, Worker, claim, read_settings
from iddpm_ray.evaluate.features import FeatureFile, Features
from iddpm_ray.evaluate.gallery import FeatureWorker, Gallery, read_features
from iddpm_ray.evaluate.quality import Parts, Quality, measure, reference_of
from iddpm_ray.evaluate.reference import Reference, read_reference

RESULT = "quality.json"
CHUNK = 256
FEWEST = 4  # samples that can be measured
FEWEST_REFERENCES = 2  # of one picture there is no covariance

Do = Callable[[Chunks, Worker, str], bool]
"""Does what is missing of a job, given what its items are called; False if somebody stopped it."""


@dataclass(frozen=True, eq=False)
class Assessment:
    """Everything that decides what an evaluation finds.

    Attributes:
        samples: what is judged.
        reference: what it is held against; a URL of statistics, or pictures.
        features: where their weights are.
        folder: of this evaluation; its chunks and its result.
        reference_folder: of the reference's chunks, which many evaluations share.
        device: where the feature network runs.
        chunk: pictures whose features are one file, at least: no batch is drawn for two files.
    """

    samples: Gallery
    reference: str | Gallery
    features: FeatureFile
    folder: str
    reference_folder: str
    seed: int = 0
    device: str = "cpu"
    chunk: int = CHUNK


@dataclass(frozen=True, eq=False)
class Assessed:
    """What an evaluation found, and the reference that it was held against."""

    quality: Quality
    reference: Reference
    features: Features = field(repr=False)


def assess(assessment: Assessment, do: Do, *, to_write: bool = False) -> Assessed | None:
    """Gathers features that are missing and measures; None if somebody stopped it, and the same call goes on.

    Args:
        to_write: the reference is to be written, and so must have both Gaussians.

    Raises:
        UserError: what a person has to mend.
    """
    one = assessment
    if one.samples.count < FEWEST:
        raise DataError(
            "too few samples to measure", value=one.samples.count, fix=f"give at least {FEWEST}, for a number that means much thousands"
        )
    if not isinstance(one.reference, str) and one.reference.count < FEWEST_REFERENCES:
        fix = f"give at least {FEWEST_REFERENCES}, for a number that means much thousands"
        raise DataError("too few reference pictures to measure against", value=one.reference.count, fix=fix)
    features = one.features.open("cpu")  # here only their name, checksum and sizes are wanted
    samples = _claim(one, one.samples, one.folder, features=features)  # before anything is gathered: the folder may be another job's
    if isinstance(one.reference, str):
        reference = read_reference(one.reference, features=features)
        if to_write and reference.spatial is None:
            raise DataError(f"{storage.shown(one.reference)} has no mu_s and sigma_s to write", fix="give its pictures with --reference")
    else:
        pictures = _claim(one, one.reference, one.reference_folder, features=features)
        found = _gather(one, one.reference, pictures, do=do, unit="reference pictures")
        if found is None:
            return None
        reference = reference_of(found, count=one.reference.count, seed=one.seed)
    drawn = _gather(one, one.samples, samples, do=do, unit="samples")
    if drawn is None:
        return None
    return Assessed(measure(drawn, reference, count=one.samples.count, features=features.name, seed=one.seed), reference, features)


def _claim(one: Assessment, gallery: Gallery, folder: str, *, features: Features) -> Chunks:
    settings = {**gallery.settings(), "features": f"{features.name} {features.digest}", "feature_device": one.device}
    size = -(-one.chunk // gallery.together) * gallery.together
    return claim(folder, settings, count=gallery.count, size=size, extension="npz")


def _gather(one: Assessment, gallery: Gallery, chunks: Chunks, *, do: Do, unit: str) -> Parts | None:
    if not do(chunks, FeatureWorker(gallery, one.features, chunks, one.device), unit):
        return None
    return lambda: map(read_features, chunks.read_all())


def earlier_result(assessment: Assessment) -> dict[str, Any] | None:
    """What the same evaluation found when it was done before; None if it has not been."""
    url = storage.join(assessment.folder, RESULT)
    try:
        return json.loads(storage.read_bytes(url)) if storage.exists(url) else None
    except ValueError:
        return None


def result(found: Assessed, assessment: Assessment) -> dict[str, Any]:
    """The numbers as plain JSON values; null for what is no number, or has no interval."""
    quality = found.quality
    return {
        "metrics": {name: value if math.isfinite(value) else None for name, value in quality.metrics.items()},
        "intervals": {name: None if one.low is None else [one.low, one.high] for name, one in quality.intervals.items()},
        "notes": list(quality.notes),
        "samples": quality.count,
        "reference_pictures": found.reference.count,
        "features": found.features.name,
        "features_sha256": found.features.digest,
        "settings": read_settings(assessment.folder),
    }


def write_result(found: Assessed, assessment: Assessment) -> str:
    """Writes `quality.json` into the evaluation's folder; returns its URL."""
    url = storage.join(assessment.folder, RESULT)
    storage.write_whole(url, json.dumps(result(found, assessment), indent=1, allow_nan=False).encode())
    return url


def forget_samples(assessment: Assessment) -> None:
    """Deletes the samples' features, once the result is written."""
    Chunks(assessment.folder, assessment.samples.count, assessment.chunk, "npz").clear()
