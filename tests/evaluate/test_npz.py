"""Laws of pictures in npz files: numpy reads what is written, rows are read alone, and nothing else is believed."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from iddpm_ray.errors import DataError
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
