"""All ranks begin from the same checkpoint: the newest that every one of them can read."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from states import DIGEST, all_same_bits, save_alone, state
from torch import Tensor

from iddpm_ray.checkpoint import commit
from iddpm_ray.checkpoint.index import StoredTensor
from iddpm_ray.checkpoint.restore import Restored, restore_newest
from iddpm_ray.errors import CheckpointError
from iddpm_ray.parallel.collective import new_gloo_group


def allocate(stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    return {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in stored.items()}


def restore(run_url: str) -> Restored:
    return restore_newest(run_url, allocate=allocate, spec_digest=DIGEST, group=new_gloo_group(timeout_s=20))


def nested(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    out: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, key = name.partition(".")
        out.setdefault(group, {})[key] = tensor
    return out


def make_run(run: Path) -> None:
    for step in (10, 20, 30):
        assert save_alone(str(run), step).committed


def flip(run: Path, step: int, file: str = "data-00000-000.bin", at: int = 100) -> None:
    path = run / "checkpoints" / f"step-{step:08d}.a0001" / file
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_run_without_checkpoints_starts_fresh_on_all_ranks(tmp_path: Path) -> None:
    assert run_ranks(restore, 2, str(tmp_path)) == [Restored(None, None, {}, ())] * 2
    assert restore(str(tmp_path)) == Restored(None, None, {}, ())


def test_a_flipped_bit_sends_all_ranks_to_the_next_older_checkpoint(tmp_path: Path) -> None:
    make_run(tmp_path)
    flip(tmp_path, 30)
    flip(tmp_path, 20, "tensors.json")
    for restored in run_ranks(restore, 2, str(tmp_path)):
        assert restored.checkpoint is not None
        assert restored.checkpoint.step == 10
        assert all_same_bits(nested(restored.tensors), state(10))
        assert len(restored.rejected) == 2
        assert restored.rejected[0].startswith("step-00000030.a0001 is damaged: typed.torch.")
        assert restored.rejected[0].endswith("in data-00000-000.bin is not what was written (rank 0)")
        assert restored.rejected[1] == "step-00000020.a0001 is damaged: the content of tensors.json is not what was written (rank 0)"


def restore_with_state(run_url: str) -> Restored:
    return restore_newest(run_url, allocate=allocate, spec_digest=DIGEST, files=("state.json",), group=new_gloo_group(timeout_s=20))


def test_a_flipped_bit_in_a_small_file_that_is_asked_for_counts_as_well(tmp_path: Path) -> None:
    make_run(tmp_path)
    flip(tmp_path, 30, "state.json", at=3)
    for restored in run_ranks(restore_with_state, 2, str(tmp_path)):
        assert restored.checkpoint is not None
        assert (restored.checkpoint.step, dict(restored.files)) == (20, {"state.json": b'{"a": 1}'})
        assert restored.rejected == ("step-00000030.a0001 is damaged: the content of state.json is not what was written (rank 0)",)


def restore_where_rank_1_cannot_read(run_url: str) -> Restored:
    if dist.get_rank() == 1:  # as if its view of the store were an older one
        from iddpm_ray.checkpoint import reader

        real = reader.storage.read_bytes

        def blind(url: str, *, start: int | None = None, end: int | None = None) -> bytes:
            if "step-00000030" in url and "data-" in url:
                raise OSError("no such object")
            return real(url, start=start, end=end)

        reader.storage.read_bytes = blind
    return restore(run_url)


def test_what_one_rank_cannot_read_no_rank_begins_from(tmp_path: Path) -> None:
    make_run(tmp_path)
    for restored in run_ranks(restore_where_rank_1_cannot_read, 3, str(tmp_path)):
        assert restored.checkpoint is not None
        assert restored.checkpoint.step == 20
        assert all_same_bits(nested(restored.tensors), state(20))
        assert restored.rejected == ("step-00000030.a0001 is damaged: data-00000-000.bin cannot be read: OSError: no such object (rank 1)",)


def restore_and_report(run_url: str) -> str:
    try:
        return str(restore(run_url))
    except CheckpointError as error:
        return f"refused: {error}"


def test_when_none_can_be_read_all_ranks_refuse_with_the_reasons(tmp_path: Path) -> None:
    make_run(tmp_path)
    for step in (10, 20, 30):
        flip(tmp_path, step)
    words = run_ranks(restore_and_report, 2, str(tmp_path))
    assert words[0] == words[1]
    assert words[0].startswith("refused: no checkpoint of ")
    assert all(f"step-000000{step}.a0001 is damaged" in words[0] for step in (10, 20, 30))


def restore_into_another_model(run_url: str) -> str:
    def other(stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
        return {"model.weight": torch.zeros(1)}

    try:
        restore_newest(run_url, allocate=other, spec_digest=DIGEST, group=new_gloo_group(timeout_s=20))
    except CheckpointError as error:
        return str(error)
    return ""


def test_a_checkpoint_that_does_not_fit_is_refused_and_no_older_one_is_tried(tmp_path: Path) -> None:
    make_run(tmp_path)
    for words in run_ranks(restore_into_another_model, 2, str(tmp_path)):
        assert words.startswith("step-00000030.a0001 does not fit this model")


def restore_where_memory_ends_on_rank_1(run_url: str) -> str:
    def scarce(stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
        if dist.get_rank() == 1:
            raise MemoryError("no more")
        return allocate(stored)

    try:
        restore_newest(run_url, allocate=scarce, spec_digest=DIGEST, group=new_gloo_group(timeout_s=20))
    except (CheckpointError, ConnectionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_rank_that_fails_to_load_leaves_nobody_waiting(tmp_path: Path) -> None:
    make_run(tmp_path)
    first, second = run_ranks(restore_where_memory_ends_on_rank_1, 2, str(tmp_path), timeout_s=60)
    assert first == "ConnectionError: ranks [1] could not load step-00000030.a0001: see their error"  # another try may help
    assert second == "MemoryError: no more"


def restore_while_rank_1_has_no_network(run_url: str) -> str:
    from iddpm_ray.checkpoint import reader

    if dist.get_rank() == 1:

        def cut_off(url: str, *, start: int | None = None, end: int | None = None) -> bytes:
            raise TimeoutError("no answer")

        reader.storage.read_bytes = cut_off
    try:
        return str(restore(run_url))
    except (CheckpointError, OSError) as error:
        return f"{type(error).__name__}: {error}"


def test_a_store_that_does_not_answer_is_not_taken_for_damage(tmp_path: Path) -> None:
    make_run(tmp_path)
    first, second = run_ranks(restore_while_rank_1_has_no_network, 2, str(tmp_path), timeout_s=60)
    assert first == "ConnectionError: ranks [1] could not load step-00000030.a0001: see their error"
    assert second == "TimeoutError: no answer"


@pytest.mark.parametrize("digest", ["e" * 64])
def test_another_spec_is_refused(tmp_path: Path, digest: str) -> None:
    make_run(tmp_path)
    with pytest.raises(CheckpointError, match="was made with another spec"):
        restore_newest(str(tmp_path), allocate=allocate, spec_digest=digest, group=None)
    assert [checkpoint.step for checkpoint in commit.complete(str(tmp_path))] == [30, 20, 10]
