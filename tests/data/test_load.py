import errno
import io
import os
import pickle
from pathlib import Path
from typing import ClassVar

import faulty
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from pictures import file_of, make_folder, make_parquet, noise
from PIL import Image

from iddpm_ray import storage
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data import tables
from iddpm_ray.data.image import BadPicture, Decoding
from iddpm_ray.data.load import load
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.errors import DataError

SIZE = Decoding(20, 24)


def rows(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def folder_of(path: Path, count: int = 8, *, fraction: float = 0.0) -> Manifest:
    for i in range(count):
        (path / f"class{i % 2}").mkdir(parents=True, exist_ok=True)
        (path / f"class{i % 2}" / f"{i:02d}.png").write_bytes(file_of(Image.fromarray(noise(i))))
    return manifests.build(str(path), labels="folder", validation_fraction=fraction)


def test_rows_come_in_the_order_asked_for_repeats_included(tmp_path: Path) -> None:
    manifest = folder_of(tmp_path)  # rows: 00 02 04 06 01 03 05 07
    for threads in (1, 8):
        loaded = load(manifest, rows(5, 0, 5, 7), decoding=SIZE, threads=threads)
        assert (loaded.pixels.transpose(0, 2, 3, 1) == np.stack([noise(3), noise(0), noise(3), noise(7)])).all()
        assert loaded.labels.tolist() == [1, 0, 1, 1]
        assert not loaded.substituted.any()
    assert load(manifest, rows(), decoding=SIZE).pixels.shape == (0, 3, 20, 24)


@pytest.mark.parametrize("struct", [False, True])
def test_parquet_gives_what_files_give(tmp_path: Path, struct: bool) -> None:
    make_parquet(tmp_path, [file_of(Image.fromarray(noise(i))) for i in range(11)], list("abcabcabcab"), struct=struct)
    manifest = manifests.build(str(tmp_path), labels="column")
    loaded = load(manifest, rows(10, 0, 3, 5, 6, 10), decoding=SIZE)
    assert (loaded.pixels.transpose(0, 2, 3, 1) == np.stack([noise(i) for i in (10, 0, 3, 5, 6, 10)])).all()
    assert [manifest.classes[label] for label in loaded.labels] == list("baacab")


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.binary()), pa.binary_view(), pa.large_binary()])
def test_pictures_may_lie_in_any_binary_column(tmp_path: Path, kind: pa.DataType) -> None:
    files = [file_of(Image.fromarray(noise(i))) for i in (0, 1, 0, 2)]
    pq.write_table(pa.table({"image": pa.array(files, pa.binary()).cast(kind)}), tmp_path / "a.parquet", row_group_size=2)
    loaded = load(manifests.build(str(tmp_path)), rows(3, 0, 2, 1), decoding=SIZE)
    assert (loaded.pixels.transpose(0, 2, 3, 1) == np.stack([noise(i) for i in (2, 0, 0, 1)])).all()


def test_a_column_called_like_the_field_of_pictures_is_another(tmp_path: Path) -> None:
    images = [{"bytes": file_of(Image.fromarray(noise(0))), "path": "a"}, None, {"bytes": file_of(Image.fromarray(noise(2))), "path": "c"}]
    pq.write_table(pa.table({"image": images, "image.bytes": [b"x", b"y", b"z"]}), tmp_path / "a.parquet")
    loaded = load(manifests.build(str(tmp_path)), rows(0, 1, 2), decoding=SIZE, on_error="substitute")
    assert (loaded.pixels.transpose(0, 2, 3, 1) == np.stack([noise(i) for i in (0, 2, 2)])).all()
    assert loaded.substituted.tolist() == [False, True, False]


def test_a_row_group_is_read_once_for_all_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_parquet(tmp_path, [file_of(Image.fromarray(noise(i))) for i in range(12)], [0] * 12, files=2, group=3)
    manifest = manifests.build(str(tmp_path))
    reads: list[tuple[str, int]] = []
    original = tables._read_group
    monkeypatch.setattr(tables, "_read_group", lambda url, group, column: reads.append((url, group)) or original(url, group, column))
    for _ in range(2):
        load(manifest, np.random.default_rng(0).permutation(12), decoding=SIZE)
    assert len(reads) == 4
    assert len(set(reads)) == 4


