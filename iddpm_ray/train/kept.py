"""What a run's directory keeps of the run: its spec, the data set that it is pinned to, and what its checkpoints say of both."""

import json
from dataclasses import dataclass

from iddpm_ray import storage
from iddpm_ray.checkpoint.choose import Choice, newest_readable
from iddpm_ray.checkpoint.commit import LABELS_FILE, SPEC_FILE, read_file
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.errors import DataError, SpecError, UserError
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text

MANIFEST_FILE = "manifest.arrow"
STATE_FILE = "state.json"


@dataclass(frozen=True)
class Trained:
    """What a checkpoint says of the data that it was trained on.

    Attributes:
        name: of the checkpoint.
        classes: the text of each class index.
        digest: of the manifest.
    """

    name: str
    classes: tuple[str, ...]
    digest: str


def kept_spec(url: str) -> JobSpec | None:
    """The spec of the run: its own file, or, where that is gone, the one in its newest checkpoint; None if there is no run.

    Raises:
        SpecError: it cannot be understood.
        CheckpointError: it is gone, and there are checkpoints of which none can be read.
    """
    spec_url = storage.join(url, SPEC_FILE)
    if storage.exists(spec_url):
        try:
            return load_text(storage.read_bytes(spec_url).decode(), source=storage.shown(spec_url))
        except (UserError, UnicodeDecodeError) as error:
            what = f"{storage.shown(spec_url)}, which says what the run in that directory is, cannot be understood: {error}"
            raise SpecError(what, fix="restore it, or delete it: the run's newest checkpoint says the same") from error
    if not storage.is_dir(url):
        return None
    newest = newest_readable(url, files=(SPEC_FILE,))
    if newest.checkpoint is None or newest.marker is None:
        return None
    return load_text(read_file(newest.checkpoint, SPEC_FILE, marker=newest.marker).decode(), source=f"the spec in {newest.checkpoint.name}")


def kept_manifest(url: str) -> Manifest | None:
    """The data set that the run is pinned to; None if that file is gone.

    Raises:
        DataError: it is damaged.
    """
    manifest_url = storage.join(url, MANIFEST_FILE)
    if not storage.exists(manifest_url):
        return None
    try:
        return manifests.read(manifest_url)
    except DataError as error:
        fix = "restore it, or delete it: it is made anew from the data, and held against the run's newest checkpoint"
        raise DataError(error.what, fix=fix) from error


def trained_on(choice: Choice) -> Trained | None:
    """What the chosen checkpoint, if any, says of its data.

    Raises:
        DamagedError: it changed since it was chosen.
    """
    checkpoint, marker = choice.checkpoint, choice.marker
    if checkpoint is None or marker is None:
        return None
    classes, state = (json.loads(read_file(checkpoint, name, marker=marker)) for name in (LABELS_FILE, STATE_FILE))
    return Trained(checkpoint.name, tuple(classes), state["manifest"])
