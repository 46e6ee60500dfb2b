"""A run's directory is one run's for good, whoever else begins one there at the same time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from PIL import Image

from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.pack import Packing, pack
from iddpm_ray.errors import DataError, SpecError
from iddpm_ray.spec.spec import JobSpec
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


@pytest.fixture
def labelled(root: Path) -> JobSpec:
    """A run of two classes that has made two steps, of a network with room for four; its spec for two more."""
    changes: dict[str, Any] = {"data__labels": "folder", "model__class_cond": True, "model__num_classes": 4}
    tiny.attempt(tiny.tiny_spec(root, train__duration="2 steps", checkpoint__every="1 steps", **changes))
    return tiny.tiny_spec(root, train__duration="4 steps", checkpoint__every="1 steps", **changes)


def new_first_class(root: Path) -> None:
    (root / "pictures" / "a_first").mkdir()
    Image.new("L", (8, 8)).save(root / "pictures" / "a_first" / "a.png")


@pytest.mark.parametrize("lost", [["spec.yaml"], ["manifest.arrow"], ["spec.yaml", "manifest.arrow"]], ids="+".join)
def test_what_is_lost_of_a_run_is_taken_from_its_newest_checkpoint(root: Path, labelled: JobSpec, lost: list[str]) -> None:
    for name in lost:
        (tiny.run_folder(labelled) / name).unlink()
    opening = inspect_run(labelled)
    assert (opening.fresh, opening.describe().partition(" from")[0]) == (False, "resumes step 2")
    assert opening.manifest.classes == ("class0", "class1")
    with pytest.raises(SpecError, match=r"holds another run(.|\n)*run\.seed"):
        inspect_run(tiny.tiny_spec(root, run__seed=3))
    assert tiny.attempt(labelled).step == 4
    new_first_class(root)
    with pytest.raises(DataError, match="is not the one"):
        inspect_run(labelled)


def test_other_data_is_refused_though_nothing_but_a_checkpoint_tells(root: Path, labelled: JobSpec) -> None:
    for name in ("spec.yaml", "manifest.arrow"):
        (tiny.run_folder(labelled) / name).unlink()
    new_first_class(root)
    with pytest.raises(DataError, match=r"is not the one that step-00000002.a0001 was trained on, and manifest.arrow is gone"):
        inspect_run(labelled)
    adopting = JobSpec.model_validate({**dict(labelled), "data": {**dict(labelled.data), "adopt": True}})
    assert inspect_run(adopting).manifest.classes == ("class0", "class1", "a_first")


def test_classes_that_are_not_those_of_the_checkpoint_are_refused(labelled: JobSpec) -> None:
    url = str(tiny.run_folder(labelled) / "manifest.arrow")
    pinned = manifests.read(url)
    manifests.write(replace(pinned, classes=("class1", "class0")), url)
    with pytest.raises(DataError, match=r"class 0 of step-00000002.a0001 is 'class0', and of .*pictures 'class1': restore the run's"):
        inspect_run(labelled)


def test_what_is_damaged_of_a_run_is_called_so(labelled: JobSpec) -> None:
    folder = tiny.run_folder(labelled)
    data = bytearray((folder / "manifest.arrow").read_bytes())
    data[data.rindex(b"class0") + 5] ^= 2
    (folder / "manifest.arrow").write_bytes(data)
    with pytest.raises(DataError, match=r"manifest\.arrow is damaged.*delete it: it is made anew from the data"):
        inspect_run(labelled)
    text = (folder / "spec.yaml").read_text()
    for damaged in ("", text.replace("matmul_precision", "matmul_precmsion")):
        (folder / "spec.yaml").write_text(damaged)
        with pytest.raises(SpecError, match=r"spec\.yaml, which says what the run in that directory is, cannot be understood"):
            inspect_run(labelled)


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
