"""Evaluations of pictures that lie in files already: an npz or a folder, against statistics or other pictures."""

import io

from PIL import Image

from iddpm_ray import storage
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.errors import DataError, SpecError
from iddpm_ray.evaluate.assessment import Assessment
from iddpm_ray.evaluate.classifier import LabelledPictures
from iddpm_ray.evaluate.features import ClassifierFile, FeatureFile, inception_file, save_classifier
from iddpm_ray.evaluate.gallery import Gallery, RowsGallery, file_gallery
from iddpm_ray.evaluate.measured import load_rows
from iddpm_ray.evaluate.npz import PictureFile
from iddpm_ray.evaluate.reference import array_names, is_statistics
from iddpm_ray.evaluate.rows import choose_rows
from iddpm_ray.spec.evaluate import CLASSIFIER_ENDING

MOST_TAUGHT = 20_000  # pictures that a small classifier learns from


def assessment_of_files(
    samples: str, reference: str, *, features: FeatureFile, folder: str, seed: int = 0, gpu: bool = False
) -> Assessment:
    """The evaluation of pictures that somebody has drawn already: an npz, or a folder of pictures of one size.

    Raises:
        DataError: pictures or reference cannot be read.
    """
    manifests_in = storage.join(folder, "samples.arrow")
    own: Gallery = (
        file_gallery(storage.absolute(samples)) if is_npz(samples) else folder_gallery(samples, size=None, manifest_url=manifests_in)
    )
    if is_npz(reference):
        other = reference_file(reference)
    else:
        size = own.decoding if isinstance(own, RowsGallery) else _decoding(PictureFile(storage.absolute(samples)).shape)
        other = folder_gallery(reference, size=size, manifest_url=storage.join(folder, "reference.arrow"))
    return Assessment(
        own, other, features, folder=folder, reference_folder=storage.join(folder, "reference"), seed=seed, device="cuda" if gpu else "cpu"
    )


def features_of_files(wanted: str, *, inception: str | None, sha256: str | None, folder: str, reference: str) -> FeatureFile:
    """The features that a command line names where there is no run: `inception`, a file of a small classifier, or one trained on the
    reference's pictures, which then lie in a folder for each class.

    Raises:
        UserError: no weights, no such features, or no labels.
    """
    if wanted == "inception":
        return inception_file(inception, sha256)
    if wanted.endswith(".npz"):
        return ClassifierFile(storage.absolute(wanted))
    if not wanted.endswith(CLASSIFIER_ENDING):
        fix = "name inception, a classifier to be trained such as digits-classifier, or the .npz file of one"
        raise SpecError("--features", value=wanted, fix=fix)
    if is_npz(reference):
        fix = "give the .npz of one (such as RUN/evaluations/digits-classifier.npz), or a reference folder with a folder a class"
        raise SpecError("--features", value=wanted, fix=fix)
    url = storage.join(folder, f"{wanted}.npz")
    if not storage.exists(url):
        manifest = manifests.build(reference, labels="folder")
        teach(url, manifest, _size_of_first(manifest), name=wanted)
    return ClassifierFile(url)


def reference_file(url: str) -> str | Gallery:
    """An npz of statistics, as it is, or one of pictures.

    Raises:
        DataError: neither.
    """
    url = storage.absolute(url)
    return url if is_statistics(array_names(url)) else file_gallery(url)


def is_npz(url: str) -> bool:
    """Whether a URL names an npz file; else it is a folder of pictures."""
    return url.endswith(".npz") and not storage.is_dir(url)


def folder_gallery(path: str, *, size: Decoding | None, manifest_url: str) -> RowsGallery:
    """All pictures of a folder, decoded to one size.

    Args:
        size: of the pictures they are compared with; None for that of the first one.
        manifest_url: where the list of them is kept for the workers.

    Raises:
        DataError: no pictures, or one that cannot be read.
    """
    manifest = manifests.build(path)
    manifests.write(manifest, manifest_url)
    return RowsGallery(manifest_url, manifest.digest, size or _size_of_first(manifest), "all", manifest.num_rows)


def teach(url: str, manifest: Manifest, decoding: Decoding, *, name: str) -> None:
    """Trains a small classifier on a data set's training rows.

    Raises:
        SpecError: they have no labels.
    """
    if not manifest.classes:
        raise SpecError("evaluate.features", value=name, fix="needs labelled pictures: set data.labels, or use inception")
    count = min(MOST_TAUGHT, len(manifest.training_rows))
    pixels, labels = load_rows(manifest, decoding, choose_rows(manifest, "train", count=count, seed=0).rows)
    save_classifier(url, LabelledPictures(pixels, labels), name=name, num_classes=len(manifest.classes))


def _size_of_first(manifest: Manifest) -> Decoding:
    url = storage.join(manifest.root, manifest.table.column("path")[0].as_py())
    try:
        with Image.open(io.BytesIO(storage.read_bytes(url))) as image:
            return Decoding(image.height, image.width, channels=1 if image.mode in ("1", "L") else 3)
    except (OSError, SyntaxError, ValueError):
        raise DataError(f"{storage.shown(url)} is no picture", fix="give a folder of PNG files of one size") from None


def _decoding(shape: tuple[int, int, int, int]) -> Decoding:
    """Of pictures (N, H, W, C)."""
    return Decoding(shape[1], shape[2], channels=shape[3])
