"""State dicts out of files that anybody may have made: `.pt` and `.safetensors`; reading one runs no code of it."""

import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.convert.files import local_copy, sha256_of
from iddpm_ray.convert.pickles import asked_by
from iddpm_ray.errors import CheckpointError

PICKLES = (".pt", ".pth", ".bin")
ENDINGS = (*PICKLES, ".safetensors")
_PROTOCOL = 2  # of torch.save
_NO_STATE_DICT = "name a file that holds a state dict: parameter names and their tensors, as torch.save(model.state_dict()) makes it"


@dataclass(frozen=True)
class WeightFile:
    """A state dict as it lies in a file, mapped rather than read where the format allows.

    Attributes:
        tensors: by name, on the CPU, contiguous float32 (narrower ones are widened, which loses nothing).
        metadata: texts that a safetensors file carries.
        sha256: of the file, in hexadecimal.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    sha256: str


def read_weights(url: str, *, sha256: str | None = None, field: str = "sha256") -> WeightFile:
    """The state dict in a file at a path or URL; its ending tells the format.

    Args:
        sha256: what the file must have; compared before anything of it is interpreted.
        field: what the expected checksum is called, for the error.

    Raises:
        CheckpointError: it cannot be read, is no state dict, would run code when it is read, or has another checksum.
    """
    name = storage.shown(url)
    with local_copy(url) as path:
        found = sha256_of(path)
        if sha256 is not None and found != sha256:
            raise CheckpointError(f"{name} has SHA-256 {found}, {field} says {sha256}", fix=f"get the right file, or mend {field}")
        tensors, metadata = (
            _read_safetensors(path, name=name) if url.endswith(".safetensors") else (_read_pickle(path, name=name), dict[str, str]())
        )
    return WeightFile({key: _float32(key, value, name=name) for key, value in tensors.items()}, metadata, found)


def _float32(key: object, value: object, *, name: str) -> Tensor:
    if not isinstance(key, str) or not isinstance(value, Tensor):
        raise CheckpointError(f"{name} is no state dict: its entry {key!r} is no tensor", fix=_NO_STATE_DICT)
    if key.endswith(".num_batches_tracked"):  # batch normalisation counts; no weight
        return value.detach()
    if not value.is_floating_point() or value.layout != torch.strided or value.dtype.itemsize < 2:
        raise CheckpointError(f"{name}: {key} is {value.dtype}, no weight of a network", fix="name a file of plain floating-point weights")
    return value.detach().to(torch.float32).contiguous()


def _read_pickle(path: str, *, name: str) -> Mapping[str, Tensor]:
    archive = _check_archive(path, name=name)
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of another pickle protocol
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except Exception as error:  # a damaged file raises whatever it happens to hit
        raise _refusal(path, error, name=name) from None
    if not isinstance(loaded, Mapping):
        raise CheckpointError(f"{name} holds a {type(loaded).__name__}, no state dict", fix=_NO_STATE_DICT)
    if {"state", "param_groups"} <= set(loaded):
        raise CheckpointError(f"{name} holds the state of an optimiser", fix="name the model*.pt or ema_*.pt beside it")
    return loaded


def _check_archive(path: str, *, name: str) -> bool:
    """Whether a file is a zip archive, as torch.save makes them; refuses one that is damaged or compressed."""
    size = os.path.getsize(path)
    try:
        if not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
            unpacked = sum(part.file_size for part in parts)
            summed = any(part.CRC for part in parts)  # torch.save writes zeros where it is told to sum nothing
            damaged = unpacked <= size and summed and archive.testzip() is not None
    except Exception:  # as above
        raise _damaged(name) from None
    if unpacked > size:  # torch.save compresses nothing
        raise CheckpointError(f"{name} has {size} bytes and would unpack to {unpacked}, and was refused", fix=_NO_STATE_DICT)
    if damaged:
        raise _damaged(name)
    return True


def _refusal(path: str, error: Exception, *, name: str) -> CheckpointError:
    """Why torch has not read a file: by its own words where it knows the pickle's protocol, else by what stands in it."""
    said, asked = re.search(r"GLOBAL ([\w.]+)", str(error)), asked_by(path)
    wanted = said[1] if said is not None else next(iter(asked.names), None)
    if wanted is not None:
        return CheckpointError(f"{name} asks for {wanted} while it is read, and was refused", fix=_NO_STATE_DICT)
    if asked.protocol > _PROTOCOL:
        fix = f"save it again with pickle_protocol={_PROTOCOL}, as torch.save does by itself"
        return CheckpointError(f"{name} was saved with pickle_protocol={asked.protocol}, of which torch reads no weights", fix=fix)
    return _damaged(name)


def _damaged(name: str) -> CheckpointError:
    return CheckpointError(f"{name} is damaged, or no file of torch.save", fix=_NO_STATE_DICT)


def _read_safetensors(path: str, *, name: str) -> tuple[Mapping[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118 it is no dict
    except (SafetensorError, ValueError, KeyError, OSError, OverflowError):
        raise CheckpointError(f"{name} is damaged, or no safetensors file", fix="copy it again") from None
