"""Begins a group of ranks from the newest checkpoint that all of them can read."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.commit import Checkpoint, checkpoint_named, read_file, read_marker
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.index import StoredTensor, read_index
from iddpm_ray.checkpoint.marker import DamagedError, Marker
from iddpm_ray.errors import CheckpointError, UserError
from iddpm_ray.parallel.collective import gather_bytes, rank


@dataclass(frozen=True)
class Restored:
    """What a group of ranks has begun from, the same on all of them.

    Attributes:
        checkpoint: None for a fresh start.
        marker: of that checkpoint.
        tensors: what was loaded, by name; {} for a fresh start.
        rejected: a sentence for each newer checkpoint that could not be read, newest first.
        files: the content of the small files that were asked for, by name; {} for a fresh start.
    """

    checkpoint: Checkpoint | None
    marker: Marker | None
    tensors: Mapping[str, Tensor]
    rejected: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)


def restore_newest(
    run_url: str,
    *,
    allocate: Callable[[Mapping[str, StoredTensor]], Mapping[str, Tensor]],
    spec_digest: str,
    files: Sequence[str] = (),
    group: dist.ProcessGroup | None,
) -> Restored:
    """Load the newest checkpoint that every rank can read; called by all ranks of a CPU group.

    Rank 0 chooses. If any rank then finds damage in what it reads, all go on to the next older one.

    Args:
        run_url: the run's directory.
        allocate: given what the checkpoint holds, the tensors to fill, by name: new ones, or live ones, which a damaged
            checkpoint may leave partly overwritten before an older one overwrites them.
        spec_digest: what the checkpoint's spec must have.
        files: small ones to read beside the tensors; damage there is damage.
        group: of all ranks that begin; None for a single process.

    Raises:
        CheckpointError: as `newest_readable`, or a checkpoint does not fit; on all ranks.
        ConnectionError: a rank cannot read now, but may at another try; that rank raises what it met.
    """
    rejected: dict[str, str] = {}
    while True:
        name, reasons = _choose(run_url, spec_digest, rejected, group)
        if name is None:
            return Restored(None, None, {}, reasons)
        checkpoint = checkpoint_named(run_url, name)
        assert checkpoint is not None
        marker: Marker | None = None
        tensors: Mapping[str, Tensor] = {}
        small: dict[str, bytes] = {}
        damage, failure = "", None
        try:
            marker = read_marker(checkpoint)
            small = {name: read_file(checkpoint, name, marker=marker) for name in files}
            tensors = allocate(read_index(checkpoint, marker))
            load(checkpoint, into=tensors, marker=marker)
        except DamagedError as error:
            damage = str(error)
        except Exception as error:  # raised below, once the others know
            failure = error
        kind = "" if failure is None else "for good" if isinstance(failure, UserError) else "now"
        said = [json.loads(text) for text in _gather(json.dumps([damage, kind]).encode(), group)]
        if failure is not None:
            raise failure
        if who := [index for index, (_, failed) in enumerate(said) if failed]:
            if any(failed == "for good" for _, failed in said):
                raise CheckpointError(f"ranks {who} could not load {name}", fix="see their error")
            raise ConnectionError(f"ranks {who} could not load {name}: see their error")
        if not any(text for text, _ in said):
            return Restored(checkpoint, marker, tensors, reasons, small)
        first = {text: index for index, (text, _) in reversed(list(enumerate(said))) if text}
        rejected[name] = "; ".join(text if group is None else f"{text} (rank {index})" for text, index in first.items())


def _choose(
    run_url: str, spec_digest: str, rejected: Mapping[str, str], group: dist.ProcessGroup | None
) -> tuple[str | None, tuple[str, ...]]:
    """Rank 0's choice on all ranks: a name or None, and why newer ones were passed over."""
    own: dict[str, Any] = {}
    if group is None or rank(group) == 0:
        try:
            choice = newest_readable(run_url, spec_digest=spec_digest, rejected=rejected)
            own = {"name": choice.checkpoint.name if choice.checkpoint else None, "rejected": choice.rejected}
        except UserError as error:
            own = {"error": [error.what, error.value, error.fix]}
        except Exception as error:  # a store may raise anything, and the others wait for a word
            own = {"now": f"{storage.shown(run_url)} cannot be read: {storage.reason(error)}"}
    said: dict[str, Any] = json.loads(_gather(json.dumps(own).encode(), group)[0])
    if "now" in said:
        raise ConnectionError(said["now"])
    if "error" in said:
        what, value, fix = said["error"]
        raise CheckpointError(what, value=value, fix=fix)
    return said["name"], tuple(said["rejected"])


def _gather(data: bytes, group: dist.ProcessGroup | None) -> list[bytes]:
    return [data] if group is None else gather_bytes(data, group=group)
