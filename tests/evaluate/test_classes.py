"""Laws of the classes to draw: in turn, by number or name, or one a picture; and a class nobody knows is named."""

from pathlib import Path

import numpy as np
import pytest
import torch

from iddpm_ray.errors import DataError, SpecError
from iddpm_ray.evaluate.classes import Labels, in_turn, of_array, read_classes

ANIMALS = ("cat", "dog", "bird", "10")


def read(text: str, classes: tuple[str, ...] = ANIMALS) -> Labels:
    return read_classes(text, num_classes=4, classes=classes)


def at(labels: Labels, count: int) -> list[int]:
    return labels.at(torch.arange(count)).tolist()


def test_classes_come_in_turn() -> None:
    assert at(read("2"), 3) == [2, 2, 2]
    assert at(read("3, 0"), 5) == [3, 0, 3, 0, 3]
    assert at(read("dog,cat,2"), 4) == [1, 0, 2, 1]
    assert at(read("10"), 2) == [3, 3]  # no class has that number, one has that name
    assert at(read("balanced"), 6) == [0, 1, 2, 3, 0, 1]
    assert at(in_turn(None, num_classes=3), 4) == [0, 1, 2, 0]
    assert at(in_turn((2, 1), num_classes=3), 3) == [2, 1, 2]
    assert read("1,2").count is None


def test_a_file_names_a_class_a_picture(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("dog\n2\ncat\n")
    found = read(str(tmp_path / "classes.txt"))
    assert (at(found, 3), found.count) == ([1, 2, 0], 3)
    np.save(tmp_path / "classes.npy", np.array([3, 3, 0], dtype=np.int32))
    found = read(str(tmp_path / "classes.npy"))
    assert (at(found, 3), found.count) == ([3, 3, 0], 3)
    assert of_array(np.array([1, 0]), num_classes=2).count == 2


def test_what_a_job_remembers_of_them_tells_them_apart() -> None:
    assert read("1,2").settings() == [1, 2]
    many = [of_array(np.arange(500) % number, num_classes=4).settings() for number in (2, 3)]
    assert many[0] != many[1]
    assert len(str(many[0])) < 120


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4", r'no such class \(got 4\): the network has classes 0 to 3, called "cat", "dog", "bird" \.\.\.'),
        ("1,99", r"no such class \(got 99\)"),
        ("cad", r'no class is called so \(got "cad"\): did you mean "cat"\? there are "cat", "dog", "bird", "10"'),
        ("", r'no class is called so \(got ""\)'),
        ("-1", "no class is called so"),
        ("9" * 23, r"no such class \(got 9{23}\): the network has classes 0 to 3"),
        ("9" * 5000, r"no class is called so"),
    ],
)
def test_unknown_classes_are_refused(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        read(text)


def test_names_where_there_are_none_and_numbers_that_are_names_are_refused() -> None:
    with pytest.raises(SpecError, match=r'no class has a name here \(got "cat"\): the network has classes 0 to 3'):
        read("cat", classes=())
    with pytest.raises(SpecError, match=r'class 2 may be number 2 \("10"\) or the one called "2", which is number 0'):
        read("2", classes=("2", "1", "10", "11"))
    with pytest.raises(SpecError, match=r"no such class \(got -1\)"):
        of_array(np.array([0, -1]), num_classes=2)


def test_files_that_hold_no_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read the classes in .*it does not exist"):
        read(str(tmp_path / "absent.txt"))
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match="names no class"):
        read(str(tmp_path / "empty.txt"))
    (tmp_path / "blank.txt").write_text("dog\n\ncat\n")
    with pytest.raises(SpecError, match=r'no class is called so \(got ""\)'):
        read(str(tmp_path / "blank.txt"))
    (tmp_path / "large.txt").write_text("dog\n99999999999999999999999\n")
    with pytest.raises(SpecError, match=r"no such class \(got 9{23}\)"):
        read(str(tmp_path / "large.txt"))
    np.save(tmp_path / "objects.npy", np.array([print], dtype=object))
    with pytest.raises(DataError, match="no array of whole numbers"):
        read(str(tmp_path / "objects.npy"))
    np.savez(tmp_path / "archive.npz", np.zeros(3))
    cut = [np.lib.format.magic(1, 0) + b"\x10\0{'descr':'<i8',\n", b"", (tmp_path / "archive.npz").read_bytes()]
    for content in cut:
        (tmp_path / "cut.npy").write_bytes(content)
        with pytest.raises(DataError, match="no array of whole numbers"):
            read(str(tmp_path / "cut.npy"))
    np.save(tmp_path / "beyond.npy", np.array([0, 2**64 - 1], dtype=np.uint64))
    with pytest.raises(SpecError, match=r"no such class \(got 18446744073709551615\)"):
        read(str(tmp_path / "beyond.npy"))
    np.save(tmp_path / "floats.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"holds float64 \[3\]"):
        read(str(tmp_path / "floats.npy"))


def test_a_number_that_is_also_a_name_is_refused_where_few_classes_have_names() -> None:
    with pytest.raises(SpecError, match='class 12 may be number 12 or the one called "12", which is number 1'):
        read_classes("12", num_classes=1000, classes=("1", "12"))


def test_a_name_may_hold_a_comma_or_look_like_a_file(tmp_path: Path) -> None:
    names = ("cat, big", "a/b", "notes.txt", "dog")
    for number, name in enumerate(names):
        assert at(read(name, names), 2) == [number, number]
    with pytest.raises(SpecError, match=r'no class is called so \(got "cat"\): .*there are "cat, big", "a/b", "notes\.txt", "dog"'):
        read("cat,dog", names)
    (tmp_path / "classes.txt").write_bytes(b"cat, big\r\ndog\r\n2\r\n\r\n")
    found = read(str(tmp_path / "classes.txt"), names)
    assert (at(found, 3), found.count) == ([0, 3, 2], 3)
