"""Saves and loads a dict of tensors with torch.distributed.checkpoint, at any URL, onto any number of ranks.

DCP plans: it joins the shards of sharded tensors on a save and cuts them anew on a load. The bytes, the index and the
commit are ours: no file is a pickle, every piece has a checksum, and nothing counts before the marker.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from iddpm_ray import storage
from iddpm_ray.checkpoint.commit import Checkpoint, open_checkpoint, read_marker, seal
from iddpm_ray.checkpoint.index import INDEX, StoredTensor, encode_index, read_index
from iddpm_ray.checkpoint.lease import FencedError
from iddpm_ray.checkpoint.marker import FileRecord, Marker, digest, is_file_name
from iddpm_ray.checkpoint.reader import DataReader
from iddpm_ray.checkpoint.shares import fingerprint, flatten
from iddpm_ray.checkpoint.writer import DataWriter, HostPlanner, Written
from iddpm_ray.errors import CheckpointError

# Said once a save by DCP to whoever has no process group, which is no mistake here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


class LostContactError(CheckpointError):
    """The ranks could not finish a save together: one has died or hangs. Whether it was committed, rank 0 alone knows."""


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint, the same on all ranks: bytes of all files, seconds on rank 0 from start to marker."""

    checkpoint: Checkpoint
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Identity:
    """What a checkpoint says of itself: the clock (step x global_batch), and the digest of its spec."""

    samples_seen: int
    spec_digest: str


def save(
    checkpoint: Checkpoint,
    *,
    tensors: Mapping[str, Tensor],
    host: Mapping[str, Tensor],
    identity: Identity,
    extra_files: Mapping[str, bytes],
    group: dist.ProcessGroup | None,
    fence: Callable[[], None] | None = None,
    before_mark: Callable[[], None] | None = None,
) -> Saved:
    """Write a checkpoint and mark it; called by every rank of the group, which all return or all raise.

    Args:
        checkpoint: where.
        tensors: the whole state by name; of it only names, shapes and shards are used.
        host: CPU copies of what `shares.share` gives this rank to write.
        identity: what the marker says.
        extra_files: more files by name; only those of rank 0 are written.
        group: a CPU group that nothing else uses meanwhile; None for a single process.
        fence: called on rank 0 when all data are written, and again before the marker; raises FencedError if the run is somebody else's.
        before_mark: called on rank 0 just before the marker; raises if it must not be written.

    Raises:
        FencedError: nothing was marked, since `fence` or `before_mark` said that the run is somebody else's; on all ranks.
        CheckpointError: nothing was marked; says which rank failed and why, in the same words on all ranks.
        LostContactError: the ranks could not agree.
    """
    began = time.monotonic()
    outcome: dict[str, float] = {}

    def finish(written: Written) -> Mapping[str, float]:
        try:
            _ask(fence, checkpoint)
            return commit(written)
        except FencedError:
            raise
        except CheckpointError:
            _ask(fence, checkpoint)  # those who have the run now may have swept the files away, which then is the better reason
            raise

    def commit(written: Written) -> Mapping[str, float]:
        files = dict(written.files)
        for name, data in {**extra_files, INDEX: encode_index(written.tensors)}.items():
            files[name] = _write_extra(checkpoint, name, data)
        world_size = 1 if group is None else dist.get_world_size(group)
        marker = Marker(checkpoint.step, checkpoint.attempt, identity.samples_seen, identity.spec_digest, world_size, files)
        last_words = [call for call in (before_mark, fence) if call is not None]
        _ask(lambda: seal(checkpoint, marker, before_mark=lambda: [call() for call in last_words]), checkpoint)
        outcome.update(bytes=sum(record.size for record in files.values()), seconds=time.monotonic() - began)
        return outcome

    writer = DataWriter(checkpoint.url, fingerprint=fingerprint(tensors), finish=finish)
    try:
        metadata = dcp_save(
            {name: tensors[name] for name in host},
            storage_writer=writer,
            planner=HostPlanner(host),
            process_group=group,
            no_dist=group is None,
        )
    except CheckpointException as error:
        fenced = next((failure[0] for failure in error.failures.values() if isinstance(failure[0], FencedError)), None)
        raise fenced or CheckpointError(_words(error)) from None
    except Exception as error:
        if outcome:  # rank 0 has marked it; what failed is only telling the others
            return Saved(checkpoint, int(outcome["bytes"]), outcome["seconds"])
        raise LostContactError(f"the ranks could not finish {checkpoint.name} together: {storage.reason(error)}") from error
    told = metadata.planner_data
    return Saved(checkpoint, int(told["bytes"]), told["seconds"])


