"""The rows of listed files as an Arrow table: where each picture lies, its class, and a key that is its own for ever."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from iddpm_ray import storage
from iddpm_ray.data import labels as label_rules
from iddpm_ray.data.labels import Labelled
from iddpm_ray.data.listing import Listing
from iddpm_ray.data.tables import TableRows, read_table_rows
from iddpm_ray.errors import DataError


@dataclass(frozen=True)
class Rows:
    """Columns as described at `Manifest`, nothing held out, and the class texts."""

    table: pa.Table
    classes: tuple[str, ...]


def rows_of_pictures(listing: Listing, *, labels: str, known: Sequence[str] = ()) -> Rows:
    """One row a picture file, in the listing's order.

    Raises:
        DataError: labels wanted that file names do not hold.
    """
    shown = storage.shown(listing.root)
    if labels == "column":
        raise DataError(
            f"data.labels = column needs Parquet files, but {shown} holds pictures", fix="set data.labels to folder, prefix or none"
        )
    counts = np.ones(len(listing.files), dtype=np.int64)
    if labels == "none":
        return _rows(listing, counts, label_rules.unlabelled(len(counts)))
    texts = label_rules.texts_of_paths([file.path for file in listing.files], labels=labels, root=shown)
    return _rows(listing, counts, label_rules.index_classes(texts, known=known))


def rows_of_tables(listing: Listing, *, labels: str, image_column: str, label_column: str, known: Sequence[str] = ()) -> Rows:
    """One row a row of each Parquet file, in the listing's order; reads footers and the label column.

    Raises:
        DataError: a missing column, no rows, labels wanted that are absent or not in a column.
    """
    shown = storage.shown(listing.root)
    if labels in ("folder", "prefix"):
        raise DataError(f"data.labels = {labels} needs picture files, but {shown} holds Parquet", fix="set data.labels to column or none")
    urls = [storage.join(listing.root, file.path) for file in listing.files]
    wanted = label_column if labels == "column" else None
    parts = [read_table_rows(url, image_column=image_column, label_column=wanted) for url in urls]
    counts = np.array([part.num_rows for part in parts], dtype=np.int64)
    if not counts.sum():
        raise DataError("data.path holds Parquet files without rows", value=shown, fix="write the pictures into them, or check the path")
    labelled = (
        label_rules.unlabelled(int(counts.sum())) if wanted is None else _labels_of_column(parts, urls, name=label_column, known=known)
    )
    return _rows(listing, counts, labelled)


def _labels_of_column(parts: Sequence[TableRows], urls: Sequence[str], *, name: str, known: Sequence[str]) -> Labelled:
    texts: list[str] = []
    for part, url in zip(parts, urls, strict=True):
        assert part.labels is not None
        texts += label_rules.texts_of_column(part.labels, name=name, where=storage.shown(url))
    return label_rules.index_classes(texts, known=known)


def _rows(listing: Listing, counts: NDArray[np.int64], labelled: Labelled) -> Rows:
    files = listing.files
    place = np.repeat(np.arange(len(files)), counts)
    within = np.arange(len(place), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = {
        "path": pa.DictionaryArray.from_arrays(pa.array(place, pa.int32()), pa.array([file.path for file in files])),
        "row": pa.array(within),
        "size": pa.array([file.size for file in files], pa.int64()).take(pa.array(place)),
        "tag": pa.array([file.tag for file in files]).take(pa.array(place)).dictionary_encode(),
        "label": pa.array(labelled.labels),
        "is_validation": pa.array(np.zeros(len(place), dtype=bool)),
        "key": pa.array(_keys([file.path for file in files], place, within)),
    }
    return Rows(pa.table(columns), labelled.classes)


def _keys(paths: Sequence[str], place: NDArray[np.intp], within: NDArray[np.int64]) -> NDArray[np.int64]:
    """A row's digest, 63 bits of its path and number alone: a copy of the data elsewhere, or a packed one, has the same."""
    digests = [hashlib.blake2b(path.encode(), digest_size=8).digest() for path in paths]
    hashes = np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)
    # Adding the number keeps the rows of a file apart; whoever draws by the key mixes it.
    return ((hashes[place] + within.astype(np.uint64)) & np.uint64(2**63 - 1)).astype(np.int64)
