"""Features of pictures behind one interface: the Inception network, or a small classifier of ours that says so in every metric's name."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from iddpm_ray import storage
from iddpm_ray.convert.weight_files import read_weights
from iddpm_ray.errors import CheckpointError, DataError, SpecError
from iddpm_ray.evaluate import classifier, inception
from iddpm_ray.evaluate.classifier import LabelledPictures, train_classifier
from iddpm_ray.evaluate.inception import Inception
from iddpm_ray.evaluate.npz import decode

INCEPTION = "inception"
# The published conversion of the graph by which FID is defined carries the beginning of its SHA-256 in its name.
PUBLISHED = "6726825d"
_SPATIAL_CHANNELS = 7
_ABOUT_WEIGHTS = (
    "get weights-inception-2015-12-05-6726825d.pth, which torch-fidelity publishes, put it where all workers can read it, and "
    "name it with evaluate.inception and evaluate.inception_sha256 (--inception, --inception-sha256); nothing is downloaded by itself. "
    "For small labelled pictures --features digits-classifier needs no weights"
)


@dataclass(frozen=True, eq=False)
class FeatureBatch:
    """Features of N pictures, float32: `pooled` [N, D], `spatial` [N, S], and a classifier's `logits` [N, K]."""

    pooled: NDArray[np.float32]
    spatial: NDArray[np.float32]
    logits: NDArray[np.float32]


class Features(Protocol):
    """A network whose features pictures are compared by."""

    @property
    def name(self) -> str:
        """What stands in brackets behind every metric; `inception` for the published weights, which need none."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of the weights."""
        ...

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of a picture: pooled, spatial."""
        ...

    def __call__(self, pictures: Tensor) -> FeatureBatch:
        """Of pictures [N, C, H, W] uint8, C 1 or 3."""
        ...


class FeatureFile(Protocol):
    """Says where features' weights lie; small, so that every worker can be sent one and open it."""

    def open(self, device: str) -> Features:
        """Loads them."""
        ...


def metric_name(metric: str, features: str) -> str:
    """`fid` for the published Inception weights and them alone; `fid[digits-classifier]` for others."""
    return metric if features == INCEPTION else f"{metric}[{features}]"


@dataclass(frozen=True)
class InceptionFile:
    """Inception weights at a URL.

    Attributes:
        sha256: of the file, which must be known beforehand.
    """

    url: str
    sha256: str

    def open(self, device: str) -> "InceptionFeatures":
        """Reads, checks and loads them.

        Raises:
            DataError: not there, another file, or not these weights.
        """
        shown = storage.shown(self.url)
        try:
            file = read_weights(self.url)
        except CheckpointError as error:
            if storage.is_local(self.url) and storage.exists(self.url):
                raise
            raise DataError(f"no Inception weights: {error.what}", fix=_ABOUT_WEIGHTS) from None
        if file.sha256 != self.sha256:
            raise DataError(f"{shown} has SHA-256 {file.sha256}", value=self.sha256, fix="get the right file, or name its checksum")
        network = Inception()
        try:
            network.load_state_dict(file.tensors)
        except RuntimeError:
            raise DataError(f"{shown} holds no weights of the Inception network of 2015", fix=_ABOUT_WEIGHTS) from None
        name = INCEPTION if file.sha256.startswith(PUBLISHED) else f"{INCEPTION}-{file.sha256[:8]}"
        return InceptionFeatures(network.eval().requires_grad_(False).to(device), name, file.sha256)


