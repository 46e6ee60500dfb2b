"""Laws of pictures in npz files: numpy reads what is written, rows are read alone, and nothing else is believed."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from iddpm_ray.errors import DataError, SpecError
from iddpm_ray.evaluate.classes import of_array
from iddpm_ray.evaluate.gallery import file_gallery
from iddpm_ray.evaluate.npz import PictureFile, decode, encode, write_pictures

PICTURES = np.random.default_rng(0).integers(0, 256, (10, 4, 6, 3), dtype=np.uint8)
LABELS = np.arange(10) % 3


def test_numpy_reads_what_is_written_in_parts(tmp_path: Path) -> None:
    url = str(tmp_path / "samples.npz")
    write_pictures(url, iter([PICTURES[:4], PICTURES[4:9], PICTURES[9:]]), shape=PICTURES.shape, labels=LABELS)
    with np.load(url, allow_pickle=False) as found:
        assert found.files == ["arr_0", "arr_1"]
        assert np.array_equal(found["arr_0"], PICTURES)
        assert found["arr_0"].dtype == np.uint8
        assert np.array_equal(found["arr_1"], LABELS)
    first = (tmp_path / "samples.npz").read_bytes()
    write_pictures(url, [PICTURES], shape=PICTURES.shape, labels=LABELS)
    assert (tmp_path / "samples.npz").read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["samples.npz"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        write_pictures(str(tmp_path / "x.npz"), [PICTURES[:3]], shape=PICTURES.shape, labels=None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_rows_are_those_that_numpy_wrote(tmp_path: Path, save: object, scheme: str) -> None:
    path = tmp_path / "theirs.npz"
    save(path, PICTURES, LABELS)  # type: ignore[operator]
    url = str(path)
    if scheme:
        from iddpm_ray import storage

        url = f"memory://{tmp_path}/theirs.npz"
        storage.write_whole(url, path.read_bytes())
    file = PictureFile(url)
    assert file.shape == (10, 4, 6, 3)
    assert file.labels is not None
    assert file.labels.tolist() == LABELS.tolist()
    for begin, end in ((0, 10), (3, 5), (9, 10), (4, 4)):
        assert np.array_equal(file.rows(begin, end), PICTURES[begin:end].transpose(0, 3, 1, 2))
    file.close()


class Trap:
    """Would be called by whoever unpickles it."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("a pickle was read",))


def test_objects_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "trap.npz", np.array([Trap()] * 4, dtype=object))
    with pytest.raises(DataError, match="Python objects"):
        PictureFile(str(tmp_path / "trap.npz"))
    np.savez(tmp_path / "labels.npz", PICTURES, np.array([Trap()] * 10, dtype=object))
    with pytest.raises(DataError, match=r"arr_1 of .* Python objects"):
        PictureFile(str(tmp_path / "labels.npz"))
    with pytest.raises(DataError, match="chunk 3 is damaged"):
        decode((tmp_path / "trap.npz").read_bytes(), name="chunk 3")


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"arr_0": PICTURES.astype(np.float32)}, r"holds float32 \[10, 4, 6, 3\]"),
        ({"arr_0": PICTURES[0]}, r"holds uint8 \[4, 6, 3\]"),
        ({"arr_0": PICTURES[..., :2]}, r"holds uint8 \[10, 4, 6, 2\]"),
        ({"arr_0": PICTURES[:0]}, r"holds uint8 \[0, 4, 6, 3\]"),
        ({"arr_1": LABELS}, "holds arr_1: give an npz with arr_0"),
        ({"arr_0": PICTURES, "mu": LABELS}, "holds arr_0, mu: give"),
        ({"arr_0": PICTURES, "arr_1": LABELS[:4]}, r"arr_1 of .* holds int64 \[4\]"),
        ({"arr_0": PICTURES, "arr_1": LABELS / 2}, "arr_1 of .* holds float64"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(DataError, match=says):
        PictureFile(str(tmp_path / "other.npz"))


def test_files_that_are_none_or_cut_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*it does not exist"):
        PictureFile(str(tmp_path / "absent.npz"))
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(DataError, match="is no npz file"):
        PictureFile(str(tmp_path / "text.npz"))
    with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive:
        whole = encode({"arr_0": PICTURES})
        (tmp_path / "whole.npz").write_bytes(whole)
        archive.writestr("arr_0.npy", zipfile.ZipFile(tmp_path / "whole.npz").read("arr_0.npy")[:-7])
    with pytest.raises(DataError, match="has not the bytes of its shape"):
        PictureFile(str(tmp_path / "lies.npz"))


def npy(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """An array as a file holds it, with any header."""
    text = header.encode("latin1")
    return np.lib.format.magic(*version) + len(text).to_bytes(2 if version == (1, 0) else 4, "little") + text + data


SHAPE = "'shape': (10, 4, 6, 3)"
HEADER = f"{{'descr': '|u1', 'fortran_order': False, {SHAPE}}}"
BYTES = PICTURES.tobytes()


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"arr_0": npy(HEADER, BYTES)}, "holds arr_0 without .npy: give"),
        ({"arr_0.npy": npy(HEADER, BYTES), "arr_0": b""}, "holds arr_0 without .npy, arr_0: give"),
        ({}, "holds nothing: give"),
        ({"arr_0.npy": npy(HEADER[:-2], BYTES)}, "damaged: arr_0 is no array"),
        ({"arr_0.npy": npy("{'''abc", BYTES)}, "damaged: arr_0 is no array"),
        ({"arr_0.npy": npy(HEADER, BYTES, (9, 0))}, "damaged: arr_0 is no array"),
        ({"arr_0.npy": b""}, "damaged: arr_0 is no array"),
        ({"arr_0.npy": npy(HEADER.replace("10, 4", "-10, -4"), BYTES)}, r"arr_0 of .* holds uint8 \[-10, -4, 6, 3\]"),
        ({"arr_0.npy": npy(HEADER, BYTES), "arr_1.npy": npy(HEADER[:-2])}, "damaged: arr_1 is no array"),
    ],
)
@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_headers_and_names_of_any_kind_are_one_error(tmp_path: Path, members: dict[str, bytes], says: str, packed: int) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", packed) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(DataError, match=says):
        PictureFile(str(tmp_path / "x.npz"))


