"""`init.from`: weights of another run or of a file, strict on names and shapes, never left out in silence."""

import dataclasses
import hashlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from iddpm_ray.checkpoint.commit import complete, read_marker
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.found import find_checkpoint
from iddpm_ray.checkpoint.index import read_index
from iddpm_ray.convert.model import Given
from iddpm_ray.convert.source import open_model
from iddpm_ray.convert.write import write_model
from iddpm_ray.errors import CheckpointError, SpecError, UserError
from iddpm_ray.train.session import LocalSession


def checkpoint_of(run: Path, *, prefix: str) -> dict[str, Tensor]:
    newest = complete(str(run))[0]
    marker = read_marker(newest)
    names = {name: stored for name, stored in read_index(newest, marker).items() if name.startswith(prefix)}
    into = {name: torch.empty(stored.shape, dtype=stored.dtype) for name, stored in names.items()}
    load(newest, into=into, ignore_extra=True, marker=marker)
    return {name.removeprefix(prefix): tensor for name, tensor in into.items()}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps, and the same weights as files."""
    folder = tmp_path_factory.mktemp("begin")
    tiny.write_pictures(folder / "pictures")
    spec = tiny.tiny_spec(folder, run__name="first", optim__lr=0.01)
    tiny.attempt(spec)
    weights = checkpoint_of(tiny.run_folder(spec), prefix="model.")
    torch.save(weights, folder / "weights.pt")
    (folder / "weights.safetensors").write_bytes(safetensors(weights))
    return folder


def safetensors(weights: dict[str, Tensor]) -> bytes:
    header, body = {}, b""
    for name, tensor in weights.items():
        data = tensor.numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps({"__metadata__": {"made": "here"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + body


def begun(root: Path, name: str, **changes: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], list[str]]:
    """Weights and average after a step so small that they are what the run began with, and what it said."""
    spec = tiny.tiny_spec(root, run__name=name, run__seed=5, optim__lr=1e-30, train__duration="1 steps", **changes)
    session = LocalSession()
    tiny.attempt(spec, session)
    run = tiny.run_folder(spec)
    return checkpoint_of(run, prefix="model."), checkpoint_of(run, prefix="ema.0.9."), session.messages


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)


def close(one: Tensor, other: Tensor) -> bool:
    """Equal but for a step with a learning rate of 1e-30."""
    return torch.allclose(one, other, rtol=0, atol=1e-20)


@pytest.mark.parametrize("source", ["runs/first", "weights.pt", "weights.safetensors"])
def test_weights_and_averages_begin_as_those_of_the_source(root: Path, source: str) -> None:
    first = checkpoint_of(root / "runs" / "first", prefix="model.")
    weights, average, said = begun(root, f"of-{Path(source).name}", init__from=str(root / source))
    assert same(weights, first)
    assert same(average, first)
    assert said[0] == f"starting fresh, weights from {root / source}" + (
        "/checkpoints/step-00000002.a0001" if source == "runs/first" else ""
    )


def test_an_average_of_a_run_can_be_chosen(root: Path) -> None:
    weights, _, said = begun(root, "of-average", init__from=str(root / "runs/first"), init__weights=0.9)
    assert same(weights, checkpoint_of(root / "runs" / "first", prefix="ema.0.9."))
    assert not same(weights, checkpoint_of(root / "runs" / "first", prefix="model."))
    assert said[0].endswith("average 0.9")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_flipped_bit_in_any_small_file_of_the_newest_checkpoint_leads_to_the_one_before_it(root: Path) -> None:
    spec = tiny.tiny_spec(root, run__name="flipped", checkpoint__every="1 steps", train__duration="4 steps")
    tiny.attempt(spec)
    fourth, *_ = complete(str(tiny.run_folder(spec)))
    flip(Path(fourth.url) / "state.json")
    longer = tiny.tiny_spec(root, run__name="flipped", checkpoint__every="1 steps", train__duration="5 steps")
    session = LocalSession()
    assert tiny.attempt(longer, session).step == 5
    assert f"warning: {fourth.name} is damaged: the content of state.json is not what was written" in session.messages[0]
    assert session.messages[1].startswith("resuming step 3 of ")


@pytest.mark.parametrize("file", ["spec.yaml", "labels.json"])
def test_whoever_takes_the_newest_weights_of_a_run_is_told_of_damage_and_gets_older_ones(
    root: Path, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    spec = tiny.tiny_spec(root, run__name=f"harmed-{file}", checkpoint__every="1 steps")
    tiny.attempt(spec)
    newest, older = complete(str(tiny.run_folder(spec)))
    flip(Path(newest.url) / file)
    assert find_checkpoint(str(tiny.run_folder(spec))).checkpoint == older
    _, _, said = begun(root, f"of-harmed-{file}", init__from=str(tiny.run_folder(spec)))
    assert said[0] == f"starting fresh, weights from {older.url}"
    warning = f"{newest.name} is damaged: the content of {file} is not what was written; taking the checkpoint before it"
    assert warning in caplog.messages


def test_only_and_skip_choose_parameters_and_the_seed_gives_the_others(root: Path) -> None:
    first, seeded = checkpoint_of(root / "runs" / "first", prefix="model."), begun(root, "seeded")[0]
    weights, _, said = begun(root, "some", init__from=str(root / "weights.pt"), init__only=["time_embed.*"], init__skip=["*.bias"])
    for name, tensor in weights.items():
        expected = first if name.startswith("time_embed.") and not name.endswith(".bias") else seeded
        assert close(tensor, expected[name]), name
    assert "tensors, the others from the seed" in said[0]


def test_the_own_checkpoint_comes_before_the_source(root: Path) -> None:
    changes = {"run__name": "again", "init__from": str(root / "weights.pt")}
    tiny.attempt(tiny.tiny_spec(root, **changes))
    session = LocalSession()
    tiny.attempt(tiny.tiny_spec(root, train__duration="3 steps", **changes), session)
    assert session.messages[0].startswith("resuming step 2 of ")


def test_a_start_killed_before_its_first_commit_begins_from_the_same_weights_again(root: Path) -> None:
    """Though the run that they are of has grown; and says so when they are gone."""
    growing = tiny.tiny_spec(root, run__name="growing", optim__lr=0.01)
    tiny.attempt(growing)
    old = complete(str(tiny.run_folder(growing)))[0].url
    begun(root, "killed", init__from=str(tiny.run_folder(growing)))
    tiny.attempt(tiny.tiny_spec(root, run__name="growing", optim__lr=0.01, train__duration="4 steps"))
    for again in (True, False):
        shutil.rmtree(root / "runs" / "killed" / "checkpoints")
        if not again:
            shutil.rmtree(old)
        said = begun(root, "killed", init__from=str(tiny.run_folder(growing)))[2][0]
        assert (said == f"starting fresh, weights from {old}") is again
    newest = complete(str(tiny.run_folder(growing)))[0].url
    assert said == f"starting fresh, weights from {newest}; {old}, which an earlier attempt began from, is gone"


LABELLED = {"data__labels": "folder", "model__class_cond": True}


def test_a_label_embedding_of_another_size_is_made_anew_and_said(root: Path) -> None:
    spec = tiny.tiny_spec(root, run__name="labelled", model__num_classes=5, **LABELLED)
    tiny.attempt(spec)
    theirs = checkpoint_of(tiny.run_folder(spec), prefix="model.")
    weights, _, said = begun(root, "fewer-labels", init__from=str(root / "runs/labelled"), model__num_classes=3, **LABELLED)
    assert "(label_emb.weight made anew from the seed: 5 rows there, 3 here)" in said[0].replace(
        f"{len(weights) - 1} of {len(weights)} tensors, the others from the seed; ", ""
    )
    assert weights["label_emb.weight"].shape[0] == 3
    assert all(close(weights[name], theirs[name]) for name in weights if name != "label_emb.weight")
    assert "it also holds label_emb.weight" in str(refusal(root, init__from=str(root / "runs/labelled")))
    unlabelled, _, _ = begun(root, "no-labels", init__from=str(root / "runs/labelled"), init__skip=["label_emb.*"])
    assert all(close(unlabelled[name], theirs[name]) for name in unlabelled)


def test_attention_of_other_heads_is_refused_though_its_shapes_fit(root: Path) -> None:
    message = str(refusal(root, init__from=str(root / "runs/first"), model__num_heads=2))
    assert "middle_block.1.qkv.weight is for 1 heads in order heads_first there and 2 heads in order heads_first here" in message
    begun(root, "one-head", init__from=str(root / "runs/first"), model__qkv_order="qkv_first")  # of one head there is one order
    tiny.attempt(tiny.tiny_spec(root, run__name="two-heads", model__num_heads=2))
    refused = str(refusal(root, init__from=str(root / "runs/two-heads"), model__num_heads=2, model__qkv_order="qkv_first"))
    assert "2 heads in order heads_first there and 2 heads in order qkv_first here" in refused
    begun(root, "without-attention", init__from=str(root / "runs/first"), model__num_heads=2, init__skip=["*.qkv.*"])


def test_files_that_know_themselves_and_folders_of_diffusers_are_sources(root: Path) -> None:
    first = checkpoint_of(root / "runs" / "first", prefix="model.")
    model = open_model(str(root / "runs/first"), given=Given({}))
    as_told = model.spec.diffusion.model_copy(update={"rescale_timesteps": False})  # diffusers knows no rescaling
    for name in ("known.safetensors", "folder"):
        spec = model.spec.model_copy(update={"diffusion": as_told})
        write_model(dataclasses.replace(model, spec=spec), str(root / name), say=print)
        weights, average, said = begun(root, f"of-{name}", init__from=str(root / name))
        assert same(weights, first)
        assert same(average, first)
        assert said[0] == f"starting fresh, weights from {root / name}"
        assert "2 heads" in str(refusal(root, init__from=str(root / name), model__num_heads=2))
    sha256 = hashlib.sha256((root / "folder/unet/diffusion_pytorch_model.safetensors").read_bytes()).hexdigest()
    assert sha256 in str(refusal(root, init__from=str(root / "folder"), init__sha256="0" * 64))
    begun(root, "pinned", init__from=str(root / "folder"), init__sha256=sha256)


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("true",))


def refusal(root: Path, **changes: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        begun(root, "refused", **changes)
    assert not (root / "runs" / "refused").exists(), "nothing is written before the weights have been looked at"
    return caught.value


def test_a_pickle_that_would_run_code_is_refused_by_the_name_of_what_it_asks_for(root: Path) -> None:
    torch.save({"out.2.weight": Harm()}, root / "harm.pt")
    error = refusal(root, init__from=str(root / "harm.pt"))
    assert isinstance(error, CheckpointError)
    assert str(error).startswith(f"init.from: {root}/harm.pt asks for posix.system")


def test_a_damaged_file_is_named(root: Path) -> None:
    for name in ("weights.pt", "weights.safetensors"):
        (root / f"cut-{name}").write_bytes((root / name).read_bytes()[:1000])
        assert f"cut-{name} is damaged" in str(refusal(root, init__from=str(root / f"cut-{name}")))


def test_other_shapes_and_names_are_named(root: Path) -> None:
    source = str(root / "weights.pt")
    assert "is [128, 32] there and [256, 64] here" in str(refusal(root, init__from=source, model__num_channels=64))
    assert "it lacks " in str(refusal(root, init__from=source, model__num_res_blocks=2))
    weights = torch.load(root / "weights.pt", weights_only=True)
    torch.save({**weights, "more": torch.zeros(1)}, root / "more.pt")
    assert "it also holds more" in str(refusal(root, init__from=str(root / "more.pt")))


def test_numbers_that_are_not_finite_are_refused(root: Path) -> None:
    weights = torch.load(root / "weights.pt", weights_only=True)
    weights["out.2.bias"] = weights["out.2.bias"] * float("nan")
    torch.save(weights, root / "nan.pt")
    with pytest.raises(CheckpointError, match=r"nan\.pt: out\.2\.bias holds numbers that are not finite"):
        begun(root, "nan", init__from=str(root / "nan.pt"))


def test_the_checksum_must_be_that_of_the_file(root: Path) -> None:
    source = root / "weights.pt"
    right = hashlib.sha256(source.read_bytes()).hexdigest()
    assert right in str(refusal(root, init__from=str(source), init__sha256="0" * 64))
    begun(root, "summed", init__from=str(source), init__sha256=right)


def test_patterns_averages_and_places_that_are_not_there_are_named(root: Path) -> None:
    run = str(root / "runs/first")
    assert "init.only (got nothing.*)" in str(refusal(root, init__from=run, init__only=["nothing.*"]))
    error = refusal(root, init__from=run, init__weights=0.5)
    assert isinstance(error, SpecError)
    assert "has raw, 0.9" in str(error)
    assert "init.weights (got 0.9): has no effect on a file" in str(refusal(root, init__from=str(root / "weights.pt"), init__weights=0.9))
    assert "nothing to begin from at" in str(refusal(root, init__from=str(root / "nowhere")))
    assert "cannot read" in str(refusal(root, init__from=str(root / "nowhere.pt")))


def test_a_file_that_is_no_state_dict_is_refused(root: Path) -> None:
    for number, thing in enumerate(([1], {"state_dict": {}})):
        data = io.BytesIO()
        torch.save(thing, data)
        (root / f"no{number}.pt").write_bytes(data.getvalue())
        assert "no state dict" in str(refusal(root, init__from=str(root / f"no{number}.pt")))
