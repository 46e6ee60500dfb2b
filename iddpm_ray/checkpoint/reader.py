"""Reads the pieces that a rank needs, in few large requests, and checks each: the storage half of a load."""

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future as Pending
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from iddpm_ray import storage
from iddpm_ray.checkpoint.index import Piece, StoredTensor
from iddpm_ray.checkpoint.marker import DamagedError

_REQUEST_BYTES = 32 * 2**20
_GAP_BYTES = 64 * 2**10  # cheaper to read over than to ask again
_REQUESTS = 4


@dataclass(frozen=True)
class _Read:
    """A piece to read, of which tensor, and every place that wants a part of it."""

    name: str
    piece: Piece
    dtype: torch.dtype
    wanted: Sequence[ReadItem]


@dataclass(frozen=True)
class _Request:
    """Neighbouring pieces of one file, read at once."""

    file: str
    start: int
    end: int
    reads: Sequence[_Read]


class DataReader(StorageReader):
    """Reads from one checkpoint whose index has been checked.

    Args:
        url: the checkpoint's directory.
        name: of the checkpoint, for errors.
        tensors: its index.
    """

    def __init__(self, url: str, *, name: str, tensors: Mapping[str, StoredTensor]) -> None:
        self._url = url
        self._name = name
        self._tensors = tensors

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """One reader is one checkpoint."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index in DCP's words."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=tensor.dtype),
                    torch.Size(tensor.shape),
                    [ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.shape)) for piece in tensor.pieces],
                )
                for name, tensor in self._tensors.items()
            }
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to prepare."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read, check, and copy into place.

        Raises:
            DamagedError: a file is missing or cut, or a piece's bytes are not those that were written.
        """
        with ThreadPoolExecutor(_REQUESTS) as threads:
            for request, data in _ahead(threads, self._fetch, _group(self._reads(plan))):
                for read in request.reads:
                    _place(read, data[read.piece.start - request.start :][: read.piece.length], planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any URL."""
        return True

    def _reads(self, plan: LoadPlan) -> list[_Read]:
        wanted: dict[MetadataIndex, list[ReadItem]] = {}
        for item in plan.items:
            wanted.setdefault(item.storage_index, []).append(item)
        reads = []
        for index, items in wanted.items():
            tensor = self._tensors[index.fqn]
            piece = next(piece for piece in tensor.pieces if piece.offsets == tuple(index.offset or ()))
            if piece.length:
                reads.append(_Read(index.fqn, piece, tensor.dtype, items))
        return reads

    def _fetch(self, request: _Request) -> memoryview:
        try:
            data = memoryview(storage.read_bytes(storage.join(self._url, request.file), start=request.start, end=request.end))
        except Exception as error:  # a store may raise anything
            if storage.is_transient(error):
                raise  # it does not answer now, which is no damage
            raise DamagedError(f"{self._name} is damaged: {request.file} cannot be read: {storage.reason(error)}") from None
        if len(data) != request.end - request.start:
            raise DamagedError(f"{self._name} is damaged: {request.file} is cut")
        for read in request.reads:
            if zlib.crc32(data[read.piece.start - request.start :][: read.piece.length]) != read.piece.crc32:
                raise DamagedError(f"{self._name} is damaged: {read.name} in {request.file} is not what was written")
        return data


def _group(reads: Sequence[_Read]) -> Iterator[_Request]:
    """Neighbours joined up to the size of a request; a larger piece is a request by itself."""
    held: list[_Read] = []
    for read in sorted(reads, key=lambda read: (read.piece.file, read.piece.start)):
        if held:
            end = _end(held[-1].piece)
            apart = read.piece.file != held[0].piece.file or read.piece.start > end + _GAP_BYTES
            if apart or _end(read.piece) - held[0].piece.start > _REQUEST_BYTES:
                yield _Request(held[0].piece.file, held[0].piece.start, end, held)
                held = []
        held.append(read)
    if held:
        yield _Request(held[0].piece.file, held[0].piece.start, _end(held[-1].piece), held)


def _end(piece: Piece) -> int:
    return piece.start + piece.length


def _ahead(
    threads: ThreadPoolExecutor, fetch: Callable[[_Request], memoryview], requests: Iterator[_Request]
) -> Iterator[tuple[_Request, memoryview]]:
    """Results in order, with a few requests under way and no more, so that memory stays bounded."""
    pending: deque[tuple[_Request, Pending[memoryview]]] = deque()
    for request in requests:
        pending.append((request, threads.submit(fetch, request)))
        if len(pending) == _REQUESTS:
            first, data = pending.popleft()
            yield first, data.result()
    for first, data in pending:
        yield first, data.result()


def _place(read: _Read, data: memoryview, planner: LoadPlanner) -> None:
    """Copy the wanted parts of a piece to where they belong; straight into it where the whole of a CPU tensor is wanted."""
    source = np.frombuffer(data, dtype=np.uint8)
    staged: Tensor | None = None
    for item in read.wanted:
        target = planner.resolve_tensor(item)
        if target.device.type == "cpu" and target.is_contiguous() and target.nbytes == len(source) and target.dtype == read.dtype:
            target.reshape(-1).view(torch.uint8).numpy()[:] = source
        else:
            if staged is None:
                block = torch.empty(len(source), dtype=torch.uint8)
                block.numpy()[:] = source
                staged = block.view(read.dtype).view(read.piece.shape)
            part = staged
            for axis, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                part = part.narrow(axis, start, length)
            target.copy_(part)
        planner.commit_tensor(item, target)
