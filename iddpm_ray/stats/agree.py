"""How ranks that know different labels come to the same list, with collectives whose shapes all ranks know beforehand."""

import hashlib
import json
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

Exchange = Callable[[Tensor], Tensor]
"""An all-gather given by the caller: [k] or [k, m] of every rank to [world_size, k(, m)], in rank order, equal on all ranks."""


def agree(labels: Iterable[str], exchange: Exchange | None, *, subject: str, device: torch.device) -> list[str]:
    """The sorted union of all ranks' labels, equal on all ranks.

    First a header of fixed size: digests of subject and labels, length in bytes, number. Where the digests agree, and from the second
    call on they usually do, that is all; otherwise the labels follow, padded to the longest.

    Args:
        subject: what the labels are for; ranks that meet with different subjects would mix, so all of them raise.

    Raises:
        RuntimeError: the ranks came here for different subjects.
    """
    own = sorted(set(labels))
    if exchange is None:
        return own
    payload = json.dumps(own).encode()
    header = torch.tensor([_digest(subject.encode()), _digest(payload), len(payload), len(own)], dtype=torch.int64, device="cpu")
    headers = gathered(header, exchange, device=device)
    if bool((headers[:, 0] != header[0]).any()):
        raise RuntimeError(f"ranks exchange statistics of different collectors at the same time; this one is at {subject!r}")
    if bool((headers == header).all()):
        return own
    padded = torch.zeros(int(headers[:, 2].max()), dtype=torch.uint8, device="cpu")
    padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    texts = gathered(padded, exchange, device=device)
    lengths = headers[:, 2].tolist()
    return sorted({label for text, length in zip(texts, lengths, strict=True) for label in json.loads(bytes(text[:length].tolist()))})


def gathered(tensor: Tensor, exchange: Exchange | None, *, device: torch.device) -> Tensor:
    """Every rank's tensor, of one shape on all ranks, on the CPU: [world_size, *shape]."""
    if exchange is None:
        return tensor[None]
    everyone = exchange(tensor.to(device)).cpu()
    if everyone.shape[1:] != tensor.shape:
        raise RuntimeError(f"the exchange turned {list(tensor.shape)} into {list(everyone.shape)}, not [world_size, *shape]")
    return everyone


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True)
