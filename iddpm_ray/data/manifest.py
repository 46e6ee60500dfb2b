"""What is in a data set, as one Arrow table that is made once by listing and then pinned to the run."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from iddpm_ray import storage
from iddpm_ray.data import labels as label_rules
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.labels import Labelled
from iddpm_ray.data.listing import PACKED_MANIFEST, Kind, Listing, list_data
from iddpm_ray.data.rows import rows_of_pictures, rows_of_tables
from iddpm_ray.errors import DataError
from iddpm_ray.storage import FileInfo

FORMAT = 2  # 1 had no checksum
_METADATA = b"iddpm_ray.manifest"
_UNSET = hashlib.sha256(_METADATA).hexdigest()  # stands where the checksum of the file will
_COLUMNS = ["path", "row", "size", "tag", "label", "is_validation", "key"]


@dataclass(frozen=True)
class Packed:
    """How the pixels of a packed set were made.

    Attributes:
        decoding: size, channels and background; a run must ask for the same.
        labels: the rule by which the source was labelled.
    """

    decoding: Decoding
    labels: str


@dataclass(frozen=True, eq=False)
class Manifest:
    """The rows of a data set in their own order, which is that of (path, row).

    Attributes:
        root: URL that paths are relative to.
        kind: `folder` of pictures, `parquet` files, or `packed` shards.
        classes: the text of each class index; () without labels.
        digest: of path, size and tag of every file; equal for equal data. The manifest of a packed set goes in by its content.
        table: `path`, `row` (within that file), `size` in bytes and `tag` of the file, `label` int32 (-1 without), `is_validation`,
            and `key` (int64, of the source's path and row alone, so that a packed set splits like its source). Packed sets also have
            `source`, `source_row`, and `bad`: why the source could not be read, or null.
        image_column: where Parquet files hold their pictures.
        packed: for packed sets.
    """

    root: str
    kind: Kind
    classes: tuple[str, ...]
    digest: str
    table: pa.Table
    image_column: str = ""
    packed: Packed | None = None

    @property
    def num_rows(self) -> int:
        """All rows, validation rows included."""
        return self.table.num_rows

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """Class index of every row, -1 without labels."""
        return self.table.column("label").to_numpy()

    @cached_property
    def is_validation(self) -> NDArray[np.bool_]:
        """Whether a row is held out."""
        return self.table.column("is_validation").to_numpy()

    @cached_property
    def training_rows(self) -> NDArray[np.int64]:
        """Rows that are trained on, ascending."""
        return np.flatnonzero(~self.is_validation).astype(np.int64)

    @cached_property
    def validation_rows(self) -> NDArray[np.int64]:
        """Rows that are never trained on, ascending."""
        return np.flatnonzero(self.is_validation).astype(np.int64)

    @cached_property
    def files(self) -> dict[str, FileInfo]:
        """Every file by its path."""
        place = self.table.column("path").combine_chunks().indices.to_numpy()
        firsts = np.flatnonzero(np.diff(place, prepend=-1))  # the rows of a file are neighbours
        found = self.table.select(["path", "size", "tag"]).take(pa.array(firsts)).to_pylist()
        return {row["path"]: FileInfo(row["path"], row["size"], row["tag"]) for row in found}

    def column(self, name: str, rows: NDArray[np.int64]) -> list[Any]:
        """A column at some rows, as Python values."""
        return self.table.column(name).take(pa.array(rows)).to_pylist()

    def name(self, row: int) -> str:
        """How messages call a row: where its picture lies, and its number."""
        source, inner = ("source", "source_row") if self.kind == "packed" else ("path", "row")
        path, number = self.table.column(source)[row].as_py(), self.table.column(inner)[row].as_py()
        shown = storage.shown(self.root)
        place = f"{path} as packed in {shown}" if self.kind == "packed" else storage.join(shown, path)
        return f"{place}, its row {number} (row {row})" if path.endswith(".parquet") else f"{place} (row {row})"


def build(
    path: str,
    *,
    labels: str = "none",
    image_column: str = "image",
    label_column: str = "label",
    seed: int = 0,
    validation_fraction: float = 0.0,
    classes: Sequence[str] = (),
) -> Manifest:
    """Lists a data set; reads no picture.

    Args:
        path: a folder of pictures, a Parquet file or a folder of them, or a packed set, at any fsspec URL.
        labels: `none`, `folder`, `prefix` or `column`.
        seed, validation_fraction: each row is held out with this probability, by a draw keyed by the seed and the row.
        classes: classes that already have an index and keep it, such as those of a checkpoint; new ones follow.

    Raises:
        DataError: missing, unreadable or empty; labels wanted but absent; a Parquet column missing.
    """
    listing = list_data(path)
    if listing.kind != "parquet" and image_column != "image":
        raise DataError("data.image_column has no effect: no Parquet is read", value=image_column, fix="leave it out")
    match listing.kind:
        case "folder":
            rows = rows_of_pictures(listing, labels=labels, known=classes)
            manifest = Manifest(listing.root, "folder", rows.classes, digest_of(listing), rows.table)
        case "parquet":
            rows = rows_of_tables(listing, labels=labels, image_column=image_column, label_column=label_column, known=classes)
            manifest = Manifest(listing.root, "parquet", rows.classes, digest_of(listing), rows.table, image_column)
        case "packed":
            manifest = _packed(listing, labels=labels, known=classes)
    return split(manifest, seed=seed, fraction=validation_fraction)


def split(manifest: Manifest, *, seed: int, fraction: float) -> Manifest:
    """Chooses the validation rows: those whose draw, keyed by the seed and the row's own path and number, is below `fraction`.

    So a row stays on its side when others come or go. In a set so small that one side would be empty, the row with the most extreme
    draw goes there.

    Raises:
        DataError: a positive fraction of a single row.
    """
    import torch  # only whoever builds a manifest pays for it, not every process that reads rows

    from iddpm_ray.diffusion import draws
    from iddpm_ray.diffusion.draws import Purpose

    keys = torch.from_numpy(manifest.table.column("key").to_numpy().copy())
    held_out = np.zeros(manifest.num_rows, dtype=bool)
    if fraction > 0:
        if manifest.num_rows < 2:
            what = f"data.validation_fraction = {fraction} of the {manifest.num_rows} row of {storage.shown(manifest.root)}"
            raise DataError(what, fix="add pictures, or set data.validation_fraction=0")
        drawn = draws.uniforms(seed, Purpose.SPLIT, keys).squeeze(1).numpy()
        held_out = drawn < fraction
        held_out[drawn.argmin()], held_out[drawn.argmax()] = True, False
    return replace(manifest, table=with_column(manifest.table, "is_validation", pa.array(held_out)))


def digest_of(listing: Listing) -> str:
    """Digest of path, size and tag of every file."""
    digest = hashlib.sha256(listing.kind.encode())
    for file in listing.files:
        digest.update(json.dumps([file.path, file.size, file.tag]).encode() + b"\n")
    return digest.hexdigest()


def to_bytes(manifest: Manifest) -> bytes:
    """The manifest as an Arrow IPC file, with the checksum of all of it inside."""
    packed = manifest.packed
    facts: dict[str, Any] = {
        "format": FORMAT,
        "root": manifest.root,
        "kind": manifest.kind,
        "classes": manifest.classes,
        "digest": manifest.digest,
        "image_column": manifest.image_column,
        "packed": packed and {"labels": packed.labels, "decoding": vars(packed.decoding)},
        "sha256": _UNSET,
    }
    table = manifest.table.replace_schema_metadata({_METADATA: json.dumps(facts).encode()}).unify_dictionaries().combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    return data.replace(_UNSET.encode(), hashlib.sha256(data).hexdigest().encode())


def from_bytes(data: bytes | NDArray[np.uint8], *, name: str = "the manifest") -> Manifest:
    """A manifest out of `to_bytes`; columns point into `data`.

    Raises:
        DataError: damaged, not a manifest, or of a newer version.
    """
    fix = "build it again from the data, or take a newer version of this package"
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        facts = json.loads((table.schema.metadata or {})[_METADATA])
    except (pa.ArrowException, OSError, KeyError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"{name} cannot be read: {type(error).__name__}: {error}", fix=fix) from error
    try:
        if facts["format"] > FORMAT:
            raise DataError(f"{name} has a newer format than this version reads ({FORMAT})", value=facts["format"], fix=fix)
        packed = facts["packed"]
        if packed is not None:
            how = packed["decoding"]
            packed = Packed(Decoding(**{**how, "background": tuple(how["background"])}), packed["labels"])
        table.select(_COLUMNS)
        return Manifest(facts["root"], facts["kind"], tuple(facts["classes"]), facts["digest"], table, facts["image_column"], packed)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name} is no manifest: {type(error).__name__}: {error}", fix=fix) from error


def write(manifest: Manifest, url: str) -> None:
    """Writes the manifest, whole."""
    storage.write_whole(url, to_bytes(manifest))


def read(url: str) -> Manifest:
    """Reads what `write` wrote.

    Raises:
        DataError: as `checked`.
    """
    return checked(storage.read_bytes(url), name=storage.shown(url))


def checked(data: bytes, *, name: str) -> Manifest:
    """A manifest out of a file's content.

    Raises:
        DataError: as `from_bytes`, or a bit of it is another than was written.
    """
    manifest = from_bytes(data, name=name)
    facts = json.loads(manifest.table.schema.metadata[_METADATA])
    written = str(facts.get("sha256"))
    if facts["format"] > 1 and hashlib.sha256(data.replace(written.encode(), _UNSET.encode())).hexdigest() != written:
        raise DataError(f"{name} is damaged: it is not what was written", fix="restore it, or build it again from the data")
    return manifest


def _packed(listing: Listing, *, labels: str, known: Sequence[str]) -> Manifest:
    """The manifest that packing left, with the tags that its shards have now and labels by the rule wanted now."""
    url = storage.join(listing.root, PACKED_MANIFEST)
    data = storage.read_bytes(url)
    stored = checked(data, name=storage.shown(url))
    now = {file.path: file for file in listing.files}
    for shard in stored.files.values():
        if shard.path not in now or now[shard.path].size != shard.size:
            found = f"has {now[shard.path].size} bytes instead of {shard.size}" if shard.path in now else "is missing"
            raise DataError(
                f"packed set {storage.shown(listing.root)}: {shard.path} {found}", fix="run jobs/prepare.py with the same arguments again"
            )
    labelled = _relabelled(stored, labels=labels, known=known)
    tags = pa.array([now[path].tag for path in stored.table.column("path").to_pylist()]).dictionary_encode()
    table = with_column(with_column(stored.table, "label", pa.array(labelled.labels)), "tag", tags)
    digest = digest_of(_tagged(listing, PACKED_MANIFEST, tag=hashlib.sha256(data).hexdigest()))
    return replace(stored, root=listing.root, classes=labelled.classes, digest=digest, table=table)


def _tagged(listing: Listing, path: str, *, tag: str) -> Listing:
    """The listing with another tag for one of its files."""
    return replace(listing, files=tuple(replace(file, tag=tag) if file.path == path else file for file in listing.files))


def _relabelled(stored: Manifest, *, labels: str, known: Sequence[str]) -> Labelled:
    assert stored.packed is not None
    before = stored.packed.labels
    if labels == "none":
        return label_rules.unlabelled(stored.num_rows)
    if labels == before:
        return label_rules.index_classes([stored.classes[label] for label in stored.labels], known=known)
    if "column" in (labels, before):
        what = f"data.labels = {labels}, but {storage.shown(stored.root)} was packed with labels = {before}"
        raise DataError(what, fix=f"set data.labels={before}, or run jobs/prepare.py --labels {labels} into another folder")
    texts = label_rules.texts_of_paths(stored.table.column("source").to_pylist(), labels=labels, root=storage.shown(stored.root))
    return label_rules.index_classes(texts, known=known)


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """The table with one of its columns replaced."""
    return table.set_column(table.schema.get_field_index(name), name, values)
