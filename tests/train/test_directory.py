"""A run's directory is one run's for good, whoever else begins one there at the same time."""

from pathlib import Path
from typing import Any

import pytest
import tiny
from PIL import Image

from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.pack import Packing, pack
from iddpm_ray.errors import DataError, SpecError
from iddpm_ray.train import directory
from iddpm_ray.train.directory import inspect_run, write_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tiny.write_pictures(tmp_path / "pictures")
    return tmp_path


def test_a_run_that_another_driver_began_meanwhile_is_not_written_over(root: Path) -> None:
    late = inspect_run(tiny.tiny_spec(root, run__seed=3))
    write_run(inspect_run(tiny.tiny_spec(root)))
    written = (tiny.run_folder(late.spec) / "spec.yaml").read_bytes()
    with pytest.raises(SpecError, match=r"holds another run(.|\n)*run\.seed"):
        write_run(late)
    assert (tiny.run_folder(late.spec) / "spec.yaml").read_bytes() == written


def test_data_that_another_driver_pinned_meanwhile_is_not_written_over(root: Path) -> None:
    late = inspect_run(tiny.tiny_spec(root))
    Image.new("RGB", (16, 16)).save(next((root / "pictures").rglob("*.png")))
    write_run(inspect_run(tiny.tiny_spec(root)))
    with pytest.raises(DataError):
        write_run(late)


def test_a_driver_that_came_second_with_the_same_spec_goes_on(root: Path) -> None:
    first, second = inspect_run(tiny.tiny_spec(root)), inspect_run(tiny.tiny_spec(root))
    write_run(first)
    write_run(second)
    assert not inspect_run(second.spec).fresh


@pytest.mark.parametrize("num_classes", [None, 3])
def test_a_class_that_the_network_has_no_row_for_is_not_adopted(root: Path, num_classes: int | None) -> None:
    labelled: dict[str, Any] = {"data__labels": "folder", "model__class_cond": True, "model__num_classes": num_classes}
    spec = tiny.tiny_spec(root, **labelled)
    tiny.attempt(spec)
    (root / "pictures" / "class2").mkdir()
    Image.new("L", (8, 8)).save(root / "pictures" / "class2" / "a.png")
    adopting = tiny.tiny_spec(root, data__adopt=True, train__duration="3 steps", **labelled)
    if num_classes is not None:
        assert tiny.attempt(adopting).step == 3
        return
    before = contents(tiny.run_folder(spec))
    with pytest.raises(DataError, match=r"no row for: 'class2'; it was made for 2, since model\.num_classes is null"):
        tiny.attempt(adopting)
    assert contents(tiny.run_folder(spec)) == before
    (root / "pictures" / "class2" / "a.png").rename(root / "pictures" / "class1" / "a.png")
    assert tiny.attempt(adopting).step == 3


def test_a_packed_set_with_another_limit_is_not_taken_up(root: Path) -> None:
    source = manifests.build(str(root / "pictures"))
    for name, limit in (("narrow", 70), ("wide", 700)):
        pack(Packing(source, "none", Decoding(8, 8, 1, max_pixels=limit), 12), str(root / name))
    narrow = {"data__path": str(root / "narrow"), "data__max_pixels": 70}
    with pytest.raises(DataError, match=r"narrow was packed with data\.max_pixels = 70, the run wants 178956970"):
        inspect_run(tiny.tiny_spec(root, **{**narrow, "data__max_pixels": 178956970}))
    write_run(inspect_run(tiny.tiny_spec(root, **narrow)))
    assert not inspect_run(tiny.tiny_spec(root, **narrow, data__adopt=True)).fresh
    with pytest.raises(DataError, match=r"wide was packed with data\.max_pixels = 700, the run wants 70"):
        inspect_run(tiny.tiny_spec(root, **{**narrow, "data__path": str(root / "wide")}, data__adopt=True))


def test_a_run_that_trains_on_a_packed_set_with_another_limit_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(Packing(manifests.build(str(root / "pictures")), "none", Decoding(8, 8, 1, max_pixels=70), 12), str(root / "packed"))
    spec = tiny.tiny_spec(root, data__path=str(root / "packed"))
    with monkeypatch.context() as before:
        before.setattr(directory, "check_limit", lambda manifest, decoding: None)
        write_run(inspect_run(spec))
    assert not inspect_run(spec).fresh


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
