"""A run's directory: opened anew, gone on with, or refused; and what an attempt needs to know of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from iddpm_ray import storage
from iddpm_ray.checkpoint import attempts
from iddpm_ray.checkpoint import lease as leases
from iddpm_ray.checkpoint.choose import Choice, newest_readable
from iddpm_ray.checkpoint.commit import LABELS_FILE, SPEC_FILE
from iddpm_ray.checkpoint.lease import Lease
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.changes import (
    check_classes,
    check_decoding,
    check_enough,
    check_known,
    check_limit,
    check_no_new_class,
    check_same,
    compare,
)
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.errors import SpecError, UserError
from iddpm_ray.sinks.tracker import check_installed
from iddpm_ray.spec.spec import FieldChange, JobSpec, differences
from iddpm_ray.spec.text import dump_yaml
from iddpm_ray.train.adopted import adopted
from iddpm_ray.train.begin import check_init
from iddpm_ray.train.kept import MANIFEST_FILE, STATE_FILE, kept_manifest, kept_spec, trained_on
from iddpm_ray.train.sources import decoding_of

T = TypeVar("T")


@dataclass(frozen=True)
class Opening:
    """What a start found in the run's directory; nothing has been written yet.

    Attributes:
        url: the run's directory.
        spec: as it will be saved with the run.
        manifest: the data set that the run is pinned to from now on.
        choice: the checkpoint that the run would go on from.
        changes: fields that may change and did, since the run was last started.
        fresh: whether there was no run of this name.
        adopted: what changed in the data set and with it, in lines; () unless `data.adopt` took a changed one.
    """

    url: str
    spec: JobSpec
    manifest: Manifest
    choice: Choice
    changes: tuple[FieldChange, ...]
    fresh: bool
    adopted: tuple[str, ...] = ()

    def describe(self) -> str:
        """What a start would begin from, in words."""
        changed = f"changed since the last start: {', '.join(str(change) for change in self.changes)}" if self.changes else ""
        changes = "".join(f"; {line}" for line in (changed, *self.adopted) if line)
        checkpoint = self.choice.checkpoint
        if checkpoint is not None:
            return f"resumes step {checkpoint.step} from {checkpoint.name}{changes}"
        source = self.spec.init.from_
        return ("fresh, weights from the seed" if source is None else f"fresh, weights from {storage.shown(source)}") + changes


@dataclass(frozen=True)
class Place:
    """Where one attempt writes.

    Attributes:
        attempt: its number, which nobody else has.
        info: what the driver recorded of the attempt.
        lease: that the driver holds on the run; None if it took none.
    """

    url: str
    attempt: int
    spec_yaml: bytes
    spec_digest: str
    manifest_digest: str
    classes: tuple[str, ...]
    info: Mapping[str, Any]
    lease: Lease | None = None


def inspect_run(spec: JobSpec) -> Opening:
    """Lists the data set, reads what is in the run's directory, and compares; writes nothing.

    Raises:
        SpecError: another run of this name is there; shows the fields that differ.
        DataError: the data set is unusable, or has changed and the spec does not say to adopt it; shows how.
        CheckpointError: the weights of `init.from` are not there or do not fit.
    """
    check_installed(spec.log.sinks)
    url = storage.join(storage.absolute(spec.run.output_dir), spec.run.name)
    there = _there(url, spec)
    if there is None:
        manifest = _manifest(spec)
        check_limit(manifest, decoding_of(spec))
        check_init(spec, num_classes=_num_classes(spec, manifest))
        return Opening(url, spec, manifest, Choice(None, None, ()), (), fresh=True)
    choice = asked(url, lambda: newest_readable(url, spec_digest=spec.digest(), files=(STATE_FILE, LABELS_FILE)))
    trained = asked(url, lambda: trained_on(choice))
    known = there.pinned.classes if there.pinned is not None else trained.classes if trained is not None else ()
    manifest = _manifest(spec, classes=known)
    if there.pinned is not None:
        _check_pinned(spec, there.pinned, manifest)
    if trained is not None:
        digest = trained.digest if there.pinned is None and not spec.data.adopt else None
        check_known(manifest, classes=trained.classes, digest=digest, checkpoint=trained.name)
    if choice.checkpoint is None:
        check_init(spec, num_classes=_num_classes(spec, manifest))
    newer = tuple(change for change in there.changes if not change.identity)
    said = () if there.pinned is None else adopted(spec, there.pinned, manifest)
    return Opening(url, spec, manifest, choice, newer, fresh=False, adopted=said)


@dataclass(frozen=True)
class _There:
    """A run that lies in the directory: the data set it is pinned to (None if that file is gone), and the fields that the spec changes."""

    pinned: Manifest | None
    changes: list[FieldChange]


def _there(url: str, spec: JobSpec) -> _There | None:
    """What lies in the directory; None if no run does.

    Raises:
        SpecError: another run; shows the fields that differ. Or what is kept of the run cannot be understood.
        DataError: the data set that it is pinned to cannot be.
        CheckpointError: there are checkpoints and no spec, and none of them can be read.
    """
    kept = asked(url, lambda: kept_spec(url))
    if kept is None:
        return None
    changes = differences(kept, spec)
    other = [str(change).removesuffix(" (identity)") for change in changes if change.identity]
    if other:
        raise SpecError(
            f"{storage.shown(url)} holds another run; what is there -> what was asked for:\n  " + "\n  ".join(other) + "\n",
            fix="give this run another run.name, or set these fields back",
        )
    return _There(asked(url, lambda: kept_manifest(url)), changes)


def asked(url: str, ask: Callable[[], T], *, doing: str = "read") -> T:
    """What the storage of the run answers.

    Raises:
        SpecError: nothing, or that it will not; a UserError is raised as it is.
    """
    try:
        return ask()
    except UserError:
        raise
    except Exception as error:  # every store raises its own kinds
        what = f"run.output_dir: {storage.shown(url)} cannot be {doing} ({storage.reason(error)})"
        fix = "name a place that this machine may read and write; credentials come from the environment, fsspec's configuration or its role"
        raise SpecError(what, fix=fix) from error


def _num_classes(spec: JobSpec, manifest: Manifest) -> int | None:
    return (spec.model.num_classes or len(manifest.classes)) if spec.model.class_cond else None


def _manifest(spec: JobSpec, *, classes: tuple[str, ...] = ()) -> Manifest:
    data = spec.data
    manifest = manifests.build(
        data.path,
        labels=data.labels,
        image_column=data.image_column,
        label_column=data.label_column,
        seed=spec.run.seed,
        validation_fraction=data.validation_fraction,
        classes=classes,
    )
    check_enough(manifest, global_batch=spec.train.global_batch)
    check_decoding(manifest, decoding_of(spec))
    if spec.model.class_cond:
        check_classes(manifest, num_classes=spec.model.num_classes)
        if spec.model.num_classes is None:
            spec.with_num_classes(len(manifest.classes))
    return manifest


def _check_pinned(spec: JobSpec, pinned: Manifest, found: Manifest) -> None:
    """Whether a run that is pinned to one data set may go on with what was found."""
    if not spec.data.adopt:
        check_same(pinned, found)
        return
    if compare(pinned, found):
        check_limit(found, decoding_of(spec))
    if spec.model.class_cond and spec.model.num_classes is None:
        check_no_new_class(pinned, found)


def write_run(opening: Opening) -> None:
    """Pins spec and data set; the driver that holds the run is the only writer of both files.

    Raises:
        SpecError: another driver has begun another run here since `inspect_run` looked.
        DataError: it has pinned the run to other data.
    """
    there = _there(opening.url, opening.spec)
    if there is not None and there.pinned is not None:
        _check_pinned(opening.spec, there.pinned, opening.manifest)
    manifests.write(opening.manifest, storage.join(opening.url, MANIFEST_FILE))
    storage.write_whole(storage.join(opening.url, SPEC_FILE), dump_yaml(opening.spec).encode())


def take_place(opening: Opening, *, info: Mapping[str, Any], lease: Lease | None = None) -> Place:
    """A place for the next attempt, under a number that nobody else has.

    Raises:
        LeaseLostError: another driver has taken the run over.
    """
    info = {**info, "price_per_worker_hour": opening.spec.cluster.price_per_worker_hour}
    number = attempts.take_attempt(opening.url, info=info)
    if lease is not None:  # asked after the number was taken: whoever takes the run over later takes a higher one
        leases.check(lease)
    return Place(
        url=opening.url,
        attempt=number,
        spec_yaml=dump_yaml(opening.spec).encode(),
        spec_digest=opening.spec.digest(),
        manifest_digest=opening.manifest.digest,
        classes=tuple(opening.manifest.classes),
        info=info,
        lease=lease,
    )
