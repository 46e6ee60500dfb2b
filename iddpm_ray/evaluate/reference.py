"""What samples are held against: Gaussians of features, as the npz references of ADM's evaluator have them, and features themselves.

`mu` [D], `sigma` [D, D], `mu_s` [S], `sigma_s` [S, S]; files of ours also say `features`, the name and digest of the network, and `count`.
"""

import io
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iddpm_ray import storage
from iddpm_ray.errors import DataError
from iddpm_ray.evaluate.features import Features
from iddpm_ray.evaluate.frechet import Gaussian

_FIX = "give an npz with mu, sigma and perhaps mu_s, sigma_s, as ADM's evaluator and jobs/evaluate.py --write-reference write them"

_ROUNDING = 1e-3  # share of the largest covariance by which float32 sums may be off


@dataclass(frozen=True, eq=False)
class Reference:
    """What is known of the real pictures.

    Attributes:
        pooled, spatial: Gaussians of both kinds of features; `spatial` None where a file has none.
        points: pooled features [M, D] of single pictures, for metrics that compare those; None where only Gaussians are known.
        count: pictures behind the Gaussians; None where a file does not say.
    """

    pooled: Gaussian
    spatial: Gaussian | None
    points: NDArray[np.float32] | None
    count: int | None


def write_reference(url: str, reference: Reference, *, features: Features) -> None:
    """Writes the Gaussians where ADM's evaluator and `read_reference` find them, whole."""
    assert reference.spatial is not None
    file = io.BytesIO()
    np.savez(
        file,
        mu=reference.pooled.mean,
        sigma=reference.pooled.covariance,
        mu_s=reference.spatial.mean,
        sigma_s=reference.spatial.covariance,
        features=np.array(f"{features.name} {features.digest}"),
        count=np.array(-1 if reference.count is None else reference.count),
    )
    storage.write_whole(url, file.getvalue())


def is_statistics(names: Collection[str]) -> bool:
    """Whether an npz with arrays of these names holds Gaussians."""
    return "mu" in names and "sigma" in names


def array_names(url: str) -> list[str]:
    """Names of the arrays of an npz, without reading them.

    Raises:
        DataError: no such file, or no npz.
    """
    shown = storage.shown(url)
    try:
        fs, path = storage.filesystem(url)
        with fs.open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except zipfile.BadZipFile:
        raise DataError(f"{shown} is no npz file", fix=_FIX) from None
    except Exception as error:  # every store raises its own kinds
        raise DataError(f"cannot read {shown} ({storage.reason(error)})", fix="name an npz file") from None


def read_reference(url: str, *, features: Features) -> Reference:
    """The Gaussians of a file, which must be of these features.

    Raises:
        DataError: no such file, Python objects in it, other sizes, no Gaussians, or features of another network.
    """
    arrays, shown = read_arrays(url), storage.shown(url)
    if not is_statistics(arrays):
        raise DataError(f"{shown} holds {', '.join(sorted(arrays)) or 'nothing'}", fix=_FIX)
    said = str(arrays["features"]) if "features" in arrays else ""
    if said and said != f"{features.name} {features.digest}":
        what = f"{shown} holds statistics of the features of {_short(said)}, not of {_short(f'{features.name} {features.digest}')}"
        raise DataError(what, fix="make the reference anew with these features, or use those")
    pooled = _gaussian(arrays, "mu", "sigma", size=features.sizes[0], shown=shown, name=features.name)
    spatial = None
    if "mu_s" in arrays:
        spatial = _gaussian(arrays, "mu_s", "sigma_s", size=features.sizes[1], shown=shown, name=features.name)
    return Reference(pooled, spatial, None, _count(arrays["count"], shown=shown) if "count" in arrays else None)


def read_arrays(url: str) -> dict[str, NDArray]:
    """The arrays of an npz; Python objects in it are refused, never unpickled.

    Raises:
        DataError: it cannot be read, or is none.
    """
    shown = storage.shown(url)
    try:
        data = storage.read_bytes(url)
    except Exception as error:  # every store raises its own kinds
        raise DataError(f"cannot read {shown} ({storage.reason(error)})", fix="name an npz file") from None
    try:
        found = np.load(io.BytesIO(data), allow_pickle=False)
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise TypeError
    except Exception:  # a damaged archive raises whatever it happens to hit
        raise DataError(f"{shown} is no npz file", fix=_FIX) from None
    arrays: dict[str, NDArray] = {}
    for name in found.files:
        try:
            arrays[name] = found[name]
        except ValueError as error:
            if "allow_pickle" in str(error):
                what = f"{name} of {shown} holds Python objects, which would run code when they are read, and was refused"
                raise DataError(what, fix=_FIX) from None
            raise DataError(f"{shown} is damaged: {name} is no array", fix=_FIX) from None
        except Exception:  # as above
            raise DataError(f"{shown} is damaged: {name} cannot be read", fix=_FIX) from None
        if not isinstance(arrays[name], np.ndarray):
            raise DataError(f"{shown} is damaged: {name} is no array", fix=_FIX)
    return arrays


def _gaussian(arrays: Mapping[str, NDArray], mean: str, covariance: str, *, size: int, shown: str, name: str) -> Gaussian:
    if covariance not in arrays:
        raise DataError(f"{shown} has {mean} and no {covariance}", fix=_FIX)
    centre, spread = arrays[mean], arrays[covariance]
    for key, array, shape in ((mean, centre, (size,)), (covariance, spread, (size, size))):
        if array.dtype.kind != "f" or array.shape != shape:
            what = f"{key} of {shown} is {array.dtype} {list(array.shape)}, the features of {name} need {list(shape)}"
            raise DataError(what, fix="make the reference with the same features: jobs/evaluate.py --write-reference")
        if not np.isfinite(array).all():
            raise DataError(f"{key} of {shown} holds numbers that are not finite", fix="make the reference again")
    slack = _ROUNDING * np.abs(spread).max()
    if spread.diagonal().min() < -slack or np.abs(spread - spread.T).max() > slack:
        what = f"{covariance} of {shown} is no covariance: it is not symmetric, or a variance is below nought"
        raise DataError(what, fix="make the reference again")
    return Gaussian(centre.astype(np.float64), spread.astype(np.float64))


def _count(array: NDArray, *, shown: str) -> int | None:
    """Pictures behind a reference; `write_reference` writes -1 where it does not know."""
    if array.ndim or array.dtype.kind not in "iu":
        raise DataError(
            f"count of {shown} is {array.dtype} {list(array.shape)}, one whole number is needed", fix="make the reference again"
        )
    return int(array) if array > 0 else None


def _short(said: str) -> str:
    name, _, digest = said.partition(" ")
    return f"{name} ({digest[:12]})"
