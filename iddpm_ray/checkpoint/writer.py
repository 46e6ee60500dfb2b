"""Writes tensors as plain bytes into data files at any URL: the storage half of a torch.distributed.checkpoint save."""

import hashlib
import io
import os
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from iddpm_ray import storage
from iddpm_ray.checkpoint.index import Piece, StoredTensor
from iddpm_ray.checkpoint.marker import FileRecord
from iddpm_ray.errors import CheckpointError

_FILE_BYTES = 128 * 2**20  # remote files of about this size go in parallel and can be sent again whole
_UPLOADS = 4


@dataclass(frozen=True)
class WrittenFile:
    """A data file that is in place: its record, and the pieces in it by tensor name."""

    name: str
    record: FileRecord
    pieces: tuple[tuple[str, Piece], ...]


@dataclass(frozen=True)
class Written:
    """All that the ranks have written: files by name, tensors by name."""

    files: Mapping[str, FileRecord]
    tensors: Mapping[str, StoredTensor]


class HostPlanner(DefaultSavePlanner):
    """Plans with the live tensors' names, shapes and shards, and hands out their host copies' bytes."""

    def __init__(self, host: Mapping[str, Tensor]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._host = host

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """The contiguous CPU copy of what this rank holds of the tensor."""
        return self._host[index.fqn]


class DataWriter(StorageWriter):
    """Puts each rank's pieces into data-{rank}-{number}.bin; errors leave as CheckpointError, which every rank can unpickle.

    Args:
        url: the checkpoint's directory.
        fingerprint: of all that is saved; ranks that disagree on it do not save.
        finish: called on the coordinator when every rank has written; what it returns reaches all ranks as the metadata's
            planner_data, and what it raises makes the save fail on all of them.
    """

    def __init__(self, url: str, *, fingerprint: str, finish: Callable[[Written], Mapping[str, float]]) -> None:
        self._url = url
        self._fingerprint = fingerprint
        self._finish = finish
        self._rank = 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """One writer is one save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Learn this rank's place in the saving group."""
        self._rank = int(kwargs.get("rank", 0))

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Send the fingerprint along."""
        return SavePlan(plan.items, storage_data=self._fingerprint, planner_data=plan.planner_data)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Refuse to mix states of different make."""
        different = [rank for rank, plan in enumerate(plans) if plan.storage_data != plans[0].storage_data]
        if different:
            raise CheckpointError(f"ranks {different} would save other tensors than rank 0")
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's files; one result a file."""
        try:
            storage.make_dirs(self._url)
        except Exception as error:  # whatever a store raises must reach the other ranks as something that unpickles
            raise CheckpointError(f"{storage.shown(self._url)} could not be made: {storage.reason(error)}") from None
        files = _fill_files(plan, planner)
        named = [(f"data-{self._rank:05d}-{number:03d}.bin", items) for number, items in enumerate(files)]
        if storage.is_local(self._url):
            written = [_write_file(self._url, name, items) for name, items in named]
        else:
            with ThreadPoolExecutor(_UPLOADS) as uploads:
                written = list(uploads.map(lambda file: _write_file(self._url, *file), named))
        future: Future[list[WriteResult]] = Future()
        future.set_result([WriteResult(MetadataIndex(file.name), file.record.size, file) for file in written])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Put all ranks' results together and hand them on."""
        files: list[WrittenFile] = [result.storage_data for rank in results for result in rank]
        pieces: dict[str, list[Piece]] = {name: [] for name in metadata.state_dict_metadata}
        for file in files:
            for name, piece in file.pieces:
                pieces[name].append(piece)
        tensors = {}
        for name, stored in metadata.state_dict_metadata.items():
            assert isinstance(stored, TensorStorageMetadata)
            tensors[name] = StoredTensor(stored.properties.dtype, tuple(stored.size), tuple(pieces[name]))
        metadata.planner_data = self._finish(Written({file.name: file.record for file in files}, tensors))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any URL."""
        return True


def _fill_files(plan: SavePlan, planner: SavePlanner) -> list[list[tuple[WriteItem, Tensor]]]:
    files: list[list[tuple[WriteItem, Tensor]]] = []
    held = 0
    for item in plan.items:
        tensor = planner.resolve_data(item)
        assert not isinstance(tensor, io.BytesIO)
        if not files or (held and held + tensor.nbytes > _FILE_BYTES):
            files.append([])
            held = 0
        files[-1].append((item, tensor))
        held += tensor.nbytes
    return files


def _write_file(url: str, name: str, items: list[tuple[WriteItem, Tensor]]) -> WrittenFile:
    start, pieces, views = 0, [], []
    for item, tensor in items:
        view = tensor.reshape(-1).view(torch.uint8).numpy().data
        assert item.tensor_data is not None
        chunk = item.tensor_data.chunk
        pieces.append((item.index.fqn, Piece(name, start, len(view), tuple(chunk.offsets), tuple(chunk.sizes), zlib.crc32(view))))
        views.append(view)
        start += len(view)
    try:
        record = _put(storage.join(url, name), views)
    except Exception as error:  # as above
        raise CheckpointError(f"{name} could not be written: {storage.reason(error)}") from None
    return WrittenFile(name, record, tuple(pieces))


def _put(url: str, views: list[memoryview]) -> FileRecord:
    """One file of all the bytes. Whole only when this returns; nobody looks before the marker is there."""
    hashed = hashlib.sha256()
    if not storage.is_local(url):
        data = b"".join(views)
        hashed.update(data)
        storage.write_whole(url, data)
        return FileRecord(len(data), hashed.hexdigest())
    for view in views:
        hashed.update(view)
    _write_in_place(storage.filesystem(url)[1], views)
    return FileRecord(sum(len(view) for view in views), hashed.hexdigest())


@storage.patiently
def _write_in_place(path: str, views: list[memoryview]) -> None:
    """A local file without a copy beside it: a checkpoint may be as large as half the disk."""
    with open(path, "wb") as file:
        for view in views:
            file.write(view)
        file.flush()
        os.fsync(file.fileno())
