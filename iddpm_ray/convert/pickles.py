"""What a pickle of torch.save asks for by name, told from its opcodes: nothing of it is run."""

import io
import pickletools
import re
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import torch

_RECORD = "data.pkl"
_BARE = 4  # pickles of a file of before zip: magic number, version, system, content
_LONGEST = 100  # of a name that is shown
_TEXTS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE")
_OWN = re.compile(
    r"collections\.OrderedDict|torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2|torch\.nn\.parameter\.Parameter"
    r"|torch\.serialization\._get_layout|torch\.(\w+Storage|Tensor|Size|device|bool|(bfloat|complex|float|u?int)\d\w*)"
)
"""What torch itself writes into a file of tensors."""


@dataclass(frozen=True)
class Asked:
    """What stands in a file of torch.save.

    Attributes:
        protocol: of its pickle; 0 for a file that is none of torch.save.
        names: what it asks for besides torch's own, as `module.name` in order.
    """

    protocol: int
    names: tuple[str, ...]


def asked_by(path: str) -> Asked:
    """What a file asks for; of a damaged one what stands before the damage."""
    protocol, names = 0, list[str]()
    with suppress(Exception):  # a damaged archive raises whatever it happens to hit
        for pickle in _pickles(path):
            for operation, argument in _operations(pickle):
                if operation == "PROTO":
                    protocol = max(protocol, int(argument))
                else:
                    names.append(ascii(argument)[1:-1][:_LONGEST])
    return Asked(protocol, tuple(one for one in dict.fromkeys(names) if not _OWN.fullmatch(one)))


def _pickles(path: str) -> Iterator[BinaryIO]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.rpartition("/")[2] == _RECORD:
                    yield io.BytesIO(archive.read(name))
        return
    with open(path, "rb") as file:
        if not any(argument == torch.serialization.MAGIC_NUMBER for _, argument, _ in pickletools.genops(file)):
            return
        file.seek(0)
        for _ in range(_BARE):
            yield file


def _operations(pickle: BinaryIO) -> Iterator[tuple[str, str]]:
    """The protocol, and every name that is looked up, as opcode and text.

    From protocol 4 on a name lies on the stack as two texts, pushed or fetched from the memo; anything else counts as a text unknown.
    """
    memo: dict[object, str | None] = {}
    module: str | None = None
    top: str | None = None
    for opcode, argument, _ in pickletools.genops(pickle):
        match opcode.name:
            case "PROTO":
                yield "PROTO", str(argument)
            case "FRAME":
                pass
            case "GLOBAL" | "INST":
                yield "GLOBAL", str(argument).replace(" ", ".")
                module, top = top, None
            case "STACK_GLOBAL":
                yield "GLOBAL", f"{module or '?'}.{top or '?'}"
                module, top = None, None
            case "MEMOIZE":
                memo[len(memo)] = top
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[argument] = top
            case "GET" | "BINGET" | "LONG_BINGET":
                module, top = top, memo.get(argument)
            case name:
                module, top = top, argument if name in _TEXTS else None
