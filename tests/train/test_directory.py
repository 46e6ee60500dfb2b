"""A run's directory is one run's for good, whoever else begins one there at the same time."""

from pathlib import Path

import pytest
import tiny
from PIL import Image

from iddpm_ray.errors import DataError, SpecError
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