def test_the_cache_of_row_groups_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_parquet(tmp_path, [file_of(Image.fromarray(noise(i))) for i in range(12)], [0] * 12, files=1, group=2)
    manifest = manifests.build(str(tmp_path))
    groups = tables._Groups()
    monkeypatch.setattr(tables, "_groups", groups)
    monkeypatch.setattr(tables, "_CACHE_BYTES", 8000)  # two groups of two pictures of about 1.5 kB
    load(manifest, np.arange(12), decoding=SIZE)
    assert groups._bytes == sum(column.nbytes for column in groups._columns.values()) <= 8000
    assert 1 <= len(groups._columns) < 6


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(b""), r"class0/04\.png \(row 2\) is empty"),
        (lambda file: file.write_bytes(file.read_bytes()[:200]), r"class0/04\.png \(row 2\) is truncated after 200 bytes"),
        (lambda file: file.write_text("hello"), r"class0/04\.png \(row 2\) is not a picture"),
        (lambda file: file.unlink(), r"class0/04\.png \(row 2\) cannot be read: it does not exist"),
        (lambda file: (file.unlink(), file.mkdir()), r"class0/04\.png \(row 2\) cannot be read"),
        (lambda file: (file.unlink(), os.symlink("/nowhere", file)), r"class0/04\.png \(row 2\) cannot be read: it does not exist"),
    ],
)
def test_a_bad_picture_fails_naming_path_and_row_or_the_next_good_row_stands_in(tmp_path: Path, damage: object, message: str) -> None:
    manifest = folder_of(tmp_path)
    assert callable(damage)
    damage(tmp_path / "class0" / "04.png")
    with pytest.raises(DataError, match=message) as caught:
        load(manifest, rows(0, 2, 1), decoding=SIZE)
    assert str(tmp_path) in str(caught.value)
    assert "data.on_error=substitute" in str(caught.value)
    loaded = load(manifest, rows(0, 2, 1), decoding=SIZE, on_error="substitute")
    assert (loaded.pixels.transpose(0, 2, 3, 1) == np.stack([noise(0), noise(6), noise(2)])).all()
    assert loaded.substituted.tolist() == [False, True, False]


def test_substitutes_bring_their_own_label_skip_bad_rows_and_wrap(tmp_path: Path) -> None:
    manifest = folder_of(tmp_path)
    for name in ("class0/06.png", "class1/01.png", "class1/07.png"):
        (tmp_path / name).write_bytes(b"")
    loaded = load(manifest, rows(3, 4, 7), decoding=SIZE, on_error="substitute")
    assert (loaded.pixels.transpose(0, 2, 3, 1) == np.stack([noise(3), noise(3), noise(0)])).all()
    assert loaded.labels.tolist() == [1, 1, 0]
    assert loaded.substituted.all()


def test_a_substitute_never_crosses_the_split(tmp_path: Path) -> None:
    manifest = folder_of(tmp_path, 12, fraction=0.5)
    files = manifest.column("path", np.arange(12))
    training = manifest.training_rows
    bad = int(training[0])
    (tmp_path / files[bad]).write_bytes(b"")
    loaded = load(manifest, rows(bad), decoding=SIZE, on_error="substitute")
    good = load(manifest, training[1:2], decoding=SIZE)
    assert (loaded.pixels == good.pixels).all()
    held = manifest.validation_rows
    (tmp_path / files[held[-1]]).write_bytes(b"")
    assert (load(manifest, held[-1:], decoding=SIZE, on_error="substitute").pixels == load(manifest, held[:1], decoding=SIZE).pixels).all()


def test_a_set_of_bad_pictures_alone_is_an_error(tmp_path: Path) -> None:
    manifest = folder_of(tmp_path, 3)
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(DataError, match="no other row can stand in for it"):
        load(manifest, rows(0), decoding=SIZE, on_error="substitute")


