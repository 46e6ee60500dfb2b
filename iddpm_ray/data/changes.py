"""Whether a data set is still the one that was pinned, and whether it is enough for a run."""

from collections.abc import Sequence

import pyarrow as pa

from iddpm_ray import storage
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.errors import DataError


def compare(old: Manifest, new: Manifest) -> list[str]:
    """What changed from `old` to `new`, a line a kind of change with the first few names; [] if nothing did."""
    if old.digest == new.digest or _same_packed(old, new):
        return []
    if old.kind != new.kind:
        return [f"it was {_kind(old)} and is now {_kind(new)}"]
    before, after = old.files, new.files
    changed = [path for path in before if path in after and (before[path].size, before[path].tag) != (after[path].size, after[path].tag)]
    how = {
        path: f"{path} ({before[path].size} bytes, now {after[path].size})"
        if before[path].size != after[path].size
        else f"{path} (same size, other content or time)"
        for path in changed
    }
    lines = [
        _line("added", [path for path in after if path not in before]),
        _line("removed", [path for path in before if path not in after]),
        _line("changed", [how[path] for path in changed]),
    ]
    return [line for line in lines if line] or ["the list of its rows was written anew"]


def check_same(pinned: Manifest, found: Manifest) -> None:
    """Refuses a data set that is not the pinned one.

    Raises:
        DataError: saying what changed.
    """
    changes = compare(pinned, found)
    if changes:
        what = f"the data set at {storage.shown(found.root)} is not the one this run began with: {'; '.join(changes)}"
        raise DataError(what, fix="restore it, start a run of another name, or set data.adopt=true to go on with the changed one")


def check_no_new_class(pinned: Manifest, found: Manifest) -> None:
    """Refuses classes that came after a network was given as many rows as the pinned data had classes.

    Raises:
        DataError: naming the first of them.
    """
    if len(found.classes) > len(pinned.classes):
        what = f"{storage.shown(found.root)} has a class that this run's network has no row for: '{found.classes[len(pinned.classes)]}'"
        raise DataError(
            f"{what}; it was made for {len(pinned.classes)}, since model.num_classes is null",
            fix="take its pictures away, or begin a run of another name by init.from, with a model.num_classes that leaves room for more",
        )


def check_known(found: Manifest, *, classes: Sequence[str], digest: str | None, checkpoint: str) -> None:
    """Refuses a data set under which the network of a checkpoint would learn other classes, or that it was not trained on.

    Args:
        classes: those of the checkpoint, which keep their indices.
        digest: of the data set it was trained on, where nothing else of the run says so; None: not asked.

    Raises:
        DataError: naming the first class that is another.
    """
    fix = "restore the run's manifest.arrow and the data set it was made of"
    for index, name in enumerate(classes):
        if found.classes[index : index + 1] != (name,):
            now = f"'{found.classes[index]}'" if index < len(found.classes) else "nothing"
            raise DataError(f"class {index} of {checkpoint} is '{name}', and of {storage.shown(found.root)} {now}", fix=fix)
    if digest is not None and digest != found.digest:
        what = f"the data set at {storage.shown(found.root)} is not the one that {checkpoint} was trained on, and manifest.arrow is gone"
        raise DataError(what, fix=f"{fix}, or set data.adopt=true to go on with this one")


def check_enough(manifest: Manifest, *, global_batch: int) -> None:
    """Refuses a data set smaller than one global batch.

    Raises:
        DataError: with both numbers.
    """
    count = len(manifest.training_rows)
    if count < global_batch:
        held = f" ({len(manifest.validation_rows)} more are held out)" if len(manifest.validation_rows) else ""
        what = f"{storage.shown(manifest.root)} has {count} training rows{held}, fewer than train.global_batch = {global_batch}"
        raise DataError(what, fix=f"set train.global_batch to at most {count}, or add pictures")


def check_classes(manifest: Manifest, *, num_classes: int | None) -> None:
    """Refuses labels that the network has no row for; None takes as many as there are.

    Raises:
        DataError: naming the first class that is too much, or that there are no labels at all.
    """
    if not manifest.classes:
        raise DataError("model.class_cond needs labels, but data.labels is none", fix="set data.labels to folder, prefix or column")
    if num_classes is not None and len(manifest.classes) > num_classes:
        beyond = f"'{manifest.classes[num_classes]}' has index {num_classes}"
        what = f"{storage.shown(manifest.root)} has {len(manifest.classes)} classes, more than model.num_classes = {num_classes}: {beyond}"
        raise DataError(what, fix=f"set model.num_classes to at least {len(manifest.classes)}, or to null to count them")


def check_decoding(manifest: Manifest, decoding: Decoding) -> None:
    """Refuses a packed set whose pixels are not those that the run wants.

    Raises:
        DataError: naming the field.
    """
    if manifest.packed is None:
        return
    have = manifest.packed.decoding
    pairs = {
        "data.image_size": ([have.height, have.width], [decoding.height, decoding.width]),
        "data.channels": (have.channels, decoding.channels),
        "data.background": (list(have.background), list(decoding.background)),
    }
    for field, (packed, wanted) in pairs.items():
        if packed != wanted:
            raise _packed_otherwise(manifest, field, packed=packed, wanted=wanted)


def check_limit(manifest: Manifest, decoding: Decoding) -> None:
    """Refuses a packed set whose pictures were held to another `data.max_pixels`, which does nothing once they are packed.

    Asked when a run takes a data set up, not of those that have trained on it.

    Raises:
        DataError: with both limits.
    """
    if manifest.packed is not None and manifest.packed.decoding.max_pixels != decoding.max_pixels:
        raise _packed_otherwise(manifest, "data.max_pixels", packed=manifest.packed.decoding.max_pixels, wanted=decoding.max_pixels)


def _packed_otherwise(manifest: Manifest, field: str, *, packed: object, wanted: object) -> DataError:
    what = f"{storage.shown(manifest.root)} was packed with {field} = {packed}, the run wants {wanted}"
    return DataError(what, fix=f"set {field}={packed}, or pack the source again into another folder")


def _same_packed(old: Manifest, new: Manifest) -> bool:
    """Whether both are the same rows of the same shards, whenever the packed set's own manifest was written."""
    if old.packed is None or old.packed != new.packed:
        return False
    columns = ["path", "row", "size", "tag", "key", "source", "source_row", "bad"]
    return all(_plain(old.table.column(name)).equals(_plain(new.table.column(name))) for name in columns)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column without the order in which a dictionary happens to hold its values."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _kind(manifest: Manifest) -> str:
    return {"folder": "a folder of pictures", "parquet": "Parquet files", "packed": "a packed set"}[manifest.kind]


def _line(word: str, names: Sequence[str], *, count: int = 3) -> str:
    if not names:
        return ""
    return f"{len(names)} {word}: {', '.join(sorted(names)[:count])}{' ...' if len(names) > count else ''}"
