from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import make_folder

from iddpm_ray.data import blocks, order
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.batch import Batch
from iddpm_ray.data.blocks import Share, block_ranges
from iddpm_ray.data.image import BadPicture, Decoding
from iddpm_ray.data.load import load
from iddpm_ray.data.local import held_out, local_stream, validation_batches
from iddpm_ray.data.manifest import Manifest

SHARE = Share(seed=5, global_batch=7, decoding=Decoding(8, 8), steps_per_block=3)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("pictures")
    make_folder(folder, 23)
    return manifests.build(str(folder), labels="folder", seed=5, validation_fraction=0.2)


def joined(parts: list[Batch]) -> Batch:
    """One step's slices in rank order, as a whole."""
    first = parts[0]
    return replace(
        first,
        rows=np.concatenate([part.rows for part in parts]),
        pixels=torch.cat([part.pixels for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
    )


def same(a: Batch, b: Batch) -> bool:
    return a.step == b.step and (a.rows == b.rows).all() and torch.equal(a.pixels, b.pixels) and torch.equal(a.labels, b.labels)


def test_batches_are_the_rows_of_their_positions(manifest: Manifest) -> None:
    training = manifest.training_rows
    for step, batch in enumerate(local_stream(manifest, SHARE, stop_step=8)):
        rows = training[order.rows(5, np.arange(step * 7, (step + 1) * 7), len(training))]
        expected = load(manifest, rows, decoding=SHARE.decoding)
        assert batch.step == step
        assert (batch.rows == rows).all()
        assert (batch.pixels.numpy() == expected.pixels).all()
        assert (batch.labels.numpy() == expected.labels).all()
        assert batch.labels.dtype == torch.int64
        assert not manifest.is_validation[batch.rows].any()


def test_every_epoch_shows_every_training_row_once(manifest: Manifest) -> None:
    count = len(manifest.training_rows)
    share = replace(SHARE, global_batch=count)
    for batch in local_stream(manifest, share, stop_step=4):
        assert sorted(batch.rows) == manifest.training_rows.tolist()


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_every_world_size_sees_the_same_global_batches(manifest: Manifest, world_size: int) -> None:
    whole = list(local_stream(manifest, SHARE, stop_step=6))
    ranks = [list(local_stream(manifest, replace(SHARE, rank=rank, world_size=world_size), stop_step=6)) for rank in range(world_size)]
    assert {batch.rank for batch in ranks[-1]} == {world_size - 1}
    for step, parts in enumerate(zip(*ranks, strict=True)):
        assert same(joined(list(parts)), whole[step])


@pytest.mark.parametrize("changes", [{"steps_per_block": 1}, {"steps_per_block": 5}, {"steps_per_block": None}, {"threads": 1}])
def test_how_batches_are_loaded_does_not_change_them(manifest: Manifest, changes: dict[str, int | None]) -> None:
    expected = list(local_stream(manifest, SHARE, stop_step=7))
    share = replace(SHARE, **changes)
    got = list(local_stream(manifest, share, stop_step=7, tasks=3, prefetch_blocks=1))
    assert len(got) == 7
    assert all(same(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("start", [1, 3, 5])
def test_a_stream_begun_later_is_the_rest_of_the_whole(manifest: Manifest, start: int) -> None:
    expected = list(local_stream(manifest, SHARE, stop_step=9))[start:]
    got = list(local_stream(manifest, SHARE, start_step=start, stop_step=9))
    assert all(same(a, b) for a, b in zip(got, expected, strict=True))


def test_a_stream_begins_anywhere_at_no_cost_and_never_ends(manifest: Manifest) -> None:
    stream = local_stream(manifest, SHARE, start_step=10**12)
    assert [batch.step for batch in islice(stream, 7)] == list(range(10**12, 10**12 + 7))
    stream.close()
    assert list(local_stream(manifest, SHARE, start_step=4, stop_step=4)) == []


def test_a_bad_picture_stops_the_stream_or_is_counted(manifest: Manifest, tmp_path: Path) -> None:
    make_folder(tmp_path, 23)
    own = manifests.build(str(tmp_path), labels="folder", seed=5, validation_fraction=0.2)
    bad = next(local_stream(own, SHARE)).rows[2]
    (tmp_path / own.column("path", np.array([bad]))[0]).write_bytes(b"")
    with pytest.raises(BadPicture, match=rf"\(row {bad}\) is empty"):
        list(local_stream(own, SHARE, stop_step=3))
    steps = len(own.training_rows)  # so many epochs as the batch has rows
    got = list(local_stream(own, replace(SHARE, on_error="substitute"), stop_step=steps))
    assert sum(batch.substituted for batch in got) == 7
    assert sum(int((batch.rows == bad).sum()) for batch in got) == 7


def test_batches_have_memory_of_their_own(manifest: Manifest) -> None:
    first = next(local_stream(manifest, SHARE))
    again = first.pixels.clone()
    first.pixels.zero_()
    assert torch.equal(next(local_stream(manifest, SHARE)).pixels, again)


def test_blocks_hold_about_512_rows_and_never_much_memory() -> None:
    small = Share(seed=0, global_batch=128, decoding=Decoding(64, 64))
    assert small.block_steps == 4
    assert replace(small, world_size=4).block_steps == 16
    assert replace(small, global_batch=4096).block_steps == 1
    large = replace(small, decoding=Decoding(1024, 1024))
    assert large.block_steps == 1
    assert list(block_ranges(small, start_step=3, stop_step=9)) == [range(3, 7), range(7, 9)]
    with pytest.raises(AssertionError):
        Share(seed=0, global_batch=2, decoding=Decoding(8, 8), world_size=3)


def test_held_out_rows_are_shown_in_order_and_a_few_of_them_are_no_special_ones(manifest: Manifest) -> None:
    rows = held_out(manifest, limit=100, seed=5)
    assert rows.tolist() == manifest.validation_rows.tolist()
    pieces = list(validation_batches(manifest, rows, size=2, decoding=SHARE.decoding))
    assert np.concatenate([piece.rows for piece in pieces]).tolist() == rows.tolist()
    assert [piece.step for piece in pieces] == list(range(len(pieces)))
    assert (torch.cat([piece.pixels for piece in pieces]).numpy() == load(manifest, rows, decoding=SHARE.decoding).pixels).all()
    few = held_out(manifest, limit=2, seed=5)
    assert len(few) == 2
    assert set(few) < set(rows)
    assert held_out(manifest, limit=2, seed=5).tolist() == few.tolist()


def test_a_limited_validation_is_a_fair_sample(tmp_path: Path) -> None:
    make_folder(tmp_path, 300, classes=3)
    manifest = manifests.build(str(tmp_path), labels="folder", validation_fraction=0.5)
    labels = manifest.labels[held_out(manifest, limit=60, seed=0)]
    assert np.bincount(labels, minlength=3).min() >= 8


def test_a_stream_that_is_closed_loads_nothing_more(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    from iddpm_ray.data import local

    loads: list[range] = []
    original = blocks.load_block
    monkeypatch.setattr(local, "load_block", lambda manifest, share, steps: loads.append(steps) or original(manifest, share, steps))
    stream = local_stream(manifest, SHARE, tasks=1, prefetch_blocks=2)
    next(stream)
    stream.close()
    assert 1 <= len(loads) <= 3
