"""Laws of finding what was trained: newest, best, a step, one checkpoint or a file; and what is not there is said in a line."""

from pathlib import Path

import pytest
import torch
from evaluate.drawn_runs import trained

from iddpm_ray import storage
from iddpm_ray.checkpoint.commit import complete
from iddpm_ray.errors import CheckpointError, SpecError
from iddpm_ray.evaluate.trained import Source, find_source, open_trained
from iddpm_ray.sinks.jsonl import encode_row
from iddpm_ray.spec.text import dump_yaml


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trained(tmp_path_factory.mktemp("trained"))[1]


def weights(source: Source, ema: float | None = None) -> dict[str, torch.Tensor]:
    return dict(open_trained(source, ema=ema).network.named_parameters())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_newest_and_a_step_and_a_checkpoint_by_itself(run: str) -> None:
    newest, second = find_source(run), find_source(run, which=2)
    assert (newest.step, second.step) == (4, 2)
    assert newest.classes == tuple(str(digit) for digit in range(10))
    assert newest.num_classes == 10
    assert newest.digest != second.digest
    assert not same(weights(newest), weights(second))
    assert find_source(newest.url) == find_source(f"{newest.url}/marker.json") == newest
    assert find_source(second.url, which=2) == second
    raw, average = weights(newest), weights(newest, ema=0.9)
    assert not same(raw, average)
    assert not open_trained(newest, ema=None).network.training


def test_best_is_the_checkpoint_with_the_lowest_held_out_loss(run: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no step of .* is known to be the best: no checkpoint was evaluated or has a val_loss"):
        find_source(run, which="best")
    rows = storage.join(run, "metrics", "train.jsonl")
    before = storage.read_bytes(rows)
    try:
        measured = [(2, 0.5), (3, 0.1), (4, 0.7)]  # step 3 has no checkpoint
        storage.write_whole(rows, b"".join(encode_row({"step": step, "samples": step, "val_loss": loss}) for step, loss in measured))
        assert find_source(run, which="best").step == 2
        storage.write_whole(rows, encode_row({"step": 4, "samples": 4, "val_loss": 0.2}))
        assert find_source(run, which="best").step == 4
    finally:
        storage.write_whole(rows, before)


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_a_file_of_weights_needs_its_spec_and_fits_it(run: str, tmp_path: Path, ending: str) -> None:
    source = find_source(run)
    state = {name: tensor.detach() for name, tensor in weights(source).items()}
    file = tmp_path / f"weights{ending}"
    _save(state, file)
    with pytest.raises(SpecError, match="does not say of which network: give --spec"):
        find_source(str(file))
    (tmp_path / "spec.yaml").write_text(dump_yaml(source.spec.with_num_classes(10)))
    found = find_source(str(file))
    assert (found.step, found.classes, found.num_classes) == (None, (), 10)
    assert same(weights(found), state)
    with pytest.raises(SpecError, match="a file holds one set of weights"):
        open_trained(found, ema=0.9)
    (tmp_path / "spec.yaml").rename(tmp_path / "other.yaml")
    assert same(weights(find_source(str(file), spec_url=str(tmp_path / "other.yaml"))), state)
    state["left_over"] = state.pop("time_embed.0.bias")
    _save(state, file)
    with pytest.raises(CheckpointError, match=r"is not what it was when the job began"):
        open_trained(found, ema=None)
    with pytest.raises(CheckpointError, match=r"does not fit its spec: it lacks time_embed\.0\.bias; it also holds left_over"):
        find_source(str(file), spec_url=str(tmp_path / "other.yaml"))


def test_what_is_not_there_is_refused(run: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the run has no complete checkpoint"):
        find_source(str(tmp_path))
    with pytest.raises(CheckpointError, match="the run has no complete checkpoint"):
        find_source(str(tmp_path / "absent"), which=3)
    with pytest.raises(CheckpointError, match=r"no checkpoint of that step \(got 3\): there are 4, 2, newest first"):
        find_source(run, which=3)
    with pytest.raises(CheckpointError, match=r"one checkpoint has one step \(got 2\): this is step 4"):
        find_source(find_source(run).url, which=2)
    with pytest.raises(SpecError, match=r"keeps no such average of its weights \(got 0.5\): choose one of \[0.9, 0.99\], or raw"):
        open_trained(find_source(run), ema=0.5)
    with pytest.raises(SpecError, match=r"--spec .* is for files of weights alone"):
        find_source(run, spec_url="spec.yaml")
    (tmp_path / "spec.yaml").write_text(dump_yaml(find_source(run).spec.with_num_classes(10)))
    with pytest.raises(CheckpointError, match=r"cannot read .*it does not exist"):
        find_source(str(tmp_path / "absent.pt"))


def test_a_checkpoint_that_was_replaced_is_not_drawn_from(run: str) -> None:
    source = find_source(run)
    other = find_source(complete(run)[1].url)
    with pytest.raises(CheckpointError, match="is not what it was when the job began"):
        open_trained(Source(source.url, source.name, other.digest, source.step, source.spec, source.classes), ema=None)


def _save(state: dict[str, torch.Tensor], file: Path) -> None:
    if file.suffix == ".pt":
        torch.save(state, file)
        return
    import json

    header, body = {}, b""
    for name, tensor in state.items():
        data = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + body)
