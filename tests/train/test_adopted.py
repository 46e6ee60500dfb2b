"""Going on with another data set is said, with what it does to lengths in epochs."""

from pathlib import Path

import pytest
import tiny
from PIL import Image

from iddpm_ray.data import manifest as manifests
from iddpm_ray.plan import make_plan
from iddpm_ray.train.adopted import adopted
from iddpm_ray.train.directory import inspect_run, write_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tiny.write_pictures(tmp_path / "pictures")
    return tmp_path


def add_pictures(root: Path, count: int) -> None:
    for number in range(count):
        Image.new("L", (8, 8), number).save(root / "pictures" / "class0" / f"new{number}.png")


def test_what_changed_in_the_data_is_said_once(root: Path) -> None:
    write_run(inspect_run(tiny.tiny_spec(root)))
    adopting = tiny.tiny_spec(root, data__adopt=True)
    assert inspect_run(adopting).adopted == ()
    add_pictures(root, 3)
    opening = inspect_run(adopting)
    data = f"adopts the changed data set at {root / 'pictures'}, 15 training rows, no longer 12: 3 added: class0/new0.png"
    assert len(opening.adopted) == 1
    assert opening.adopted[0].startswith(data)
    assert data in opening.describe()
    assert data in make_plan(adopting, opening.manifest, begins=opening.describe()).describe()
    write_run(opening)
    again = inspect_run(adopting)
    assert again.adopted == ()
    assert "adopts" not in again.describe()


def test_lengths_in_epochs_say_what_they_become_and_that_the_learning_rate_moves(root: Path) -> None:
    lengths = {"optim__schedule": "linear", "optim__anneal": "2 epochs", "optim__warmup": "0.5 epochs", "train__duration": "20 steps"}
    write_run(inspect_run(tiny.tiny_spec(root, **lengths)))
    add_pictures(root, 3)
    _, line = inspect_run(tiny.tiny_spec(root, data__adopt=True, **lengths)).adopted
    assert line.startswith(
        "an epoch has another length: optim.anneal = 2 epochs is 30 samples, no longer 24, optim.warmup = 0.5 epochs is 8 "
    )
    assert line.endswith("; the learning rate is another from here on, by optim.anneal and optim.warmup")


def test_other_pictures_of_the_same_number_change_no_length(root: Path) -> None:
    spec = tiny.tiny_spec(root, train__duration="2 epochs", log__every="1 epoch")
    before = manifests.build(spec.data.path)
    next((root / "pictures").rglob("*.png")).write_bytes(b"")
    (line,) = adopted(spec, before, manifests.build(spec.data.path))
    assert ", 12 training rows: 1 changed: " in line
    add_pictures(root, 1)
    *_, line = adopted(spec, before, manifests.build(spec.data.path))
    assert "train.duration = 2 epochs is 26 samples, no longer 24" in line
    assert "learning rate" not in line
