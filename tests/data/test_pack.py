import json
import os
from dataclasses import replace
from pathlib import Path

import faulty
import numpy as np
import pytest
import torch
from pictures import file_of, make_folder, make_parquet, noise
from PIL import Image

from iddpm_ray import storage
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data import pack as packing_module
from iddpm_ray.data.blocks import Share
from iddpm_ray.data.changes import check_decoding, check_limit, compare
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.load import load
from iddpm_ray.data.local import local_stream
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.data.pack import Packing, pack, verify
from iddpm_ray.errors import DataError

SIZE = Decoding(8, 10)


def packing_of(path: str, labels: str = "folder", *, rows_per_shard: int = 7, decoding: Decoding = SIZE) -> Packing:
    return Packing(manifests.build(path, labels=labels), labels, decoding, rows_per_shard)


def streams_agree(a: Manifest, b: Manifest, *, steps: int = 12, **share: object) -> None:
    how = replace(Share(seed=3, global_batch=6, decoding=SIZE, steps_per_block=4), **share)
    ours, theirs = local_stream(a, how, stop_step=steps), local_stream(b, how, stop_step=steps)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.rows == other.rows).all()
        assert torch.equal(one.pixels, other.pixels)
        assert torch.equal(one.labels, other.labels)
        assert one.substituted == other.substituted


@pytest.mark.parametrize("destination", ["disk", "memory"])
@pytest.mark.parametrize("labels", ["none", "folder", "prefix"])
def test_a_packed_set_gives_the_same_pixels_labels_and_order(tmp_path: Path, destination: str, labels: str) -> None:
    make_folder(tmp_path / "source", 30)
    url = str(tmp_path / "packed") if destination == "disk" else f"memory://packed-{labels}"
    pack(packing_of(str(tmp_path / "source"), labels), url)
    source = manifests.build(str(tmp_path / "source"), labels=labels, seed=3, validation_fraction=0.3)
    packed = manifests.build(url, labels=labels, seed=3, validation_fraction=0.3)
    assert packed.kind == "packed"
    assert packed.classes == source.classes
    assert packed.validation_rows.tolist() == source.validation_rows.tolist()
    streams_agree(source, packed)


def test_parquet_packs_to_the_same_pixels_labels_and_order(tmp_path: Path) -> None:
    make_parquet(tmp_path / "source", [file_of(Image.fromarray(noise(i))) for i in range(20)], [i % 12 for i in range(20)])
    pack(packing_of(str(tmp_path / "source"), "column"), str(tmp_path / "packed"))
    source = manifests.build(str(tmp_path / "source"), labels="column", seed=1, validation_fraction=0.3)
    packed = manifests.build(str(tmp_path / "packed"), labels="column", seed=1, validation_fraction=0.3)
    assert packed.classes == tuple(str(i) for i in range(12))
    assert packed.validation_rows.tolist() == source.validation_rows.tolist()
    streams_agree(source, packed)
    with pytest.raises(DataError, match=r"was packed with labels = column"):
        manifests.build(str(tmp_path / "packed"), labels="folder")


def test_a_set_packed_without_labels_still_knows_its_folders(tmp_path: Path) -> None:
    make_folder(tmp_path / "source", 12)
    pack(packing_of(str(tmp_path / "source"), "none"), str(tmp_path / "packed"))
    for labels in ("none", "folder", "prefix"):
        source = manifests.build(str(tmp_path / "source"), labels=labels)
        streams_agree(source, manifests.build(str(tmp_path / "packed"), labels=labels))
    with pytest.raises(DataError, match=r"data\.labels = column, but .* was packed with labels = none"):
        manifests.build(str(tmp_path / "packed"), labels="column")


