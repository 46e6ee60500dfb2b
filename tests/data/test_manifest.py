import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import file_of, make_folder, make_parquet, noise
from PIL import Image

from iddpm_ray import storage
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.changes import check_classes, check_decoding, check_enough, check_same, compare
from iddpm_ray.data.image import Decoding
from iddpm_ray.errors import DataError


def test_rows_are_sorted_by_path_whatever_order_the_store_has(tmp_path: Path) -> None:
    names = ["b_2.png", "a_1.jpg", "sub/c_9.JPEG", "sub/a_3.webp", "Zed_1.tif", "notes.txt", "sub2.d/b_7.gif", "sub/deep/a_0.bmp", "noext"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for hidden in (".DS_Store", "._a_1.jpg", ".thumbs/x.png"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).touch()
    manifest = manifests.build(str(tmp_path))
    expected = sorted(name for name in names if name not in ("notes.txt", "noext"))
    assert list(manifest.files) == expected
    assert manifest.column("path", np.arange(manifest.num_rows)) == expected
    assert manifest.labels.tolist() == [-1] * len(expected)
    assert manifest.classes == ()


def test_building_reads_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path, 5)
    monkeypatch.setattr(storage, "read_bytes", lambda *args, **kwargs: pytest.fail("a picture was read"))
    monkeypatch.setattr(Image, "open", lambda *args, **kwargs: pytest.fail("a picture was opened"))
    assert manifests.build(str(tmp_path), labels="folder").num_rows == 5


def test_labels_come_from_folders_names_and_columns(tmp_path: Path) -> None:
    paths = make_folder(tmp_path / "folder", 7)
    by_folder = manifests.build(str(tmp_path / "folder"), labels="folder")
    assert by_folder.classes == ("class0", "class1", "class2")
    assert [by_folder.classes[label] for label in by_folder.labels] == [path.split("/")[0] for path in paths]
    by_prefix = manifests.build(str(tmp_path / "folder"), labels="prefix")
    assert [by_prefix.classes[label] for label in by_prefix.labels] == [path.split("/")[1][:5] for path in paths]
    make_parquet(tmp_path / "parquet", [file_of(Image.fromarray(noise(i))) for i in range(7)], [10, 9, 10, 2, 2, 9, 9])
    by_column = manifests.build(str(tmp_path / "parquet"), labels="column")
    assert by_column.classes == ("2", "9", "10")
    assert by_column.labels.tolist() == [2, 1, 2, 0, 0, 1, 1]
    assert by_column.column("path", np.array([0, 6])) == ["part-0.parquet", "part-1.parquet"]
    assert by_column.column("row", np.arange(7)) == [0, 1, 2, 3, 0, 1, 2]
    one_file = manifests.build(str(tmp_path / "parquet" / "part-1.parquet"), labels="column")
    assert one_file.num_rows == 3


def test_known_classes_keep_their_index_in_another_data_set(tmp_path: Path) -> None:
    make_folder(tmp_path, 3)
    shutil.rmtree(tmp_path / "class0")
    assert manifests.build(str(tmp_path), labels="folder").labels.tolist() == [0, 1]
    manifest = manifests.build(str(tmp_path), labels="folder", classes=("class0", "class1", "class2"))
    assert manifest.labels.tolist() == [1, 2]
    assert manifest.classes == ("class0", "class1", "class2")


def test_a_manifest_survives_being_written(tmp_path: Path) -> None:
    make_folder(tmp_path / "data", 9)
    manifest = manifests.build(str(tmp_path / "data"), labels="folder", validation_fraction=0.4)
    manifests.write(manifest, str(tmp_path / "m.arrow"))
    again = manifests.read(str(tmp_path / "m.arrow"))
    assert again.table.equals(manifest.table)
    assert (again.root, again.kind, again.classes, again.digest) == (manifest.root, manifest.kind, manifest.classes, manifest.digest)
    assert manifests.to_bytes(again) == manifests.to_bytes(manifest)
    assert again.name(0).endswith("data/class0/kind0_0000.png (row 0)")


@pytest.mark.parametrize("cut", [0, 10, 500])
def test_a_damaged_manifest_is_an_error(tmp_path: Path, cut: int) -> None:
    make_folder(tmp_path, 3)
    data = manifests.to_bytes(manifests.build(str(tmp_path)))
    with pytest.raises(DataError, match=r"manifest\.arrow cannot be read"):
        manifests.from_bytes(data[:cut], name="manifest.arrow")