def load(checkpoint: Checkpoint | str, *, into: Mapping[str, Any], ignore_extra: bool = False, marker: Marker | None = None) -> None:
    """Fill allocated tensors in place, each rank by itself, reading only the pieces it needs.

    Args:
        checkpoint: complete; or the URL of its directory.
        into: nested dict of tensors on any device, sharded or not; its names, shapes and dtypes must be the saved ones.
        ignore_extra: whether the checkpoint may hold more than is asked for.
        marker: of the checkpoint, if already read.

    Raises:
        CheckpointError: names, shapes or dtypes differ; nothing is changed then.
        DamagedError: something cannot be read, or is not what was written; `into` may be partly overwritten then.
    """
    if isinstance(checkpoint, str):
        checkpoint, marker = open_checkpoint(checkpoint)
    marker = marker or read_marker(checkpoint)
    stored = read_index(checkpoint, marker)
    wanted = flatten(into)
    _compare(stored, wanted, name=checkpoint.name, ignore_extra=ignore_extra)
    reader = DataReader(checkpoint.url, name=checkpoint.name, tensors=stored)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        with torch.no_grad():
            dcp_load(dict(wanted), storage_reader=reader, planner=planner, no_dist=True)
    except CheckpointException as error:
        raise error.failures[0][0] from None  # DCP wraps what was raised, also where there is only one rank


def _write_extra(checkpoint: Checkpoint, name: str, data: bytes) -> FileRecord:
    assert is_file_name(name), name
    try:
        storage.write_whole(storage.join(checkpoint.url, name), data)
    except Exception as error:  # whatever a store raises must reach the other ranks as something that unpickles
        raise CheckpointError(f"{name} could not be written: {storage.reason(error)}") from None
    return digest(data)


def _ask(call: Callable[[], object] | None, checkpoint: Checkpoint) -> None:
    """A step of the commit on rank 0; whatever it raises reaches the other ranks as something that unpickles."""
    try:
        if call is not None:
            call()
    except FencedError:
        raise
    except CheckpointError as error:
        raise CheckpointError(error.what, value=error.value, fix=error.fix) from None
    except Exception as error:  # as above
        raise CheckpointError(f"{checkpoint.name} could not be marked: {storage.reason(error)}") from None


def _words(error: CheckpointException) -> str:
    """Each different failure once, with the ranks it happened on."""
    ranks: dict[str, list[int]] = {}
    for rank, failure in sorted(error.failures.items()):
        cause = failure[0]
        ranks.setdefault(str(cause) if isinstance(cause, CheckpointError) else storage.reason(cause), []).append(rank)
    if len(error.failures) == 1 and list(error.failures) == [0]:
        return next(iter(ranks))
    return "; ".join(f"rank {', '.join(map(str, who))}: {what}" for what, who in ranks.items())


def _compare(stored: Mapping[str, StoredTensor], wanted: Mapping[str, Tensor], *, name: str, ignore_extra: bool) -> None:
    missing = sorted(wanted.keys() - stored.keys())
    extra = [] if ignore_extra else sorted(stored.keys() - wanted.keys())
    other = [
        f"{key} is {_kind(stored[key].shape, stored[key].dtype)} there and {_kind(tensor.shape, tensor.dtype)} here"
        for key, tensor in sorted(wanted.items())
        if key in stored and (stored[key].shape != tuple(tensor.shape) or stored[key].dtype != tensor.dtype)
    ]
    parts = [
        *([f"it lacks {_some(missing)}"] if missing else []),
        *([f"it also holds {_some(extra)}"] if extra else []),
        *([_some(other)] if other else []),
    ]
    if parts:
        raise CheckpointError(f"{name} does not fit this model: {'; '.join(parts)}", fix="use the spec that the checkpoint was made with")


def _kind(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
