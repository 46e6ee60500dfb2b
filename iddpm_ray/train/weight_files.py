"""State dicts out of files that anybody may have made: `.pt` and `.safetensors`; reading one runs no code of it."""

import io
import json
import math
import pickle
import re
import zipfile
from collections.abc import Mapping

import torch
from torch import Tensor

from iddpm_ray.errors import CheckpointError

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NO_STATE_DICT = "name a file that holds a state dict: parameter names and their tensors, as torch.save(model.state_dict()) makes it"


def read_state_dict(data: bytes, *, name: str) -> dict[str, Tensor]:
    """The tensors of a file, on the CPU.

    Args:
        data: the whole file.
        name: what it is called in errors; its ending tells the format.

    Raises:
        CheckpointError: no such file, or one that would run code when it is read.
    """
    tensors = _read_safetensors(data, name=name) if name.endswith(".safetensors") else _read_pickle(data, name=name)
    other = next((key for key, value in tensors.items() if not isinstance(key, str) or not isinstance(value, Tensor)), None)
    if other is not None:
        raise CheckpointError(f"{name} is no state dict: its entry {other!r} is no tensor", fix=_NO_STATE_DICT)
    return dict(tensors)


def _read_pickle(data: bytes, *, name: str) -> Mapping[str, Tensor]:
    try:
        packed = zipfile.is_zipfile(io.BytesIO(data)) and sum(part.file_size for part in zipfile.ZipFile(io.BytesIO(data)).infolist())
    except Exception:  # as below
        raise CheckpointError(f"{name} is damaged, or no file of torch.save", fix=_NO_STATE_DICT) from None
    if packed > len(data):  # torch.save compresses nothing
        raise CheckpointError(f"{name} has {len(data)} bytes and would unpack to {packed}, and was refused", fix=_NO_STATE_DICT)
    try:
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        if asked is not None:
            raise CheckpointError(f"{name} asks for {asked[1]} while it is read, and was refused", fix=_NO_STATE_DICT) from None
        raise CheckpointError(f"{name} is damaged, or no file of torch.save", fix=_NO_STATE_DICT) from None
    except Exception:  # a damaged archive raises whatever it happens to hit
        raise CheckpointError(f"{name} is damaged, or no file of torch.save", fix=_NO_STATE_DICT) from None
    if not isinstance(loaded, Mapping):
        raise CheckpointError(f"{name} holds a {type(loaded).__name__}, no state dict", fix=_NO_STATE_DICT)
    return loaded


def _read_safetensors(data: bytes, *, name: str) -> Mapping[str, Tensor]:
    """The format is a little-endian length, a JSON header of that length, and the bytes that it points into."""
    try:
        begin = 8 + int.from_bytes(data[:8], "little")
        if begin > len(data):
            raise ValueError
        header = json.loads(data[8:begin])
        header.pop("__metadata__", None)
        return {key: _tensor(entry, body=memoryview(data)[begin:]) for key, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{name} is damaged, or no safetensors file", fix="copy it again") from None


def _tensor(entry: Mapping[str, object], *, body: memoryview) -> Tensor:
    dtype, shape, (start, stop) = FLOATS[str(entry["dtype"])], entry["shape"], entry["data_offsets"]  # type: ignore[misc] checked below
    if not isinstance(shape, list) or not 0 <= start <= stop <= len(body) or stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError
    return torch.frombuffer(bytearray(body[start:stop]), dtype=dtype).reshape(shape) if stop > start else torch.zeros(shape, dtype=dtype)
