"""The text that names a picture's class, and the map from texts to class indices."""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from iddpm_ray.errors import DataError

_INTEGER = re.compile(r"[+-]?\d+")
NO_LABEL = -1


@dataclass(frozen=True)
class Labelled:
    """Class indices of rows.

    Attributes:
        labels: int32 [N], `NO_LABEL` without labels.
        classes: the text of each class; its place is its index.
    """

    labels: NDArray[np.int32]
    classes: tuple[str, ...]


def unlabelled(num_rows: int) -> Labelled:
    """No classes."""
    return Labelled(np.full(num_rows, NO_LABEL, dtype=np.int32), ())


def texts_of_paths(paths: Sequence[str], *, labels: str, root: str) -> list[str]:
    """Each picture's class text, by the rule `folder` (the parent folder's name) or `prefix` (its own name up to the first underscore,
    the whole of it where there is none, never the extension).

    Raises:
        DataError: a picture that the rule gives no text, or no picture at all that it means.
    """
    if labels == "folder":
        texts = [posixpath.basename(posixpath.dirname(path)) for path in paths]
        bare = [path for path, text in zip(paths, texts, strict=True) if not text]
        fix = "put each picture into a folder named after its class, or set data.labels to prefix or none"
        if bare:
            found = "no labels were found" if len(bare) == len(paths) else f"{len(bare)} of {len(paths)} pictures have no label"
            raise DataError(f"data.labels = folder: {found} in {root}: {_some(bare)} lie directly in it", fix=fix)
        return texts
    stems = [posixpath.splitext(posixpath.basename(path))[0] for path in paths]
    texts = [stem.split("_", 1)[0] for stem in stems]
    fix = "name files like cat_0001.png, or set data.labels to folder or none"
    bare = [path for path, text in zip(paths, texts, strict=True) if not text]
    if bare:
        raise DataError(f"data.labels = prefix: {_some(bare)} in {root} have nothing before the underscore", fix=fix)
    if len(paths) > 1 and len(set(texts)) == len(paths) and not any("_" in stem for stem in stems):
        raise DataError(
            f"data.labels = prefix: no labels were found in {root}: no file name holds an underscore, as {_some(paths)}", fix=fix
        )
    return texts


def texts_of_column(column: pa.ChunkedArray, *, name: str, where: str) -> list[str]:
    """Each row's class text from a Parquet column of integers, booleans or text.

    Raises:
        DataError: another type, or a row without a label.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    named = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(test(kind) for test in named):
        raise DataError(
            f"column {name} of {where} holds {kind}, which names no class", fix="set data.label_column to a column of integers or text"
        )
    if column.null_count:
        row = next(i for i, value in enumerate(column) if not value.is_valid)
        none = "no labels were found" if column.null_count == len(column) else f"{column.null_count} of {len(column)} rows have no label"
        raise DataError(f"column {name} of {where}: {none}, the first is its row {row}", fix="fill the column, or set data.labels=none")
    return [str(value) for value in column.to_pylist()]


def index_classes(texts: Sequence[str], *, known: Sequence[str] = ()) -> Labelled:
    """Class indices: distinct texts in plain order, in numeric order if all of them are integers.

    Args:
        known: classes that already have an index, which they keep; new ones follow.
    """
    distinct = set(texts) - set(known)
    numeric = all(_INTEGER.fullmatch(text) for text in distinct)
    fresh = sorted(distinct, key=lambda text: (int(text), text)) if numeric else sorted(distinct)
    classes = (*known, *fresh)
    index = {text: i for i, text in enumerate(classes)}
    return Labelled(np.fromiter((index[text] for text in texts), dtype=np.int32, count=len(texts)), classes)


def _some(paths: Sequence[str], *, count: int = 3) -> str:
    """The first few of a list."""
    return ", ".join(paths[:count]) + (" ..." if len(paths) > count else "")
