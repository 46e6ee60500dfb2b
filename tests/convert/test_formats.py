"""Files of weights: exact both ways, complete in themselves, whole or not there, and never run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from convert.weights import GUIDED, LABELS, SAID, equal, filled, opened, save_pt, spec_of

from iddpm_ray.convert import write
from iddpm_ray.convert.agree import fixed_inputs
from iddpm_ray.convert.model import Given
from iddpm_ray.convert.source import open_model
from iddpm_ray.convert.weight_files import read_weights
from iddpm_ray.convert.write import write_model
from iddpm_ray.errors import CheckpointError, SpecError
from iddpm_ray.evaluate.trained import find_source, open_trained

FIELDS: dict[str, dict[str, Any]] = {"plain": {}, "labels": LABELS, "guided": {**GUIDED, **LABELS}}


def silent(line: str) -> None:
    """Takes what is said."""


@pytest.mark.parametrize("name", FIELDS)
def test_weights_and_outputs_are_bitwise_the_same_after_every_round_trip(name: str, tmp_path: Path) -> None:
    model = filled(spec_of(FIELDS[name]))
    said: list[str] = []
    write_model(model, str(tmp_path / "a.pt"), say=said.append)
    assert list(torch.load(tmp_path / "a.pt", weights_only=True)) == list(model.tensors)
    values = {path: getattr(getattr(model.spec, path.split(".")[0]), path.split(".")[1]) for path in [*SAID, "model.class_dropout"]}
    if model.spec.model.num_head_channels is not None:
        values = {path: value for path, value in values.items() if not path.startswith("model.num_heads")}
        values["model.num_head_channels"] = model.spec.model.num_head_channels
    imported = opened(tmp_path / "a.pt", values=values)
    write_model(imported, str(tmp_path / "b.safetensors"), say=said.append)
    native = opened(tmp_path / "b.safetensors")
    assert (native.spec, native.classes) == (imported.spec, imported.classes)
    write_model(native, str(tmp_path / "c.pt"), say=said.append)
    again = opened(tmp_path / "c.pt", values=values)
    assert equal(model, imported)
    assert equal(model, native)
    assert equal(model, again)
    inputs = fixed_inputs(model.network(), num_timesteps=1000)
    assert torch.equal(inputs.ours(model.network()), inputs.ours(again.network()))
    assert sum("outputs before and after equal: largest difference 0 of outputs up to" in line for line in said) == 3


def test_a_card_goes_with_a_file_and_says_what_it_is(tmp_path: Path) -> None:
    write_model(filled(spec_of(LABELS)), str(tmp_path / "w.safetensors"), say=silent)
    text = (tmp_path / "w.md").read_text()
    assert text.startswith("---\nlibrary_name: iddpm_ray\n")
    for word in (
        "16 x 16 pixels in grey",
        "3: 0 0, 1 1, 2 2",
        "label 3 stands for no label",
        "init.from: w.safetensors",
        "schedule: cosine",
    ):
        assert word in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.md", "w.safetensors"]


def test_names_of_classes_travel_with_the_file(tmp_path: Path) -> None:
    path = save_pt(filled(spec_of(LABELS)), tmp_path / "w.pt")
    values = {**SAID, "model.class_dropout": 0.1}
    model = opened(path, values=values, classes=["cat", "dog", "ship"], classes_source="names.txt")
    write_model(model, str(tmp_path / "w.safetensors"), say=silent)
    assert opened(tmp_path / "w.safetensors").classes == ("cat", "dog", "ship")
    with pytest.raises(SpecError, match=r"names\.txt names 2 classes, the network has 3"):
        opened(path, values=values, classes=["cat", "dog"], classes_source="names.txt")


def test_a_file_that_knows_itself_can_be_drawn_from_without_a_spec(tmp_path: Path) -> None:
    model = filled(spec_of(LABELS))
    write_model(model, str(tmp_path / "w.safetensors"), say=silent)
    source = find_source(str(tmp_path / "w.safetensors"))
    assert (source.spec, source.classes, source.num_classes) == (model.spec, ("0", "1", "2"), 3)
    trained = open_trained(source, ema=None)
    assert all(torch.equal(tensor, model.tensors[name]) for name, tensor in trained.network.state_dict().items())
    with pytest.raises(SpecError, match=r"--spec \(got other\.yaml\): leave it out: w\.safetensors knows its own"):
        find_source(str(tmp_path / "w.safetensors"), spec_url="other.yaml")


def test_narrow_weights_are_widened_and_files_of_before_zip_are_read(tmp_path: Path) -> None:
    model = filled(spec_of({}))
    torch.save({key: tensor.half() for key, tensor in model.tensors.items()}, tmp_path / "half.pt")
    torch.save(model.tensors, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    half = read_weights(str(tmp_path / "half.pt")).tensors
    assert all(torch.equal(half[key], tensor.half().float()) for key, tensor in model.tensors.items())
    assert equal(model, opened(tmp_path / "old.pt", values=SAID))


def test_weights_that_lie_in_memory_in_another_order_are_the_same_weights(tmp_path: Path) -> None:
    model = filled(spec_of({}))
    last = {key: tensor.contiguous(memory_format=torch.channels_last) for key, tensor in model.tensors.items() if tensor.ndim == 4}
    turned = {key: tensor.t().contiguous().t() for key, tensor in model.tensors.items() if tensor.ndim == 2}
    torch.save({**model.tensors, **last, **turned}, tmp_path / "w.pt")
    back = opened(tmp_path / "w.pt", values=SAID)
    write_model(back, str(tmp_path / "w.safetensors"), say=silent)
    assert equal(model, opened(tmp_path / "w.safetensors"))


def test_what_is_there_is_not_written_over_unless_asked(tmp_path: Path) -> None:
    model = filled(spec_of({}))
    (tmp_path / "w.pt").write_bytes(b"precious")
    (tmp_path / "w.md").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "half").write_bytes(b"written")
    for name in ("w.pt", "w.safetensors", "folder"):
        with pytest.raises(CheckpointError, match=r"is there already, perhaps another job's and half written: .* --overwrite"):
            write_model(model, str(tmp_path / name), say=silent)
    assert (tmp_path / "w.pt").read_bytes() == b"precious"
    write_model(model, str(tmp_path / "w.pt"), say=silent, overwrite=True)
    assert equal(model, opened(tmp_path / "w.pt", values=SAID))


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors", "folder"])
def test_what_does_not_read_back_the_same_is_not_left_behind(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one_bit(url: str) -> Any:
        file = read_weights(url)
        next(iter(file.tensors.values())).view(-1)[0] += 1
        return file

    monkeypatch.setattr(write, "read_weights", off_by_one_bit)
    with pytest.raises(CheckpointError, match=r"does not give .* back as it was"):
        write_model(filled(spec_of({})), str(tmp_path / name), say=silent)
    assert list(tmp_path.iterdir()) == []


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("true",))


def test_files_that_are_no_weights_are_refused_by_name(tmp_path: Path) -> None:
    weights = filled(spec_of({})).tensors
    for name, content, message in (
        ("harm.pt", {"a": Harm()}, "harm.pt asks for posix.system while it is read, and was refused"),
        ("opt.pt", {"state": {}, "param_groups": []}, "opt.pt holds the state of an optimiser"),
        ("list.pt", [1], "list.pt holds a list, no state dict"),
        ("ints.pt", {"a": torch.zeros(3, dtype=torch.int64)}, "ints.pt: a is torch.int64, no weight of a network"),
        ("none.pt", {"a": torch.zeros(3)}, "none.pt holds no U-Net that is known here"),
        ("less.pt", {key: tensor for key, tensor in weights.items() if key != "out.2.bias"}, "less.pt is no whole network: it lacks out.2"),
    ):
        torch.save(content, tmp_path / name)
        with pytest.raises(CheckpointError) as caught:
            opened(tmp_path / name, values=SAID)
        assert message in str(caught.value)
    (tmp_path / "cut.safetensors").write_bytes(b"123")
    with pytest.raises(CheckpointError, match=r"cut\.safetensors is damaged, or no safetensors file"):
        opened(tmp_path / "cut.safetensors", values=SAID)
    with pytest.raises(CheckpointError, match=r"cannot read .*nowhere\.pt \(it does not exist\)"):
        opened(tmp_path / "nowhere.pt", values=SAID)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_named_and_a_protocol_that_torch_cannot_read_too(zipped: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    weights = filled(spec_of({})).tensors
    for protocol in (2, 3, 4, 5):
        options: dict[str, Any] = {"pickle_protocol": protocol, "_use_new_zipfile_serialization": zipped}
        torch.save({"weights": weights, "more": [Harm(), Harm()]}, tmp_path / "harm.pt", **options)
        with pytest.raises(CheckpointError, match=r"harm\.pt asks for posix\.system while it is read, and was refused"):
            read_weights(str(tmp_path / "harm.pt"))
        torch.save(weights, tmp_path / "plain.pt", **options)
        if protocol < 4:
            assert read_weights(str(tmp_path / "plain.pt")).tensors.keys() == weights.keys()
            continue
        with pytest.raises(CheckpointError, match=rf"plain\.pt was saved with pickle_protocol={protocol}, .* with pickle_protocol=2, as"):
            read_weights(str(tmp_path / "plain.pt"))
    assert not [one for one in recwarn if "pickle protocol" in str(one.message)]


def test_weights_whose_bytes_have_changed_are_refused(tmp_path: Path) -> None:
    weights = {"a": torch.arange(1000.0)}
    torch.save(weights, tmp_path / "w.pt")
    whole = bytearray((tmp_path / "w.pt").read_bytes())
    whole[whole.index(weights["a"].numpy().tobytes()) + 1001] ^= 1
    (tmp_path / "w.pt").write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"w\.pt is damaged"):
        read_weights(str(tmp_path / "w.pt"))


def test_weights_that_were_saved_without_checksums_are_read(tmp_path: Path) -> None:
    summed = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.ones(3)}, tmp_path / "w.pt")
    finally:
        torch.serialization.set_crc32_options(summed)
    assert read_weights(str(tmp_path / "w.pt")).tensors["a"].tolist() == [1, 1, 1]


def test_options_without_effect_are_refused(tmp_path: Path) -> None:
    model = filled(spec_of({}))
    write_model(model, str(tmp_path / "w.safetensors"), say=silent)
    with pytest.raises(SpecError, match=r"--weights \(got 0\.9\): has no effect"):
        opened(tmp_path / "w.safetensors", weights=0.9)
    with pytest.raises(SpecError, match=r"--step \(got 10\): has no effect"):
        opened(tmp_path / "w.safetensors", which=10)
    with pytest.raises(SpecError, match=r"w\.safetensors knows what it is \(got model\.num_heads\)"):
        opened(tmp_path / "w.safetensors", values={"model.num_heads": 2})
    with pytest.raises(SpecError, match=r"--respacing \(got 10\): has no effect but on a folder of diffusers"):
        write_model(model, str(tmp_path / "w.pt"), say=silent, respacing="10")


def test_a_header_that_lies_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = filled(spec_of({}))
    write_model(model, str(tmp_path / "w.safetensors"), say=silent)
    metadata = read_weights(str(tmp_path / "w.safetensors")).metadata
    save_file(model.tensors, tmp_path / "classes.safetensors", metadata={**metadata, "iddpm_ray.classes": json.dumps({"a": 1})})
    with pytest.raises(CheckpointError, match=r"iddpm_ray\.classes in its header is no list of names"):
        opened(tmp_path / "classes.safetensors")
    save_file(model.tensors, tmp_path / "spec.safetensors", metadata={**metadata, "iddpm_ray.spec": "!!python/object/apply:os.system [ls]"})
    with pytest.raises(SpecError, match=r"the spec in .*spec\.safetensors holds the tag"):
        opened(tmp_path / "spec.safetensors")
    other = metadata["iddpm_ray.spec"].replace("num_res_blocks: 1", "num_res_blocks: 2")
    save_file(model.tensors, tmp_path / "other.safetensors", metadata={**metadata, "iddpm_ray.spec": other})
    with pytest.raises(CheckpointError, match=r"does not fit its spec: it lacks "):
        write_model(opened(tmp_path / "other.safetensors"), str(tmp_path / "x.pt"), say=silent)


def test_the_ending_and_nothing_else_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the run has no complete checkpoint .*: name"):
        open_model(str(tmp_path), given=Given({}))