def test_bad_rows_of_parquet_are_named_with_their_file_and_row(tmp_path: Path) -> None:
    pictures = [file_of(Image.fromarray(noise(i))) for i in range(6)]
    pictures[4] = b"hello"
    make_parquet(tmp_path, pictures, [0] * 6, files=2)
    manifest = manifests.build(str(tmp_path))
    with pytest.raises(BadPicture, match=r"part-1\.parquet, its row 1 \(row 4\) is not a picture"):
        load(manifest, rows(4), decoding=SIZE)
    assert (load(manifest, rows(4), decoding=SIZE, on_error="substitute").pixels[0].transpose(1, 2, 0) == noise(5)).all()


def spoil(file: Path, column: int, *, group: int) -> None:
    """Writes nonsense over the first page of a column of a row group."""
    chunk = pq.read_metadata(file).row_group(group).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray(file.read_bytes())
    content[start : start + 16] = b"\xff" * 16
    file.write_bytes(content)


def table_of(folder: Path) -> Path:
    make_parquet(folder, [file_of(Image.fromarray(noise(i))) for i in range(6)], list("aabbab"), files=1, group=2)
    return folder / "part-0.parquet"


def test_a_damaged_row_group_is_bad_pictures_and_a_good_one_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(table_of(tmp_path), 0, group=1)
    manifest = manifests.build(str(tmp_path), labels="column")
    asked: list[int] = []
    real = tables._read_group
    monkeypatch.setattr(tables, "_read_group", lambda url, group, name: asked.append(group) or real(url, group, name))
    with pytest.raises(
        BadPicture, match=r"part-0\.parquet, its row 3 \(row 3\) lies in row group 1, which cannot be read: .*data\.on_error"
    ):
        load(manifest, rows(1, 3), decoding=SIZE)
    shown = load(manifest, rows(1, 2, 3), decoding=SIZE, on_error="substitute")
    assert [(shown.pixels[i].transpose(1, 2, 0) == noise(row)).all() for i, row in enumerate((1, 4, 4))] == [True] * 3
    assert shown.substituted.tolist() == [False, True, True]
    assert sorted(asked) == [0, 1, 2]  # each once, whether it could be read or not


def test_a_damaged_label_column_is_named_with_its_row_group(tmp_path: Path) -> None:
    spoil(table_of(tmp_path), 1, group=2)
    manifests.build(str(tmp_path))
    with pytest.raises(
        DataError, match=r"part-0\.parquet: column label of its row group 2 cannot be read: .*: write it again or remove it"
    ):
        manifests.build(str(tmp_path), labels="column")


def test_a_damaged_footer_is_named(tmp_path: Path) -> None:
    file = table_of(tmp_path)
    content = bytearray(file.read_bytes())
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[start : start + 16] = b"\xff" * 16
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"part-0\.parquet is not a readable Parquet file: .*: write it again or remove it"):
        manifests.build(str(tmp_path))


def test_a_parquet_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table_of(tmp_path)

    def refuse(self: LocalFileSystem, path: str, mode: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(LocalFileSystem, "open", refuse)
    with pytest.raises(DataError, match=r"part-0\.parquet is not a readable Parquet file: permission denied: .*the right to read it"):
        manifests.build(str(tmp_path))


def test_a_store_that_does_not_answer_is_no_fault_of_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = folder_of(tmp_path)

    def time_out(path: Path) -> bytes:
        raise TimeoutError("read timed out")

    monkeypatch.setattr(Path, "read_bytes", time_out)
    with faulty.faults(), pytest.raises(OSError, match=r"class0/00\.png \(row 0\) could not be read: TimeoutError"):
        load(manifest, rows(0), decoding=SIZE, on_error="substitute")


def test_a_disk_that_fails_for_a_moment_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, read, failures = folder_of(tmp_path), Path.read_bytes, [OSError(errno.ESTALE, "stale")] * 2

    def stale(path: Path) -> bytes:
        if failures:
            raise failures.pop()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", stale)
    with faulty.faults():
        assert (load(manifest, rows(1), decoding=SIZE).pixels[0].transpose(1, 2, 0) == noise(2)).all()
    assert not failures


class Flaky(io.FileIO):
    """A file of which a read fails now and then."""

    failures: ClassVar[list[OSError]] = []

    def read(self, size: int | None = -1, /) -> bytes:
        if self.failures:
            raise self.failures.pop()
        return super().read(-1 if size is None else size)


def test_a_store_that_fails_for_a_moment_in_a_parquet_file_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_parquet(tmp_path, [file_of(Image.fromarray(noise(i))) for i in range(4)], [0] * 4)
    manifest = manifests.build(str(tmp_path))
    monkeypatch.setattr(LocalFileSystem, "open", lambda self, path, mode: Flaky(path, mode))
    for parts in (1, 2):  # where the file's groups are asked for, and where one is read
        Flaky.failures = [OSError(errno.EIO, "the store has failed")] * parts
        tables._groups._columns.clear()
        with faulty.faults():
            assert (load(manifest, rows(1), decoding=SIZE).pixels[0].transpose(1, 2, 0) == noise(1)).all()
        assert not Flaky.failures


def test_errors_survive_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(BadPicture("x is empty", fix="mend it")))
    assert isinstance(error, BadPicture)
    assert str(error) == "x is empty: mend it"