@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_file_is_held_against_its_checksums(tmp_path: Path, packed: int) -> None:
    """Where any one byte of the pixels is another, also of one that no row would show."""
    pixels = np.random.default_rng(1).integers(0, 256, (200, 8, 8, 1), dtype=np.uint8)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", packed) as archive:
        archive.writestr("arr_0.npy", npy(HEADER.replace(SHAPE, "'shape': (200, 8, 8, 1)"), pixels.tobytes()))
    whole = (tmp_path / "x.npz").read_bytes()
    file_gallery(str(tmp_path / "x.npz"))
    for place in (5000, len(whole) - 300):
        (tmp_path / "x.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(DataError, match="is damaged"):
            file_gallery(str(tmp_path / "x.npz"))


def test_what_is_encrypted_or_packed_otherwise_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", PICTURES)
    whole = (tmp_path / "x.npz").read_bytes()
    entry = whole.index(b"PK\x01\x02")
    for own, listed, value in ((6, entry + 8, 1), (8, entry + 10, 99)):  # flag, method
        changed = bytearray(whole)
        changed[own], changed[listed] = value, value
        (tmp_path / "x.npz").write_bytes(changed)
        with pytest.raises(DataError, match=r"arr_0\.npy of .* is encrypted, or packed in a way that is not read here"):
            PictureFile(str(tmp_path / "x.npz"))


def test_labels_keep_their_own_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", PICTURES, np.array([2**64 - 1] * 10, dtype=np.uint64))
    labels = PictureFile(str(tmp_path / "x.npz")).labels
    assert labels is not None
    with pytest.raises(SpecError, match=r"no such class \(got 18446744073709551615\)"):
        of_array(labels, num_classes=10)
    np.savez(tmp_path / "big.npz", PICTURES, np.arange(10, dtype=">i4"))
    labels = PictureFile(str(tmp_path / "big.npz")).labels
    assert labels is not None
    assert of_array(labels, num_classes=10).turn.dtype == np.dtype("int64")
    assert of_array(labels, num_classes=10).turn.tolist() == list(range(10))


def test_damaged_chunks_are_one_error() -> None:
    whole = encode({"arr_0": PICTURES})
    cut = io.BytesIO()
    with zipfile.ZipFile(cut, "w") as archive:
        archive.writestr("arr_0.npy", npy(HEADER[:-2], BYTES))
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as archive:
        archive.writestr("arr_0", b"text")
    for data in (whole[:200], cut.getvalue(), text.getvalue(), b"", whole[128:]):
        with pytest.raises(DataError, match="chunk 3 is damaged"):
            decode(data, name="chunk 3")
