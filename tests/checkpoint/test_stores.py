"""A run's checkpoints on real object-store protocols: attempts, saves, damage, retention, begin again."""

import fsspec
import pytest
import torch
from states import DIGEST, all_same_bits, empty_like, state
from stores import base_fixture, gcs_fixture, s3_fixture  # noqa: F401 fixtures are found by being here

from iddpm_ray import storage
from iddpm_ray.checkpoint import commit, reader, writer
from iddpm_ray.checkpoint.attempts import attempts, begin_attempt, refuse_if_superseded, take_attempt
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.retention import sweep
from iddpm_ray.checkpoint.saver import AsyncSaver


def test_a_run_lives_on_every_store(base: str) -> None:
    number = take_attempt(base, info={"driver": "test"})
    begin_attempt(base, number, began_from=None, info={})
    swept = []
    saver = AsyncSaver(
        base,
        attempt=number,
        group=None,
        spec_digest=DIGEST,
        before_mark=lambda: refuse_if_superseded(base, number),
        after_commit=lambda _: swept.append(sweep(base, attempt=number, keep_last=2, keep_every=None, global_batch=1)),
    )
    for step in (1, 2, 3):
        saver.start(step, samples_seen=step, tensors=state(step), extra_files={"state.json": b"{}", "spec.yaml": b"run: {}\n"})
    outcome = saver.close()
    assert outcome is not None
    assert outcome.error is None
    assert [result.deleted for result in swept] == [(), (), ("step-00000001.a0001",)]
    assert [checkpoint.step for checkpoint in commit.complete(base)] == [3, 2]

    target = empty_like(state(3))
    newest = newest_readable(base, deep=True).checkpoint
    assert newest is not None
    load(newest, into=target)
    assert all_same_bits(target, state(3))

    file = storage.join(newest.url, "data-00000-000.bin")
    fs, path = fsspec.url_to_fs(file)
    fs.pipe_file(path, storage.read_bytes(file)[:-1])
    chosen = newest_readable(base)
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 2
    assert "step-00000003.a0001 is damaged: data-00000-000.bin is cut" in chosen.rejected[0]
    second = take_attempt(base, info={})
    begin_attempt(base, second, began_from=chosen.checkpoint, info={})
    assert [(attempt.number, attempt.from_step) for attempt in attempts(base)] == [(1, 0), (2, 2)]


def test_a_checkpoint_of_several_files_loads_on_every_store(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_FILE_BYTES", 1 << 20)
    monkeypatch.setattr(reader, "_REQUEST_BYTES", 1 << 19)
    tensors = {f"w{index}": torch.full((100_000,), index, dtype=torch.float32) for index in range(5)}
    saver = AsyncSaver(base, attempt=1, group=None, spec_digest=DIGEST)
    saver.start(1, samples_seen=1, tensors=tensors)
    outcome = saver.close()
    assert outcome is not None
    assert outcome.error is None
    checkpoint = commit.complete(base)[0]
    assert sum(name.startswith("data-") for name in commit.read_marker(checkpoint).files) == 3
    target = {name: torch.zeros(100_000) for name in tensors}
    load(checkpoint, into=target)
    assert all(torch.equal(target[name], tensor) for name, tensor in tensors.items())
