"""tensors.json: which piece of which tensor lies where in a checkpoint's data files. JSON, so reading it runs no code."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from iddpm_ray.checkpoint.commit import Checkpoint, read_file
from iddpm_ray.checkpoint.marker import DamagedError, Marker

INDEX = "tensors.json"
_DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool),
        *(torch.complex64, torch.complex128),
    )
}


@dataclass(frozen=True)
class Piece:
    """A contiguous part of a tensor as it lies in a file, row-major, little-endian.

    Attributes:
        file: name of the data file.
        start: first byte in it.
        length: bytes.
        offsets: where the part begins in the tensor, an index an axis.
        shape: of the part.
        crc32: of the bytes.
    """

    file: str
    start: int
    length: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    crc32: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a checkpoint: its dtype, its shape, and the pieces that make it up."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def encode_index(tensors: Mapping[str, StoredTensor]) -> bytes:
    """The content of tensors.json."""
    said = {
        name: {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": tensor.shape,
            "pieces": [vars(piece) for piece in tensor.pieces],
        }
        for name, tensor in sorted(tensors.items())
    }
    return json.dumps({"byteorder": "little", "tensors": said}).encode()


def decode_index(data: bytes, *, sizes: Mapping[str, int], name: str) -> dict[str, StoredTensor]:
    """What tensors.json says, checked: every piece lies inside a known file and inside its tensor.

    Args:
        data: the file's content.
        sizes: bytes of the checkpoint's files by name.
        name: of the checkpoint, for the error.

    Raises:
        DamagedError: it says something impossible.
    """
    try:
        said = json.loads(data)
        if said["byteorder"] != "little":
            raise ValueError
        tensors = {}
        for tensor_name, fields in said["tensors"].items():
            pieces = tuple(_piece(piece) for piece in fields["pieces"])
            tensor = StoredTensor(_DTYPES[fields["dtype"]], _counts(fields["shape"]), pieces)
            whole = sum(_volume(piece) for piece in pieces) == math.prod(tensor.shape)
            sane = math.prod(max(1, count) for count in tensor.shape) < 2**63 and len(tensor.shape) <= 64
            if not (sane and whole and all(_fits(piece, tensor, sizes) for piece in pieces) and _apart(pieces)):
                raise ValueError
            tensors[tensor_name] = tensor
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedError(f"{name} is damaged: its {INDEX} does not describe its data files") from None
    return tensors


def _piece(said: Mapping[str, object]) -> Piece:
    numbers = _counts([said["start"], said["length"], said["crc32"]])
    if not isinstance(said["file"], str):
        raise ValueError
    return Piece(said["file"], numbers[0], numbers[1], _counts(said["offsets"]), _counts(said["shape"]), numbers[2])


def _counts(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 2**63 for value in values):
        raise ValueError
    return tuple(values)


def _volume(piece: Piece) -> int:
    return math.prod(piece.shape)


def _apart(pieces: tuple[Piece, ...]) -> bool:
    """Whether no two pieces hold the same element; with the volumes' sum, that they cover the whole."""
    ordered = sorted((piece for piece in pieces if piece.length), key=lambda piece: piece.offsets)
    for index, one in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if other.offsets[:1] and other.offsets[0] >= one.offsets[0] + one.shape[0]:
                break  # and so do all that follow
            spans = zip(one.offsets, one.shape, other.offsets, other.shape, strict=True)
            if all(start < after + more and after < start + count for start, count, after, more in spans):
                return False
    return True


def _fits(piece: Piece, tensor: StoredTensor, sizes: Mapping[str, int]) -> bool:
    if len(piece.offsets) != len(tensor.shape) or len(piece.shape) != len(tensor.shape):
        return False
    inside = all(start + count <= whole for start, count, whole in zip(piece.offsets, piece.shape, tensor.shape, strict=True))
    held = piece.length == _volume(piece) * tensor.dtype.itemsize
    return inside and held and piece.start + piece.length <= sizes.get(piece.file, -1)


def read_index(checkpoint: Checkpoint, marker: Marker) -> dict[str, StoredTensor]:
    """What tensors the checkpoint holds, by name: dtype and shape, without reading them.

    Raises:
        DamagedError: the index cannot be read.
    """
    sizes = {name: record.size for name, record in marker.files.items()}
    return decode_index(read_file(checkpoint, INDEX, marker=marker), sizes=sizes, name=checkpoint.name)
