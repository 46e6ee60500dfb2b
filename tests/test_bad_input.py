"""Bad input: one clear message that names the thing, its value and what would do; nothing is lost, and nothing starts in vain."""

import importlib.util
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import faulty
import numpy as np
import pytest
import tiny
import torch
from PIL import Image

from iddpm_ray import build
from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.errors import CheckpointError, DataError, TrainError
from iddpm_ray.runtime import launch
from iddpm_ray.spec.text import dump_yaml
from iddpm_ray.train import setup
from iddpm_ray.train.session import LocalSession

MESSAGES: list[tuple[str, str]] = []
"""Which case said what, for whoever wants to read them all: `pytest -s` prints them."""


@pytest.fixture(scope="module", autouse=True)
def show() -> Iterator[None]:
    yield
    print("\n" + "\n".join(f"[{case}] {message}" for case, message in MESSAGES))


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """jobs/train.py, as a module."""
    found = importlib.util.spec_from_file_location("train_job", Path(__file__).parents[1] / "jobs" / "train.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tiny.write_pictures(tmp_path / "pictures")
    return tmp_path


@pytest.fixture
def says(program: ModuleType, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Callable[[list[str]], str]:
    """Runs the program with a command line that it must refuse before Ray starts; gives its one message."""

    def run(argv: list[str]) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch.ray, "init", lambda **_: pytest.fail("Ray was started for a run that cannot be"))
            assert program.main(argv) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("error: ")
        assert said.err.count("error: ") == 1
        assert "Traceback" not in said.err
        MESSAGES.append((request.node.name, said.err.strip()))
        return said.err.removeprefix("error: ").rstrip("\n")

    return run


SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"optim__lr_rate": 1}, r"optim\.lr_rate \(got 1\): no such field: did you mean optim\.\w+\?"),
    "misspelt key": ({"modle__dropout": 0.1}, r"modle\.dropout \(got 0\.1\): no such field: did you mean model\.dropout\?"),
    "wrong type": ({"optim__lr": "fast"}, r"optim\.lr \(got .?fast.?\): should be a number"),
    "channels": (
        {"model__num_channels": 48},
        r"model\.num_channels \(got 48\): should be a multiple of 32 \(group normalisation\), such as",
    ),
    "attention": (
        {"model__attention_resolutions": [5]},
        r"model\.attention_resolutions \(got \[5\]\): no level has size 5: the levels .* have 8",
    ),
    "heads": ({"model__num_heads": 3}, r"model\.num_heads \(got 3\): does not divide the 32 channels of attention in the middle block: "),
    "ddim30": ({"diffusion__timesteps": 100, "sample__respacing": "ddim30"}, r"sample\.respacing \(got .?ddim30.?\)"),
    "T = 1": ({"diffusion__timesteps": 1}, r"diffusion\.timesteps \(got 1\): should be at least 2"),
    "linear, T = 20": (
        {"diffusion__timesteps": 20},
        r"diffusion\.timesteps \(got 20\): the last beta of a linear schedule.*use 21 or more, or cosine",
    ),
    "batch below workers": (
        {"train__global_batch": 3, "cluster__workers": 4},
        r"train\.global_batch \(got 3\): should be at least the number of workers, 4",
    ),
    "microbatch": ({"optim__microbatch": 9}, r"optim\.microbatch \(got 9\): should be at most train\.global_batch, 4"),
    "memory": ({"run__output_dir": "memory://runs"}, r"run\.output_dir \(got .?memory://runs.?\): lives in the memory of one process"),
}


@pytest.mark.parametrize("case", SPECS)
def test_a_spec_that_cannot_run_is_refused(case: str, root: Path, says: Callable[[list[str]], str]) -> None:
    changes, expected = SPECS[case]
    assert re.match(expected, says(tiny.arguments(root, **changes)), re.DOTALL)


