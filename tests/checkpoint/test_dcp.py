"""What is loaded is what was saved, bit for bit, on any number of ranks; and nothing that a file says is run or believed."""

import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import faulty
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from states import DIGEST, all_same_bits, empty_like, same_bits, save_alone, state
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from iddpm_ray.checkpoint import commit
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.index import INDEX, read_index
from iddpm_ray.checkpoint.marker import MARKER, OWN, DamagedError, digest
from iddpm_ray.checkpoint.saver import AsyncSaver
from iddpm_ray.checkpoint.shares import flatten, share
from iddpm_ray.errors import CheckpointError


def saved(run: Path, seed: int = 7) -> commit.Checkpoint:
    outcome = save_alone(str(run), 10, seed=seed)
    assert outcome.committed, outcome.error
    return commit.complete(str(run))[0]


def data_file(checkpoint: commit.Checkpoint) -> Path:
    return Path(checkpoint.url) / "data-00000-000.bin"


def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    target = empty_like(state(7))
    assert not all_same_bits(target, state(7))
    load(checkpoint, into=target)
    assert all_same_bits(target, state(7))


def test_tensors_are_filled_in_place_whatever_their_layout(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    target = empty_like(state(7))
    weight = torch.nn.Parameter(torch.zeros(65, 33)).data.t()
    target["model"]["weight"] = weight
    load(checkpoint.url, into=target)
    assert same_bits(weight, state(7)["model"]["weight"])


def test_the_shares_of_all_ranks_are_the_whole_and_nearly_equal() -> None:
    tensors = flatten(state(1)) | {f"w{index}": torch.empty(index * 100) for index in range(40)}
    for world_size in (1, 2, 3, 8):
        shares = [share(tensors, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert sorted(name for own in shares for name in own) == sorted(tensors)
        sizes = [sum(tensor.nbytes for tensor in own.values()) for own in shares]
        assert max(sizes) - min(sizes) <= max(tensor.nbytes for tensor in tensors.values())


def test_only_tensors_belong_into_the_state() -> None:
    with pytest.raises(TypeError, match=r"model.count is a int"):
        flatten({"model": {"count": 3}})
    with pytest.raises(TypeError, match=r"two tensors are named a.b"):
        flatten({"a": {"b": torch.zeros(1)}, "a.b": torch.zeros(1)})


def save_replicated(run_url: str) -> list[str]:
    group = dist.new_group(backend="gloo")
    saver = AsyncSaver(run_url, attempt=1, group=group, spec_digest=DIGEST)
    saver.start(4, samples_seen=40, tensors=state(3), extra_files={"state.json": b"{}"} if dist.get_rank() == 0 else None)
    outcome = saver.close()
    assert outcome is not None
    assert outcome.committed, outcome.error
    return sorted(path.name for path in (Path(run_url) / "checkpoints" / outcome.name).iterdir())


def load_replicated(run_url: str) -> bool:
    target = empty_like(state(3))
    load(commit.complete(run_url)[0], into=target)
    return all_same_bits(target, state(3))


@pytest.mark.parametrize(("writers", "readers"), [(4, 2), (2, 4), (1, 2)])
def test_a_checkpoint_does_not_know_the_world_size(tmp_path: Path, writers: int, readers: int) -> None:
    files = run_ranks(save_replicated, writers, str(tmp_path))[0]
    assert [name for name in files if name.startswith("data-")] == [f"data-{rank:05d}-000.bin" for rank in range(writers)]
    assert all(run_ranks(load_replicated, readers, str(tmp_path)))
    assert load_replicated(str(tmp_path))


def test_replicated_state_is_written_once_in_all(tmp_path: Path) -> None:
    run_ranks(save_replicated, 4, str(tmp_path))
    written = sum(path.stat().st_size for path in tmp_path.rglob("data-*"))
    assert written == sum(tensor.nbytes for tensor in flatten(state(3)).values())


WHOLE = {"weight": torch.arange(7 * 6, dtype=torch.float32).view(7, 6), "bias": torch.arange(5.0)}


def sharded(kind: str, fill: bool) -> dict[str, Tensor]:
    """The state cut over all ranks: along rows, along columns, or rows over half of them and copies over the rest."""
    ranks = dist.get_world_size()
    if kind == "hybrid":
        mesh = init_device_mesh("cpu", (2, ranks // 2))
        placements: Any = [Replicate(), Shard(0)]
    else:
        mesh = init_device_mesh("cpu", (ranks,))
        placements = [Shard(0 if kind == "rows" else 1)]
    source = WHOLE["weight"] if fill else torch.zeros(7, 6)
    return {"weight": distribute_tensor(source, mesh, placements), "bias": WHOLE["bias"].clone() if fill else torch.zeros(5)}


def save_sharded(run_url: str, kind: str) -> None:
    saver = AsyncSaver(run_url, attempt=1, group=dist.new_group(backend="gloo"), spec_digest=DIGEST)
    saver.start(4, samples_seen=40, tensors={"model": sharded(kind, True)})
    outcome = saver.close()
    assert outcome is not None
    assert outcome.committed, outcome.error


def load_sharded(run_url: str, kind: str) -> bool:
    target = sharded(kind, False)
    load(commit.complete(run_url)[0], into={"model": target})
    weight = target["weight"]
    assert isinstance(weight, DTensor)
    return torch.equal(weight.full_tensor(), WHOLE["weight"]) and torch.equal(target["bias"], WHOLE["bias"])


@pytest.mark.parametrize(("kind", "other"), [("rows", "columns"), ("hybrid", "rows")])
def test_shards_load_onto_another_sharding_and_world_size(tmp_path: Path, kind: str, other: str) -> None:
    run_ranks(save_sharded, 4, str(tmp_path), kind)
    assert all(run_ranks(load_sharded, 2, str(tmp_path), other))
    whole = {"model": {"weight": torch.zeros(7, 6), "bias": torch.zeros(5)}}
    load(commit.complete(str(tmp_path))[0], into=whole)
    assert torch.equal(whole["model"]["weight"], WHOLE["weight"])


def test_names_and_shapes_must_agree_and_nothing_is_changed_otherwise(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    target = empty_like(state(7))
    target["model"]["bias"] = torch.zeros(3)
    target["odd"]["one"] = torch.zeros(2)
    target["odd"]["step"] = torch.zeros((), dtype=torch.int32)
    del target["odd"]["scalar"]
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint, into=target)
    for part in (
        "step-00000010.a0001 does not fit this model",
        "it lacks model.bias",
        "it also holds odd.scalar",
        "odd.one is float32 [1] there and float32 [2] here",
        "odd.step is int64 [] there and int32 [] here",
    ):
        assert part in str(caught.value)
    assert not isinstance(caught.value, DamagedError)
    assert all(not tensor.reshape(-1).view(torch.uint8).any() for tensor in target["typed"].values())


def test_a_part_of_a_checkpoint_may_be_loaded_and_only_that_is_read(tmp_path: Path) -> None:
    faulty.register()
    run_url = f"faulty://{tmp_path}"
    saver = AsyncSaver(run_url, attempt=1, group=None, spec_digest=DIGEST, asynchronous=False)
    saver.start(1, samples_seen=1, tensors={"big": torch.zeros(500_000), "small": torch.ones(3), "other": torch.zeros(500_000)})
    assert saver.close()
    checkpoint = commit.complete(run_url)[0]
    target = {"small": torch.zeros(3)}
    reader_bytes: list[int] = []
    original = faulty.FaultyFileSystem.cat_file

    def counted(self: Any, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        data = original(self, path, start=start, end=end)
        reader_bytes.append(len(data) if "data-" in path else 0)
        return data

    faulty.FaultyFileSystem.cat_file = counted
    try:
        load(checkpoint, into=target, ignore_extra=True)
    finally:
        faulty.FaultyFileSystem.cat_file = original
    assert torch.equal(target["small"], torch.ones(3))
    assert sum(reader_bytes) == 12
    with pytest.raises(CheckpointError, match="it also holds big, other"):
        load(checkpoint, into=target)


def test_many_small_tensors_are_read_in_few_requests(tmp_path: Path) -> None:
    faulty.register()
    run_url = f"faulty://{tmp_path}"
    tensors = {f"t{index}": torch.full((10,), float(index)) for index in range(300)}
    saver = AsyncSaver(run_url, attempt=1, group=None, spec_digest=DIGEST)
    saver.start(1, samples_seen=1, tensors=tensors)
    assert saver.close()
    target = {name: torch.zeros(10) for name in tensors}
    with faulty.faults() as log:
        load(commit.complete(run_url)[0], into=target)
    assert sum(operation == "cat_file" and "data-" in path for operation, path in log) == 1
    assert all(torch.equal(target[name], tensors[name]) for name in tensors)


def test_a_flipped_bit_in_any_tensor_is_found_while_loading(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    clean = data_file(checkpoint).read_bytes()
    pieces = [(name, piece) for name, tensor in read_index(checkpoint, commit.read_marker(checkpoint)).items() for piece in tensor.pieces]
    for name, piece in pieces:
        if piece.length:
            content = bytearray(clean)
            content[piece.start + piece.length - 1] ^= 0x10
            data_file(checkpoint).write_bytes(content)
            with pytest.raises(DamagedError, match=f"{name.replace('.', '[.]')} in data-00000-000.bin is not what was written"):
                load(checkpoint, into=empty_like(state(7)))


def test_a_cut_or_missing_data_file_is_found_while_loading(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    content = data_file(checkpoint).read_bytes()
    for kept in (0, 1, len(content) // 2, len(content) - 1):
        data_file(checkpoint).write_bytes(content[:kept])
        with pytest.raises(DamagedError, match=r"data-00000-000.bin"):
            load(checkpoint, into=empty_like(state(7)))
    data_file(checkpoint).unlink()
    with pytest.raises(DamagedError, match=r"data-00000-000.bin cannot be read: it does not exist"):
        load(checkpoint, into=empty_like(state(7)))


class Bomb:
    """Would leave a file behind if anything unpickled it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def rewrite(checkpoint: commit.Checkpoint, files: dict[str, bytes]) -> None:
    """Put other content in, with a marker that agrees with it: damage by somebody who means it."""
    marker = Path(checkpoint.url) / MARKER
    said = json.loads(marker.read_text())
    del said[OWN]  # as a marker of the time before it had a hash of its own
    for name, data in files.items():
        (Path(checkpoint.url) / name).write_bytes(data)
        record = digest(data)
        said["files"][name] = {"size": record.size, "sha256": record.sha256}
    marker.write_text(json.dumps(said))


def test_no_file_of_a_checkpoint_is_ever_unpickled(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    bomb = pickle.dumps(Bomb(witness))
    for name in ("data-00000-000.bin", INDEX, "state.json", ".metadata", MARKER):
        run = tmp_path / name.strip(".")
        checkpoint = saved(run)
        assert not any(b"\x80\x04" in path.read_bytes()[:8] for path in Path(checkpoint.url).iterdir())
        (Path(checkpoint.url) / name).write_bytes(bomb)
        if name == ".metadata":
            load(checkpoint, into=empty_like(state(7)))
        elif name == "state.json":
            with pytest.raises(DamagedError):
                commit.verify(checkpoint)
        else:
            with pytest.raises(DamagedError):
                load(checkpoint, into=empty_like(state(7)))
    assert not witness.exists()


def hostile(change: str) -> dict[str, Any]:
    piece = {"file": "data-00000-000.bin", "start": 0, "length": 12, "offsets": [0], "shape": [3], "crc32": zlib.crc32(bytes(12))}
    tensor: dict[str, Any] = {"dtype": "float32", "shape": [3], "pieces": [piece]}
    index: dict[str, Any] = {"byteorder": "little", "tensors": {"a": tensor}}
    if change in ("file", "start", "length", "offsets", "shape"):
        piece[change] = {"file": "../../../secret", "start": -4, "length": 10**12, "offsets": [1], "shape": [4]}[change]
    elif change == "huge":
        tensor["shape"], piece["shape"] = [2**40], [2**40]
    elif change == "overlap":
        tensor["shape"], piece["shape"], piece["length"], tensor["pieces"] = [6], [3], 12, [piece]
    elif change == "dtype":
        tensor["dtype"] = "object"
    elif change == "byteorder":
        index["byteorder"] = "big"
    return index


def test_an_honest_index_of_this_form_loads(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    rewrite(checkpoint, {INDEX: json.dumps(hostile("nothing")).encode(), "data-00000-000.bin": bytes(12)})
    target = {"a": torch.ones(3)}
    load(checkpoint, into=target)
    assert torch.equal(target["a"], torch.zeros(3))


@pytest.mark.parametrize("change", ["file", "start", "length", "offsets", "shape", "huge", "overlap", "dtype", "byteorder"])
def test_a_hostile_index_is_damage_and_allocates_nothing(tmp_path: Path, change: str) -> None:
    checkpoint = saved(tmp_path)
    (tmp_path / "secret").write_bytes(bytes(12))
    rewrite(checkpoint, {INDEX: json.dumps(hostile(change)).encode(), "data-00000-000.bin": bytes(12)})
    with pytest.raises(DamagedError, match=r"its tensors.json does not describe its data files"):
        read_index(checkpoint, commit.read_marker(checkpoint))