def test_a_flipped_bit_anywhere_is_found_when_a_manifest_is_read(tmp_path: Path) -> None:
    make_folder(tmp_path / "data", 9)
    manifests.write(manifests.build(str(tmp_path / "data"), labels="folder"), str(tmp_path / "m.arrow"))
    data = (tmp_path / "m.arrow").read_bytes()
    assert b"class0" in data
    for place in range(0, len(data) * 8, 31):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        (tmp_path / "m.arrow").write_bytes(changed)
        with pytest.raises(DataError):
            manifests.read(str(tmp_path / "m.arrow"))


def test_a_newer_manifest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "FORMAT", 99)
        data = manifests.to_bytes(manifests.build(str(tmp_path)))
    with pytest.raises(DataError, match="newer format"):
        manifests.from_bytes(data)


def test_the_split_is_a_function_of_seed_and_row_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "a", 400, classes=5)
    manifest = manifests.build(str(tmp_path / "a"), seed=3, validation_fraction=0.2)
    held = set(manifest.column("path", manifest.validation_rows))
    assert 50 < len(held) < 110
    assert not set(manifest.training_rows) & set(manifest.validation_rows)
    assert len(manifest.training_rows) + len(manifest.validation_rows) == 400
    assert set(manifests.build(str(tmp_path / "a"), seed=4, validation_fraction=0.2).validation_rows) != set(manifest.validation_rows)
    wider = manifests.build(str(tmp_path / "a"), seed=3, validation_fraction=0.5)
    assert held < set(wider.column("path", wider.validation_rows))
    # Elsewhere, at another time and with other rows about, the same rows are held out.
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    shutil.rmtree(tmp_path / "b" / "class1")
    (tmp_path / "b" / "class0" / "aaa.png").touch()
    other = manifests.build(str(tmp_path / "b"), seed=3, validation_fraction=0.2)
    left = {path for path in held if not path.startswith("class1")}
    assert set(other.column("path", other.validation_rows)) - {"class0/aaa.png"} == left


def test_rows_of_one_parquet_file_are_split_too(tmp_path: Path) -> None:
    make_parquet(tmp_path, [b"x"] * 300, [0] * 300, files=1)
    manifest = manifests.build(str(tmp_path), validation_fraction=0.3)
    assert 60 < len(manifest.validation_rows) < 120


@pytest.mark.parametrize("fraction", [1e-9, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_neither_side_of_a_small_split_is_empty(tmp_path: Path, fraction: float, count: int) -> None:
    make_folder(tmp_path, count)
    for seed in range(20):
        manifest = manifests.build(str(tmp_path), seed=seed, validation_fraction=fraction)
        assert 0 < len(manifest.validation_rows) < count
    (tmp_path / "one").mkdir()
    make_folder(tmp_path / "one", 1)
    with pytest.raises(DataError, match=r"data\.validation_fraction = .* of the 1 row of"):
        manifests.build(str(tmp_path / "one"), validation_fraction=fraction)


def test_the_digest_follows_path_size_and_time(tmp_path: Path) -> None:
    paths = make_folder(tmp_path, 6)
    first = manifests.build(str(tmp_path))
    assert manifests.build(str(tmp_path), labels="folder", validation_fraction=0.5).digest == first.digest
    assert compare(first, manifests.build(str(tmp_path))) == []
    file = tmp_path / paths[0]
    file.write_bytes(file.read_bytes() + b"x")
    longer = manifests.build(str(tmp_path))
    assert len(compare(first, longer)) == 1
    size = file.stat().st_size
    assert compare(first, longer)[0] == f"1 changed: {paths[0]} ({size - 1} bytes, now {size})"
    stamp = (tmp_path / paths[1]).stat()
    os.utime(tmp_path / paths[1], ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 10**9))
    assert compare(longer, manifests.build(str(tmp_path))) == [f"1 changed: {paths[1]} (same size, other content or time)"]
    before = manifests.build(str(tmp_path))
    for path in paths[2:]:
        (tmp_path / path).unlink()
    (tmp_path / "class0" / "new.png").touch()
    after = manifests.build(str(tmp_path))
    removed = ", ".join(sorted(paths[2:])[:3])
    assert compare(before, after) == ["1 added: class0/new.png", f"4 removed: {removed} ..."]
    with pytest.raises(DataError, match=r"is not the one this run began with: 1 added: .*data\.adopt=true"):
        check_same(before, after)
    check_same(before, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, r"data\.path does not exist \(got .*data\)"),
        (lambda path: path.mkdir(), r"data\.path is empty"),
        (lambda path: path.write_bytes(b""), r"data\.path is a file but not a Parquet file"),
        (
            lambda path: _touch(path, "a.txt", "b.txt", "c.pdf", "d"),
            r"holds no pictures; it holds \.txt \(2\), .*\.pdf \(1\).*no extension",
        ),
        (lambda path: _touch(path, "a.png", "b.parquet"), r"holds both pictures \(a\.png \.\.\.\) and Parquet files \(b\.parquet"),
        (lambda path: _touch(path, "a.parquet"), r"a\.parquet is not a readable Parquet file"),
        (lambda path: _touch(path, "pack.json", "shard-000000.u8"), r"holds a packing that is not finished"),
        (lambda path: make_parquet(path, [], []), r"holds Parquet files without rows"),
    ],
)
def test_a_path_without_data_is_an_error_that_says_what_is_there(tmp_path: Path, make: object, message: str) -> None:
    assert callable(make)
    make(tmp_path / "data")
    with pytest.raises(DataError, match=message) as caught:
        manifests.build(str(tmp_path / "data"))
    assert str(tmp_path) in str(caught.value)


