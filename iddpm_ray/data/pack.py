"""Packs a data set into shards of fixed-stride pixels, one finished shard after another, so that it can go on where it was stopped."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from iddpm_ray import storage
from iddpm_ray.data.image import BadPicture, Decoding
from iddpm_ray.data.listing import PACKED_MANIFEST, PACKED_PLAN
from iddpm_ray.data.load import OnError, read_outcomes
from iddpm_ray.data.manifest import Manifest, Packed, to_bytes, with_column
from iddpm_ray.errors import DataError

FORMAT = 1
SHARD_BYTES = 64 << 20
_CHUNK_ROWS = 256


@dataclass(frozen=True)
class Packing:
    """What a packing is made of; a later run goes on with it only if all of this is the same.

    Attributes:
        source: the data set, unsplit, with its labels.
        labels: the rule by which it was labelled.
        rows_per_shard: rows of every shard but the last.
    """

    source: Manifest
    labels: str
    decoding: Decoding
    rows_per_shard: int

    @property
    def num_shards(self) -> int:
        """Shards in all."""
        return -(-self.source.num_rows // self.rows_per_shard)

    def rows_of(self, shard: int) -> range:
        """Manifest rows of a shard."""
        return range(shard * self.rows_per_shard, min((shard + 1) * self.rows_per_shard, self.source.num_rows))


@dataclass(frozen=True)
class PackReport:
    """What one run of the packing did.

    Attributes:
        num_rows, num_shards: of the whole packed set.
        found: rows that an earlier run had packed.
        bad: rows whose picture could not be read, and why.
    """

    num_rows: int
    num_shards: int
    found: int
    bad: dict[int, str]


def pack(
    packing: Packing,
    destination: str,
    *,
    on_error: OnError = "fail",
    threads: int = 8,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PackReport:
    """Writes `shard-*.u8`, a note beside each that says it is whole, and last the manifest; finished shards are left alone.

    Args:
        destination: any fsspec URL; empty, or holding an unfinished packing of the same.
        on_error: `fail` stops at a picture that cannot be read; `substitute` marks its row as bad, and training then does what its own
            `data.on_error` says, so that it sees the same as from the source.
        progress: called with rows done, those found included, and rows in all.

    Raises:
        DataError: a picture cannot be read, or the destination holds something else.
        SpecError: the destination is not writable.
    """
    if packing.source.kind == "packed":
        raise DataError(
            "the source is a packed set already", value=storage.shown(packing.source.root), fix="pack from the pictures it was made of"
        )
    if storage.carries_credentials(destination):
        fix = "leave them to the environment: a URL is saved and shown"
        raise DataError("the destination holds credentials", value=storage.shown(destination), fix=fix)
    destination = storage.absolute(destination)
    _claim(packing, destination)
    present = {entry.name: entry.size for entry in storage.list_dir(destination)}
    found, bad = 0, {}
    for shard in range(packing.num_shards):
        rows = packing.rows_of(shard)
        note = _finished(destination, shard, present=present, num_bytes=len(rows) * packing.decoding.num_bytes)
        if note is None:
            note = _pack_shard(packing, destination, shard, on_error=on_error, threads=threads, progress=progress)
        else:
            found += len(rows)
        bad |= {int(row): why for row, why in note["bad"].items()}
        progress(rows.stop, packing.source.num_rows)
    _write_manifest(_packed_manifest(packing, destination, bad), destination, present=PACKED_MANIFEST in present)
    return PackReport(packing.source.num_rows, packing.num_shards, found, bad)


def verify(destination: str) -> None:
    """Reads every shard and compares it with the checksum noted when it was written.

    Raises:
        DataError: naming the shards that differ.
    """
    names = [entry.name for entry in storage.list_dir(destination) if entry.name.endswith(".u8")]
    wrong = [
        name for name in names if _read_note(destination, name)["sha256"] != _sha256(storage.read_bytes(storage.join(destination, name)))
    ]
    if wrong:
        what = f"{storage.shown(destination)}: {len(wrong)} of {len(names)} shards are not as they were written: {', '.join(wrong[:3])}"
        raise DataError(what, fix="delete them and pack again")


def _claim(packing: Packing, destination: str) -> None:
    """Leaves the plan of this packing at the destination, or finds the same one there."""
    wanted = _plan(packing)
    url = storage.join(destination, PACKED_PLAN)
    if not storage.exists(url):
        storage.check_writable(destination, field="the destination")
        if any(not entry.name.startswith(".") for entry in storage.list_dir(destination)):
            raise DataError("the destination is not empty", value=storage.shown(destination), fix="name a new folder to pack into")
        storage.create(url, json.dumps(wanted, indent=1).encode())
    there = json.loads(storage.read_bytes(url))
    differing = [key for key in wanted if there.get(key) != wanted[key]]
    if differing:
        how = ", ".join(f"{key} {there.get(key)} instead of {wanted[key]}" for key in differing)
        what = f"the destination {storage.shown(destination)} holds another packing: {how}"
        raise DataError(what, fix="pack with the same arguments from the unchanged source, or into another folder")


def _plan(packing: Packing) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "source_digest": packing.source.digest,
        "labels": packing.labels,
        "classes": list(packing.source.classes),
        "image_column": packing.source.image_column,
        "num_rows": packing.source.num_rows,
        "rows_per_shard": packing.rows_per_shard,
        **json.loads(json.dumps(asdict(packing.decoding))),
    }


def _pack_shard(
    packing: Packing, destination: str, shard: int, *, on_error: OnError, threads: int, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    rows, name = packing.rows_of(shard), _shard_name(shard)
    pixels = np.zeros((len(rows), *packing.decoding.shape), dtype=np.uint8)
    bad: dict[int, str] = {}
    for chunk in _chunks(rows):
        outcomes = read_outcomes(packing.source, np.arange(chunk.start, chunk.stop), decoding=packing.decoding, threads=threads)
        for row, outcome in zip(chunk, outcomes, strict=True):
            if not isinstance(outcome, BadPicture):
                pixels[row - rows.start] = outcome
            elif on_error == "fail":
                raise DataError(outcome.what, fix="repair or remove it, or pack with --on-error substitute") from outcome
            else:
                bad[row] = outcome.what.removeprefix(packing.source.name(row)).strip()
        progress(chunk.stop, packing.source.num_rows)
    data = pixels.tobytes()
    storage.write_whole(storage.join(destination, name), data)
    note = {"rows": len(rows), "sha256": _sha256(data), "bad": bad}
    storage.write_whole(storage.join(destination, f"{name}.json"), json.dumps(note).encode())
    return note


def _chunks(rows: range) -> Iterator[range]:
    for start in range(rows.start, rows.stop, _CHUNK_ROWS):
        yield range(start, min(start + _CHUNK_ROWS, rows.stop))


def _finished(destination: str, shard: int, *, present: dict[str, int], num_bytes: int) -> dict[str, Any] | None:
    """The note of a shard that is there and whole."""
    name = _shard_name(shard)
    if present.get(name) != num_bytes or f"{name}.json" not in present:
        return None
    return _read_note(destination, name)


def _read_note(destination: str, shard: str) -> dict[str, Any]:
    return json.loads(storage.read_bytes(storage.join(destination, f"{shard}.json")))


def _write_manifest(manifest: Manifest, destination: str, *, present: bool) -> None:
    """Writes the manifest, unless the same one is there: who trains from it need not see that somebody packed again."""
    url, data = storage.join(destination, PACKED_MANIFEST), to_bytes(manifest)
    if not present or storage.read_bytes(url) != data:
        storage.write_whole(url, data)


def _packed_manifest(packing: Packing, destination: str, bad: dict[int, str]) -> Manifest:
    """The source's rows in their order, each with its new place; keys stay, so the validation split does too."""
    source, stride = packing.source, packing.decoding.num_bytes
    shard = np.arange(source.num_rows) // packing.rows_per_shard
    sizes = np.array([len(packing.rows_of(i)) * stride for i in range(packing.num_shards)], dtype=np.int64)
    names = pa.array([_shard_name(i) for i in range(packing.num_shards)])
    table = source.table.append_column("source", source.table.column("path")).append_column("source_row", source.table.column("row"))
    columns = {
        "path": pa.DictionaryArray.from_arrays(pa.array(shard, pa.int32()), names),
        "row": pa.array(np.arange(source.num_rows, dtype=np.int64) - shard * packing.rows_per_shard),
        "size": pa.array(sizes[shard]),
        "tag": pa.array([""] * source.num_rows).dictionary_encode(),  # whoever lists the shards knows
    }
    for name, values in columns.items():
        table = with_column(table, name, values)
    why = pa.array([bad.get(row) for row in range(source.num_rows)], pa.string())
    table = table.append_column("bad", why)
    return Manifest(destination, "packed", source.classes, source.digest, table, packed=Packed(packing.decoding, packing.labels))


def _shard_name(shard: int) -> str:
    return f"shard-{shard:06d}.u8"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
