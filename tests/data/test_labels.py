import pyarrow as pa
import pytest

from iddpm_ray.data.labels import index_classes, texts_of_column, texts_of_paths
from iddpm_ray.errors import DataError


def test_folder_labels_are_the_parent_folders_name() -> None:
    paths = ["a/b/x_1.png", "cat/x.png", "deep/er/dog/y.jpg"]
    assert texts_of_paths(paths, labels="folder", root="r") == ["b", "cat", "dog"]


def test_prefix_labels_end_at_the_first_underscore_and_never_hold_the_extension() -> None:
    paths = ["b_2.png", "sub/a_1_x.jpeg", "plain.png", "cat.v2_7.gif", "two.dots.png"]
    assert texts_of_paths(paths, labels="prefix", root="r") == ["b", "a", "plain", "cat.v2", "two.dots"]


@pytest.mark.parametrize(
    ("paths", "labels", "message"),
    [
        (["x.png", "y.png"], "folder", "no labels were found in r: x.png, y.png lie directly in it"),
        (["a/x.png", "y.png"], "folder", "1 of 2 pictures have no label in r: y.png lie"),
        (["0001.png", "0002.png"], "prefix", "no labels were found in r: no file name holds an underscore"),
        (["a_1.png", "_1.png"], "prefix", "_1.png in r have nothing before the underscore"),
    ],
)
def test_labels_wanted_but_absent_are_an_error(paths: list[str], labels: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        texts_of_paths(paths, labels=labels, root="r")


def test_classes_are_sorted_and_integers_by_value() -> None:
    words = index_classes(["truck", "bird", "truck", "Ant"])
    assert words.classes == ("Ant", "bird", "truck")
    assert words.labels.tolist() == [2, 1, 2, 0]
    numbers = index_classes(["10", "9", "-1", "09", "9"])
    assert numbers.classes == ("-1", "09", "9", "10")
    assert numbers.labels.tolist() == [3, 2, 0, 1, 2]
    assert index_classes(["10", "9", "x"]).classes == ("10", "9", "x")


def test_known_classes_keep_their_index_and_new_ones_follow() -> None:
    labelled = index_classes(["ant", "cat", "bee"], known=("cat", "dog"))
    assert labelled.classes == ("cat", "dog", "ant", "bee")
    assert labelled.labels.tolist() == [2, 0, 3]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array([3, 1], pa.int64()), ["3", "1"]),
        (pa.array(["a", "b"]), ["a", "b"]),
        (pa.array(["a", "a"]).dictionary_encode(), ["a", "a"]),
        (pa.array([True, False]), ["True", "False"]),
        (pa.array(["b", "a", "b"]).cast(pa.string_view()), ["b", "a", "b"]),
    ],
)
def test_columns_of_integers_and_text_name_classes(values: pa.Array, texts: list[str]) -> None:
    assert texts_of_column(pa.chunked_array([values]), name="label", where="f") == texts


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([0.5]), "column label of f holds double, which names no class"),
        (pa.array([1, None, 2]), "1 of 3 rows have no label, the first is its row 1"),
        (pa.array([None, None], pa.string()), "no labels were found, the first is its row 0"),
    ],
)
def test_columns_without_labels_are_an_error(values: pa.Array, message: str) -> None:
    with pytest.raises(DataError, match=message):
        texts_of_column(pa.chunked_array([values]), name="label", where="f")