def _touch(folder: Path, *names: str) -> None:
    folder.mkdir()
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize("name", [b"caf\xe9/a.png", b"caf\xe9.png", b"caf\xe9.parquet"])
def test_a_name_that_is_not_utf8_is_shown_with_its_bytes(tmp_path: Path, name: bytes) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/data/" + name))
    file.parent.mkdir(parents=True)
    file.touch()
    (tmp_path / "data" / os.fsdecode(b"\xe9.txt")).touch()  # no picture, so no matter
    shown = name.decode(errors="backslashreplace")
    for path in (tmp_path / "data", *([file] if file.suffix == ".parquet" else [])):
        with pytest.raises(DataError) as caught:
            manifests.build(os.fspath(path))
        assert str(caught.value).startswith(f"data.path holds a file whose name is not UTF-8: {shown}: rename it")


def test_an_unreadable_path_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str) -> bool:
        raise PermissionError(13, "Permission denied", url)

    monkeypatch.setattr(storage, "is_dir", refuse)
    with pytest.raises(DataError, match=r"data\.path cannot be listed: permission denied"):
        manifests.build(str(tmp_path))


def test_missing_parquet_columns_are_named_with_those_that_exist(tmp_path: Path) -> None:
    pq.write_table(pa.table({"img": [b"x"], "y": [1], "text": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"data\.image_column = image: .*x\.parquet has no such column: it has img, y, text"):
        manifests.build(str(tmp_path))
    with pytest.raises(DataError, match=r"data\.label_column = label: .*: it has img, y, text"):
        manifests.build(str(tmp_path), image_column="img", labels="column")
    with pytest.raises(DataError, match=r"data\.image_column = text: the column of .* holds string"):
        manifests.build(str(tmp_path), image_column="text")
    with pytest.raises(DataError, match=r"data\.labels = folder needs picture files, but .* holds Parquet"):
        manifests.build(str(tmp_path), image_column="img", labels="folder")
    assert manifests.build(str(tmp_path), image_column="img", labels="column", label_column="y").classes == ("1",)


def test_a_label_column_needs_parquet(tmp_path: Path) -> None:
    make_folder(tmp_path, 2)
    with pytest.raises(DataError, match=r"data\.labels = column needs Parquet files"):
        manifests.build(str(tmp_path), labels="column")


def test_too_few_rows_and_too_many_classes_are_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, 9)
    manifest = manifests.build(str(tmp_path), labels="folder", validation_fraction=0.3)
    count = len(manifest.training_rows)
    check_enough(manifest, global_batch=count)
    with pytest.raises(
        DataError, match=rf"has {count} training rows \({9 - count} more are held out\), fewer than train\.global_batch = {count + 1}"
    ):
        check_enough(manifest, global_batch=count + 1)
    check_classes(manifest, num_classes=3)
    check_classes(manifest, num_classes=None)
    with pytest.raises(DataError, match=r"has 3 classes, more than model\.num_classes = 2: 'class2' has index 2"):
        check_classes(manifest, num_classes=2)
    with pytest.raises(DataError, match=r"needs labels, but data\.labels is none"):
        check_classes(manifests.build(str(tmp_path)), num_classes=3)
    check_decoding(manifest, Decoding(1, 2))


def test_any_scheme_is_listed(tmp_path: Path) -> None:
    make_folder(tmp_path, 6)
    for path in tmp_path.rglob("*.png"):
        storage.write_whole(f"memory://pictures/{path.relative_to(tmp_path).as_posix()}", path.read_bytes())
    there, here = manifests.build("memory://pictures", labels="folder"), manifests.build(str(tmp_path), labels="folder")
    assert list(there.files) == list(here.files)
    assert there.labels.tolist() == here.labels.tolist()
    assert (there.table["key"].to_numpy() == here.table["key"].to_numpy()).all()


def test_a_parquet_column_for_a_folder_of_pictures_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"data\.image_column has no effect.*got \"?img"):
        manifests.build(str(tmp_path), image_column="img")