@dataclass(frozen=True, eq=False)
class InceptionFeatures:
    """The Inception network's 2048 numbers, 2023 of an earlier layer, and its 1008 classes."""

    network: Inception
    name: str
    digest: str

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of a picture."""
        return inception.NUM_POOLED, inception.NUM_SPATIAL

    def __call__(self, pictures: Tensor) -> FeatureBatch:
        """Grey pictures are shown to it as colour."""
        device = self.network.fc.weight.device
        colour = pictures.expand(-1, 3, -1, -1).to(device)
        with torch.no_grad():
            out = self.network(colour)
        return FeatureBatch(_numbers(out.pooled), _numbers(out.spatial), _numbers(out.logits))


@dataclass(frozen=True)
class ClassifierFile:
    """A small classifier of ours, as `save_classifier` wrote it."""

    url: str

    def open(self, device: str) -> "ClassifierFeatures":
        """Reads and loads it.

        Raises:
            DataError: not there, or no such file.
        """
        shown = storage.shown(self.url)
        try:
            data = storage.read_bytes(self.url)
        except Exception as error:  # as above
            raise DataError(f"cannot read the classifier {shown} ({storage.reason(error)})", fix="name a file that exists") from None
        arrays = decode(data, name=shown)
        try:
            shape, name = tuple(int(size) for size in arrays.pop("shape")), str(arrays.pop("name"))
            network = classifier.make_network(shape, num_classes=int(arrays.pop("num_classes")))
            network.load_state_dict({key: torch.from_numpy(value) for key, value in arrays.items()})
        except (KeyError, ValueError, RuntimeError, TypeError):
            raise DataError(
                f"{shown} is no classifier of this package", fix="make it with jobs/evaluate.py --features digits-classifier"
            ) from None
        digest = hashlib.sha256(data).hexdigest()
        return ClassifierFeatures(network.eval().requires_grad_(False).to(device), name, digest, shape)


@dataclass(frozen=True, eq=False)
class ClassifierFeatures:
    """The last feature maps of a small classifier: their means, seven of them whole, and its classes.

    Attributes:
        shape: (C, H, W) of the pictures that it knows.
    """

    network: nn.Sequential
    name: str
    digest: str
    shape: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of a picture."""
        return classifier.MAPS, _SPATIAL_CHANNELS * (self.shape[1] // 4) * (self.shape[2] // 4)

    def __call__(self, pictures: Tensor) -> FeatureBatch:
        """Pictures of another size than it was made for are refused."""
        if tuple(pictures.shape[1:]) != self.shape:
            raise DataError(
                f"{self.name} knows pictures of {list(self.shape)}", value=list(pictures.shape[1:]), fix="compare pictures of one size"
            )
        with torch.no_grad():
            maps = classifier.feature_maps(self.network, pictures.to(next(self.network.parameters()).device))
            logits = classifier.logits_of(self.network, maps)
        spatial = maps[:, :_SPATIAL_CHANNELS].permute(0, 2, 3, 1).flatten(1)
        return FeatureBatch(_numbers(maps.mean(dim=(2, 3))), _numbers(spatial), _numbers(logits))


def inception_file(url: str | None, sha256: str | None) -> InceptionFile:
    """Where the Inception weights are.

    Raises:
        SpecError: nobody has said, or not with which checksum.
    """
    if url is None:
        raise SpecError("the Inception weights that FID is defined by are not part of this package", fix=_ABOUT_WEIGHTS)
    if sha256 is None:
        fix = f"name the SHA-256 of {storage.shown(url)} (evaluate.inception_sha256, --inception-sha256), as sha256sum prints it"
        raise SpecError("Inception weights without a checksum", fix=fix)
    return InceptionFile(storage.absolute(url), sha256.lower())


def save_classifier(url: str, data: LabelledPictures, *, name: str, num_classes: int, seed: int = 0) -> ClassifierFile:
    """Trains a small classifier and keeps it.

    Args:
        name: what metrics are to be called by it, such as `digits-classifier`.

    Raises:
        DataError: no pictures, or too small.
    """
    shape = tuple(data.pictures.shape[1:])
    if min(shape[1:]) < 4:
        raise DataError("pictures of fewer than 4 pixels a side have no features", value=list(shape), fix="compare larger pictures")
    network = train_classifier(data, num_classes=num_classes, seed=seed)
    arrays: Mapping[str, NDArray] = {key: tensor.numpy() for key, tensor in network.state_dict().items()}
    file = io.BytesIO()
    np.savez(file, shape=np.array(shape), num_classes=np.array(num_classes), name=np.array(name), **dict(arrays))
    storage.write_whole(url, file.getvalue())
    return ClassifierFile(url)


def _numbers(x: Tensor) -> NDArray[np.float32]:
    return x.float().cpu().numpy()