def test_shards_are_rows_of_fixed_stride(tmp_path: Path) -> None:
    make_folder(tmp_path / "source", 9)
    calls: list[tuple[int, int]] = []
    report = pack(
        packing_of(str(tmp_path / "source"), rows_per_shard=4), str(tmp_path / "packed"), progress=lambda *call: calls.append(call)
    )
    assert (report.num_rows, report.num_shards, report.found, report.bad) == (9, 3, 0, {})
    assert calls[-1] == (9, 9)
    pixels = load(manifests.build(str(tmp_path / "source")), np.arange(9), decoding=SIZE).pixels
    for shard, rows in enumerate((range(4), range(4, 8), range(8, 9))):
        data = (tmp_path / "packed" / f"shard-{shard:06d}.u8").read_bytes()
        assert data == pixels[rows.start : rows.stop].tobytes()
    verify(str(tmp_path / "packed"))


class Killed(BaseException):
    """Stands for a process that ends."""


@pytest.mark.parametrize("when", range(1, 8))
def test_a_packing_that_was_killed_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: int) -> None:
    """Killed at each of its writes in turn: the plan, shards, notes and manifest."""
    make_folder(tmp_path / "source", 10)
    packing = packing_of(str(tmp_path / "source"), rows_per_shard=4)
    pack(packing, str(tmp_path / "undisturbed"))
    original, writes = storage.write_whole, 0

    def dying(url: str, data: bytes) -> None:
        nonlocal writes
        writes += "write-check" not in url
        if writes == when:
            raise Killed
        original(url, data)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_whole", dying)
        with pytest.raises(Killed):
            pack(packing, str(tmp_path / "packed"))
    if when > 1:
        with pytest.raises(DataError, match="a packing that is not finished"):
            manifests.build(str(tmp_path / "packed"))
    report = pack(packing, str(tmp_path / "packed"))
    assert report.found == 4 * ((when - 1) // 2) if when < 7 else 10
    for file in sorted(path.name for path in (tmp_path / "undisturbed").iterdir()):
        if file != "manifest.arrow":
            assert (tmp_path / "packed" / file).read_bytes() == (tmp_path / "undisturbed" / file).read_bytes(), file
    streams_agree(manifests.build(str(tmp_path / "undisturbed")), manifests.build(str(tmp_path / "packed")))


def test_finished_shards_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "source", 10)
    packing = packing_of(str(tmp_path / "source"), rows_per_shard=4)
    pack(packing, str(tmp_path / "packed"))
    monkeypatch.setattr(packing_module, "read_outcomes", lambda *args, **kwargs: pytest.fail("pictures were read again"))
    assert pack(packing, str(tmp_path / "packed")).found == 10


def test_a_shard_cut_short_is_packed_again(tmp_path: Path) -> None:
    make_folder(tmp_path / "source", 10)
    packing = packing_of(str(tmp_path / "source"), rows_per_shard=4)
    pack(packing, str(tmp_path / "packed"))
    shard = tmp_path / "packed" / "shard-000001.u8"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=r"shard-000001\.u8 has 959|shard-000001\.u8 has \d+ bytes instead of"):
        manifests.build(str(tmp_path / "packed"))
    assert pack(packing, str(tmp_path / "packed")).found == 6
    assert shard.read_bytes() == whole


def test_checksums_find_a_changed_shard_and_so_does_the_digest(tmp_path: Path) -> None:
    make_folder(tmp_path / "source", 10)
    pack(packing_of(str(tmp_path / "source"), rows_per_shard=4), str(tmp_path / "packed"))
    before = manifests.build(str(tmp_path / "packed"))
    shard = tmp_path / "packed" / "shard-000001.u8"
    data = bytearray(shard.read_bytes())
    data[5] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"1 of 3 shards are not as they were written: shard-000001\.u8"):
        verify(str(tmp_path / "packed"))
    assert compare(before, manifests.build(str(tmp_path / "packed"))) == ["1 changed: shard-000001.u8 (same size, other content or time)"]