DATA: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {
    "missing": (
        lambda folder: shutil.rmtree(folder),
        {},
        r"data\.path does not exist \(got \S+/pictures\): name a folder of pictures, a Parquet file or a packed set",
    ),
    "empty": (
        lambda folder: [file.unlink() for file in folder.rglob("*.png")],
        {},
        r"data\.path is empty \(got \S+/pictures\): put pictures",
    ),
    "smaller than a batch": (
        lambda folder: None,
        {"train__global_batch": 13},
        r"\S+/pictures has 12 training rows, fewer than train\.global_batch = 13: set train\.global_batch to at most 12, or add pictures",
    ),
    "unreadable": (
        lambda folder: (shutil.rmtree(folder), folder.write_bytes(b"no data set")),
        {},
        r"data\.path is a file but not a Parquet file \(got \S+/pictures\): name the folder",
    ),
    "labels beyond": (
        lambda folder: None,
        {"data__labels": "folder", "model__class_cond": True, "model__num_classes": 1},
        r"\S+/pictures has 2 classes, more than model\.num_classes = 1: 'class1' has index 1: set model\.num_classes to at least 2",
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_a_data_set_that_cannot_be_used_is_refused(case: str, root: Path, says: Callable[[list[str]], str]) -> None:
    harm, changes, expected = DATA[case]
    harm(root / "pictures")
    assert re.match(expected, says(tiny.arguments(root, **changes)), re.DOTALL)
    assert not (root / "runs").exists(), "nothing was written"


def _cut(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:1500])


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[45:50] = b"\xff" * 5
    path.write_bytes(bytes(data))


PICTURES: dict[str, tuple[Callable[[Path], object], str]] = {
    "corrupt": (_flipped, r"is damaged"),
    "truncated": (_cut, r"is truncated after 1500 bytes"),
    "zero-byte": (lambda path: path.write_bytes(b""), r"is empty \(0 bytes\)"),
    "bomb-sized": (lambda path: Image.new("1", (3000, 3000)).save(path), r"claims 3000x3000 pixels, more than data\.max_pixels = 10000"),
    "not an image": (lambda path: path.write_bytes(b"hello, I am text"), r"is not a picture"),
}


@pytest.mark.parametrize("case", PICTURES)
def test_a_bad_picture_ends_the_run_by_name_and_row_or_is_replaced_and_counted(case: str, root: Path) -> None:
    harm, expected = PICTURES[case]
    bad = root / "pictures" / "class1" / "05.png"
    harm(bad)
    spec = tiny.tiny_spec(root, train__duration="3 steps", data__max_pixels=10000)
    with pytest.raises(DataError, match=rf"{re.escape(str(bad))} \(row 8\) {expected}.*data\.on_error") as caught:
        tiny.attempt(spec)
    MESSAGES.append((case, str(caught.value)))
    tolerant = tiny.tiny_spec(root, run__name="tolerant", train__duration="3 steps", data__max_pixels=10000, data__on_error="substitute")
    session = LocalSession()
    assert tiny.attempt(tolerant, session).why == "finished"
    assert sum(int(str(row["substituted_pictures"])) for row in session.rows) == 1, "twelve rows, seen once each in three steps of four"


def test_an_output_directory_below_a_file_is_refused(root: Path, says: Callable[[list[str]], str]) -> None:
    (root / "file").write_text("in the way")
    said = says(tiny.arguments(root, run__output_dir=str(root / "file" / "runs")))
    assert said.startswith("run.output_dir is not writable: NotADirectoryError")
    assert f"(got {root}/file/runs/tiny): " in said


def test_a_run_of_another_identity_is_refused_with_what_differs(root: Path, says: Callable[[list[str]], str]) -> None:
    tiny.attempt(tiny.tiny_spec(root))
    said = says(tiny.arguments(root, run__seed=7, model__dropout=0.1, optim__lr=0.5))
    assert said == (
        f"{root}/runs/tiny holds another run; what is there -> what was asked for:\n"
        "  run.seed: 0 -> 7\n  model.dropout: 0.0 -> 0.1\n: give this run another run.name, or set these fields back"
    )


def _three(root: Path) -> tuple[Any, list[Any]]:
    """A run with checkpoints of steps 1, 2 and 3, newest first; and the spec that goes on from there."""
    changes = {"checkpoint__every": "1 steps", "checkpoint__keep_last": 5}
    tiny.attempt(tiny.tiny_spec(root, train__duration="3 steps", **changes))
    return tiny.tiny_spec(root, train__duration="4 steps", **changes), complete(str(root / "runs/tiny"))


@pytest.mark.parametrize("case", ["missing", "cut"])
def test_a_checkpoint_with_a_bad_shard_is_passed_over_and_said(case: str, root: Path) -> None:
    spec, saved = _three(root)
    shard = next(Path(saved[0].url).glob("data-*.bin"))
    _ = shard.unlink() if case == "missing" else shard.write_bytes(shard.read_bytes()[:-1])
    session = LocalSession()
    assert tiny.attempt(spec, session).step == 4
    MESSAGES.append((f"shard {case}", " | ".join(session.messages)))
    what = f"{shard.name} is {'missing' if case == 'missing' else 'cut: '}"
    assert session.messages[0].startswith(f"warning: {saved[0].name} is damaged: {what}")
    assert session.messages[0].endswith("; going back to the checkpoint before it")
    assert session.messages[1].startswith(f"resuming step 2 of {root}/runs/tiny from {saved[1].name}")


def test_a_checkpoint_of_a_later_version_is_refused(root: Path, says: Callable[[list[str]], str]) -> None:
    _, saved = _three(root)
    marker = Path(saved[0].url) / "marker.json"
    marker.write_text(marker.read_text().replace('"format": 1', '"format": 99'))
    said = says(tiny.arguments(root, train__duration="4 steps", checkpoint__every="1 steps", checkpoint__keep_last=5))
    assert said == (
        f"{saved[0].name} was written by a newer version of iddpm_ray (got checkpoint format 99, this version reads up to 1): "
        "install that version or a later one"
    )


def test_when_the_disk_is_full_training_goes_on_and_the_next_save_tries_again(root: Path) -> None:
    faulty.register()
    changes = {"run__output_dir": f"faulty://{root}/runs", "checkpoint__every": "1 steps", "train__duration": "3 steps"}
    session = LocalSession()
    with faulty.faults(faulty.Fault("pipe_file", -1, "full", path="step-00000001")):
        assert tiny.attempt(tiny.tiny_spec(root, **changes), session).why == "finished"
    warnings = [line for line in session.messages if "WARNING" in line]
    MESSAGES.append(("disk full", " | ".join(warnings)))
    assert len(warnings) == 1
    assert re.match(
        r"WARNING: checkpoint step-00000001\.a0001 was NOT saved: .*no space left.*; training goes on, the next save tries again",
        warnings[0],
    )
    assert [one.step for one in complete(f"{root}/runs/tiny")] == [3, 2]


def test_when_not_even_the_last_state_can_be_saved_the_run_says_so(root: Path) -> None:
    faulty.register()
    spec = tiny.tiny_spec(root, run__output_dir=f"faulty://{root}/runs", train__duration="1 steps")
    with (
        faulty.faults(faulty.Fault("pipe_file", -1, "full", path="step-00000001")),
        pytest.raises(
            TrainError, match=r"the state after step 1 could not be saved: .*no space left.*: make room or mend the storage"
        ) as caught,
    ):
        tiny.attempt(spec)
    MESSAGES.append(("disk full at the end", str(caught.value)))


def test_nan_in_the_weights_ends_the_run_naming_timesteps(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = setup.init_weights

    def spoil(network: torch.nn.Module, *, seed: int) -> None:
        begin(network, seed=seed)
        with torch.no_grad():
            next(network.parameters())[0] = float("nan")

    monkeypatch.setattr(setup, "init_weights", spoil)
    session = LocalSession()
    with pytest.raises(TrainError) as caught:
        tiny.attempt(tiny.tiny_spec(root, train__duration="20 steps", optim__max_nonfinite_steps=3, checkpoint__every="100 steps"), session)
    MESSAGES.append(("NaN in weights", str(caught.value)))
    assert re.match(
        r"3 steps in a row had non-finite gradients, up to step 3; non-finite losses at timesteps \[\d+.*\]: a smaller optim\.lr",
        str(caught.value),
    )
    assert re.match(r"step 1: non-finite losses at timesteps \d+", session.messages[1])


def test_a_process_respaced_to_one_step_can_be_drawn_from(root: Path) -> None:
    spec = tiny.tiny_spec(root, sample__every="1 steps", sample__count=1, sample__respacing="1", train__duration="1 steps")
    assert build.diffusion(spec.diffusion, respacing="1").num_timesteps == 1
    assert tiny.attempt(spec).why == "finished"
    assert list((root / "runs/tiny").rglob("*.png")), "no picture was drawn"


def test_a_slice_smaller_than_the_microbatch_is_one_microbatch(root: Path) -> None:
    assert tiny.attempt(tiny.tiny_spec(root, optim__microbatch=3, train__duration="1 steps")).why == "finished"


def test_weights_to_begin_from_that_are_not_there_are_refused(root: Path, says: Callable[[list[str]], str]) -> None:
    assert "init.from" in says(tiny.arguments(root, init__from=str(root / "nowhere.pt")))


def test_the_error_of_a_damaged_run_names_all_checkpoints(root: Path) -> None:
    spec, saved = _three(root)
    for one in saved:
        next(Path(one.url).glob("data-*.bin")).unlink()
    with pytest.raises(CheckpointError) as caught:
        tiny.attempt(spec)
    MESSAGES.append(("all damaged", str(caught.value)))
    assert all(one.name in str(caught.value) for one in saved)


def test_a_store_that_answers_nothing_is_one_line(root: Path, says: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials, for one; every store raises its own kinds."""

    def refuse(url: str) -> bool:
        raise RuntimeError("Unable to locate credentials")

    spec = root / "spec.yaml"
    spec.write_text(dump_yaml(tiny.tiny_spec(root)))
    monkeypatch.setattr("iddpm_ray.train.directory.storage.exists", refuse)
    said = says([str(spec), "--dry-run"])
    assert re.fullmatch(
        r"run\.output_dir: \S+ cannot be read \(RuntimeError: Unable to locate credentials\): name a place that this .*", said
    ), said


def test_a_run_that_is_already_longer_than_asked_for_has_nothing_to_do(root: Path) -> None:
    tiny.attempt(tiny.tiny_spec(root, train__duration="4 steps"), LocalSession())
    outcome = tiny.attempt(tiny.tiny_spec(root, train__duration="2 steps"), LocalSession())
    assert (outcome.why, outcome.step) == ("finished", 4)