def test_any_scheme_is_read(tmp_path: Path) -> None:
    paths = make_folder(tmp_path, 6)
    for path in paths:
        storage.write_whole(f"memory://loaded/{path}", (tmp_path / path).read_bytes())
    there, here = manifests.build("memory://loaded", labels="folder"), manifests.build(str(tmp_path), labels="folder")
    order = rows(3, 1, 5)
    assert (load(there, order, decoding=SIZE).pixels == load(here, order, decoding=SIZE).pixels).all()
    make_parquet(tmp_path / "table", [(tmp_path / path).read_bytes() for path in paths], [0] * 6)
    for part in ("part-0.parquet", "part-1.parquet"):
        storage.write_whole(f"memory://table/{part}", (tmp_path / "table" / part).read_bytes())
    table = manifests.build("memory://table")
    assert (load(table, order, decoding=SIZE).pixels == load(here, order, decoding=SIZE).pixels).all()


@pytest.mark.parametrize("store", ["local", "memory"])
def test_colons_in_names_of_pictures_and_folders_are_read(tmp_path: Path, store: str) -> None:
    root = f"{tmp_path}/a::b" if store == "local" else "memory://a::b/c"
    for i, name in enumerate(["a.png", "b::1.png", "c/memory::d.png"]):
        storage.write_whole(storage.join(root, name), file_of(Image.new("RGB", (8, 8), (i, 0, 0))))
    loaded = load(manifests.build(root), rows(0, 1, 2), decoding=Decoding(8, 8), on_error="substitute")
    assert loaded.pixels[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert not loaded.substituted.any()


def test_colons_in_the_name_of_a_parquet_file_are_read(tmp_path: Path) -> None:
    make_parquet(tmp_path, [file_of(Image.new("RGB", (8, 8), (7, 0, 0)))] * 2, [0, 1], files=1)
    file = (tmp_path / "part-0.parquet").rename(tmp_path / "a::b.parquet")
    for path in (tmp_path, file):
        manifest = manifests.build(str(path), labels="column")
        assert load(manifest, rows(1), decoding=Decoding(8, 8)).pixels[0, 0, 0, 0] == 7


def test_a_parquet_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    for shade, count in ((10, 1), (200, 3), (90, 2)):
        pictures = [file_of(Image.new("RGB", (8, 8), (shade + i, 0, 0))) for i in range(count)]
        make_parquet(tmp_path, pictures, [0] * count, files=1, group=2)
        loaded = load(manifests.build(str(tmp_path)), np.arange(count), decoding=Decoding(8, 8))
        assert loaded.pixels[:, 0, 0, 0].tolist() == [shade + i for i in range(count)]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("left", [0, 2, 3])
def test_rows_that_a_parquet_file_has_no_more_are_an_error(tmp_path: Path, left: int, known: bool) -> None:
    pictures = [file_of(Image.fromarray(noise(i))) for i in range(4)]
    make_parquet(tmp_path, pictures, [0] * 4, files=1, group=2)
    manifest = manifests.build(str(tmp_path))
    if known:
        load(manifest, rows(0), decoding=SIZE)
    make_parquet(tmp_path, pictures[:left], [0] * left, files=1, group=2)
    with pytest.raises(DataError, match=r"part-0\.parquet has fewer rows than the data set was listed with"):
        load(manifest, rows(3), decoding=SIZE, on_error="substitute")
