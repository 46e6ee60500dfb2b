"""No option without an effect: each field, changed alone, changes what the run builds, decides, writes or tells torch and Ray."""

import json
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from observed import observe
from PIL import Image
from spec.alternatives import ALTERNATIVES, COUPLED, REFUSED, spec_with

from iddpm_ray.errors import SpecError, UserError
from iddpm_ray.spec.fields import fields_of
from iddpm_ray.spec.spec import JobSpec

PINS_ONLY: dict[str, dict[str, Any]] = {"cluster.mesh.data": {"cluster.mesh.data": 2}}
"""Fields that decide nothing but refuse a spec that does not agree with them, and such a spec."""

IN_PARQUET = ("data.image_column", "data.label_column")
NO_PATHS = {"data.on_error": "broken", **dict.fromkeys(IN_PARQUET, "pictures.parquet")}
"""Fields that matter for some data sets alone, and one of those."""

REFUSES = ("init.sha256",)
"""Fields whose other value refuses what the run would begin from: that is their effect."""

_SEEN: dict[str, dict[str, Any]] = {}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data sets of every kind that some field is about, and a run to begin from."""
    folder = tmp_path_factory.mktemp("effects")
    for name, side in (("pictures", 40), ("other", 40), ("broken", 16)):
        tiny.write_pictures(folder / name, count=40 if name != "other" else 44, classes=3, side=side)
    Image.fromarray(np.zeros((40, 40, 4), dtype=np.uint8), mode="RGBA").save(folder / "pictures/class0/00.png")
    (folder / "broken/class0/00.png").write_bytes(b"no picture")
    files = sorted((folder / "pictures").rglob("*.png"))
    mirrored = BytesIO()
    Image.new("L", (16, 16)).save(mirrored, format="PNG")
    columns = {
        "image": [file.read_bytes() for file in files],
        "picture": [mirrored.getvalue()] * len(files),
        "label": [0] * len(files),
        "class": [number % 3 for number in range(len(files))],
    }
    pq.write_table(pa.table(columns), folder / "pictures.parquet")
    begun = spec_with(_moved({"run.name": "begun", "train.duration": "1 steps", "optim.lr": 0.1, "log.tensorboard": False}, folder))
    tiny.attempt(begun)
    tiny.run_folder(begun).rename(folder / "start.pt")
    return folder


@pytest.fixture(autouse=True)
def flags() -> Iterator[None]:
    """Torch's switches as they were."""
    matmul, tf32, threads = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.get_num_threads()
    deterministic, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = tf32, benchmark
    torch.use_deterministic_algorithms(deterministic)
    torch.set_num_threads(threads)


def _moved(settings: dict[str, Any], root: Path) -> dict[str, Any]:
    """The settings with every path below /tmp below `root`."""
    paths = {"run.output_dir": "/tmp/runs", "data.path": "/tmp/pictures"}
    return json.loads(json.dumps({**paths, **settings}).replace("/tmp/", f"{root}/"))


def _seen(settings: dict[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    key = json.dumps(settings, sort_keys=True)
    if key not in _SEEN:
        other = str(root / "pictures.parquet") if settings["data.path"].endswith("other") else str(root / "other")
        if "parquet" in settings["data.path"]:
            other = str(root / "pictures.parquet")
        _SEEN[key] = observe(spec_with(settings), other_data=other, monkeypatch=monkeypatch)
    return _SEEN[key]


def _check(path: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    changed = [key for key in before | after if before.get(key) != after.get(key)]
    print(f"{path}: {', '.join(changed) or 'NOTHING'}")
    assert changed, f"{path} changes nothing that could be seen: give it an effect, or let it go"


def test_every_field_is_looked_at() -> None:
    known = [*ALTERNATIVES, *REFUSED, *COUPLED]
    assert sorted(known) == sorted(field.path for field in fields_of(JobSpec))


@pytest.mark.parametrize("path", [path for path in ALTERNATIVES if path not in PINS_ONLY])
def test_the_field_has_an_effect(path: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alternative = ALTERNATIVES[path]
    given = dict(alternative.given)
    if path in NO_PATHS:
        given["data.path"] = f"/tmp/{NO_PATHS[path]}"
    before = _seen(_moved(given, root), root, monkeypatch)
    changed = _moved({**given, path: alternative.value}, root)
    if path in REFUSES:
        with pytest.raises(UserError, match=re.escape(path)):
            _seen(changed, root, monkeypatch)
        return
    _check(path, before, _seen(changed, root, monkeypatch))


@pytest.mark.parametrize("path", COUPLED)
def test_the_field_has_an_effect_with_those_that_go_with_it(path: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _check(path, _seen(_moved({}, root), root, monkeypatch), _seen(_moved(COUPLED[path], root), root, monkeypatch))


@pytest.mark.parametrize(("path", "settings"), [*PINS_ONLY.items(), *((path, {path: value}) for path, value in REFUSED.items())])
def test_the_field_refuses_what_contradicts_it(path: str, settings: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=rf"^{path}"):
        spec_with(settings)


def test_the_same_spec_is_seen_the_same_twice(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise any field would seem to have an effect."""
    settings = _moved({"sample.every": "2 steps", "data.validation_fraction": 0.25}, root)
    other = str(root / "other")
    one = observe(spec_with(settings), other_data=other, monkeypatch=monkeypatch)
    two = observe(spec_with(settings), other_data=other, monkeypatch=monkeypatch)
    assert [key for key in one if one[key] != two[key]] == []