def test_packing_again_leaves_the_packed_set_as_it_was(tmp_path: Path) -> None:
    make_folder(tmp_path / "source", 10)
    packing, url = packing_of(str(tmp_path / "source")), str(tmp_path / "packed")
    pack(packing, url)
    first = manifests.build(url, labels="folder", validation_fraction=0.3)
    file = tmp_path / "packed" / "manifest.arrow"
    os.utime(file, ns=(1, 1))
    pack(packing, url)
    assert file.stat().st_mtime_ns == 1
    again = manifests.build(url, labels="folder", validation_fraction=0.3)
    assert again.digest == first.digest
    file.write_bytes(manifests.to_bytes(replace(manifests.read(str(file)), digest="other")))
    pack(packing, url)
    assert manifests.build(url).digest == first.digest


@pytest.mark.parametrize("source", ["good", "bad"])
def test_a_run_pinned_to_the_time_of_a_packed_manifest_goes_on_with_the_same_rows_alone(tmp_path: Path, source: str) -> None:
    make_folder(tmp_path / "source", 10)
    packing, url = packing_of(str(tmp_path / "source")), str(tmp_path / "packed")
    pack(packing, url)
    pinned = replace(manifests.build(url, labels="folder"), digest="of its time")
    assert compare(manifests.from_bytes(manifests.to_bytes(pinned)), manifests.build(url, labels="folder")) == []
    note = tmp_path / "packed" / "shard-000000.u8.json"
    if source == "bad":
        note.write_text(json.dumps({**json.loads(note.read_text()), "bad": {"2": "is empty"}}))
    else:
        shard = tmp_path / "packed" / "shard-000001.u8"
        os.utime(shard, ns=(1, 1))
    pack(packing, url)
    lines = compare(pinned, manifests.build(url, labels="folder"))
    assert len(lines) == 1
    assert ("list of its rows was written anew" if source == "bad" else "shard-000001.u8 (same size") in lines[0]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "source", 10)
    pack(packing_of(str(tmp_path / "source"), rows_per_shard=4), str(tmp_path / "packed"))
    manifest = manifests.build(str(tmp_path / "packed"))
    (tmp_path / "packed" / "shard-000002.u8").unlink()
    with pytest.raises(DataError, match=r"shard-000002\.u8 is missing"):
        manifests.build(str(tmp_path / "packed"))
    with pytest.raises(DataError, match=r"shard-000002\.u8 is gone or shorter"):
        load(manifest, np.array([9]), decoding=SIZE)


@pytest.mark.parametrize("destination", ["disk", "memory"])
def test_a_shard_that_shrank_while_training_is_named(tmp_path: Path, destination: str) -> None:
    make_folder(tmp_path / "source", 10)
    url = str(tmp_path / "packed") if destination == "disk" else "memory://shrinking"
    pack(packing_of(str(tmp_path / "source"), rows_per_shard=4), url)
    manifest = manifests.build(url)
    shard = storage.join(url, "shard-000001.u8")
    storage.write_whole(shard, storage.read_bytes(shard)[:300])
    with pytest.raises(DataError, match=r"shard-000001\.u8 is gone or shorter"):
        load(manifest, np.array([5, 7]), decoding=SIZE)


@pytest.mark.parametrize("on_error", ["fail", "substitute"])
def test_bad_pictures_stop_the_packing_or_train_as_from_the_source(tmp_path: Path, on_error: str) -> None:
    paths = make_folder(tmp_path / "source", 20)
    for i in (3, 4, 19):
        (tmp_path / "source" / paths[i]).write_bytes(b"hello")
    packing = packing_of(str(tmp_path / "source"))
    with pytest.raises(DataError, match=rf"{paths[3]} \(row 3\) is not a picture.*--on-error substitute"):
        pack(packing, str(tmp_path / "packed"))
    report = pack(packing, str(tmp_path / "packed"), on_error="substitute")
    assert list(report.bad) == [3, 4, 19]
    assert report.bad[4].startswith("is not a picture")
    source = manifests.build(str(tmp_path / "source"), labels="folder", seed=3, validation_fraction=0.3)
    packed = manifests.build(str(tmp_path / "packed"), labels="folder", seed=3, validation_fraction=0.3)
    if on_error == "substitute":
        streams_agree(source, packed, on_error="substitute")
    else:
        with pytest.raises(DataError, match=rf"{paths[3]} as packed in .*packed \(row 3\) could not be packed, it is not a picture"):
            load(packed, np.array([3]), decoding=SIZE)


