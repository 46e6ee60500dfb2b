"""What a run is told when it goes on with another data set than the one it is pinned to."""

from iddpm_ray import storage
from iddpm_ray.data.changes import compare
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.spec.duration import Duration
from iddpm_ray.spec.fields import fields_of, value_of
from iddpm_ray.spec.spec import JobSpec

_LEARNING_RATE = ("optim.anneal", "optim.warmup")


def adopted(spec: JobSpec, pinned: Manifest, found: Manifest) -> tuple[str, ...]:
    """A line of what changed in the data, and one of the lengths that change with its rows; () if the data is the same."""
    changes = compare(pinned, found)
    if not changes:
        return ()
    before, now = len(pinned.training_rows), len(found.training_rows)
    rows = f"{now:,} training rows" if before == now else f"{now:,} training rows, no longer {before:,}"
    data = f"adopts the changed data set at {storage.shown(found.root)}, {rows}: {'; '.join(changes)}"
    return (data, *_lengths(spec, before=before, now=now))


def _lengths(spec: JobSpec, *, before: int, now: int) -> list[str]:
    """What an epoch of another length does to the spec's lengths in epochs."""
    batch = spec.train.global_batch
    values = {field.path: value_of(spec, field) for field in fields_of(JobSpec)}
    epochs = {path: value for path, value in values.items() if isinstance(value, Duration) and value.unit == "epochs"}
    sizes = {path: (value.samples(batch, before), value.samples(batch, now)) for path, value in epochs.items()}
    moved = {path: size for path, size in sizes.items() if size[0] != size[1]}
    if not moved:
        return []
    each = ", ".join(f"{path} = {epochs[path]} is {size[1]:,} samples, no longer {size[0]:,}" for path, size in moved.items())
    rates = [path for path in _LEARNING_RATE if path in moved]
    rate = f"; the learning rate is another from here on, by {' and '.join(rates)}" if rates else ""
    return [f"an epoch has another length: {each}{rate}"]