def test_a_run_that_wants_other_pixels_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "source", 5)
    pack(packing_of(str(tmp_path / "source")), str(tmp_path / "packed"))
    manifest = manifests.build(str(tmp_path / "packed"))
    check_decoding(manifest, replace(SIZE, max_pixels=5))
    check_limit(manifest, SIZE)
    with pytest.raises(
        DataError, match=r"packed with data\.max_pixels = 178956970, the run wants 5: set data\.max_pixels=178956970, or pack"
    ):
        check_limit(manifest, replace(SIZE, max_pixels=5))
    check_limit(manifests.build(str(tmp_path / "source")), replace(SIZE, max_pixels=5))
    for wanted, message in (
        (replace(SIZE, width=8), r"was packed with data\.image_size = \[8, 10\], the run wants \[8, 8\]"),
        (replace(SIZE, channels=1), r"data\.channels = 3, the run wants 1"),
        (replace(SIZE, background=(0, 0, 0)), r"data\.background = \[255, 255, 255\], the run wants \[0, 0, 0\]"),
    ):
        with pytest.raises(DataError, match=message):
            load(manifest, np.array([0]), decoding=wanted)


def test_a_destination_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "source", 5)
    packing = packing_of(str(tmp_path / "source"))
    with pytest.raises(DataError, match="the destination is not empty"):
        pack(packing, str(tmp_path / "source"))
    pack(packing, str(tmp_path / "packed"))
    with pytest.raises(DataError, match=r"holds another packing: width 10 instead of 12"):
        pack(replace(packing, decoding=Decoding(8, 12)), str(tmp_path / "packed"))
    (tmp_path / "source" / "class0" / "new_1.png").write_bytes(file_of(Image.fromarray(noise(9))))
    with pytest.raises(DataError, match=r"holds another packing: source_digest"):
        pack(packing_of(str(tmp_path / "source")), str(tmp_path / "packed"))
    with pytest.raises(DataError, match="the source is a packed set already"):
        pack(Packing(manifests.build(str(tmp_path / "packed")), "none", SIZE, 4), str(tmp_path / "again"))


def test_one_channel_is_packed_as_one(tmp_path: Path) -> None:
    make_folder(tmp_path / "source", 5)
    grey = replace(SIZE, channels=1)
    pack(packing_of(str(tmp_path / "source"), decoding=grey), str(tmp_path / "packed"))
    assert (tmp_path / "packed" / "shard-000000.u8").stat().st_size == 5 * 80
    assert json.loads((tmp_path / "packed" / "pack.json").read_text())["channels"] == 1
    expected = load(manifests.build(str(tmp_path / "source")), np.arange(5), decoding=grey).pixels
    assert (load(manifests.build(str(tmp_path / "packed")), np.arange(5), decoding=grey).pixels == expected).all()


@pytest.mark.parametrize("failing", ["some rows", "the whole shard"])
def test_a_store_that_fails_for_a_moment_is_asked_again_for_those_rows(tmp_path: Path, failing: str) -> None:
    make_folder(tmp_path / "source", 6)
    faulty.register()
    url = f"faulty://{tmp_path}/packed"
    pack(packing_of(str(tmp_path / "source")), url)
    manifest, wanted = manifests.build(url), np.array([4, 1, 3])
    right = load(manifest, wanted, decoding=SIZE).pixels
    harm = [faulty.Fault("cat_file", at=at, kind="raise") for at in ((1,) if failing == "some rows" else range(3))]
    with faulty.faults(*harm) as log:
        assert (load(manifest, wanted, decoding=SIZE).pixels == right).all()
    assert len(log) == 3 + len(harm)
