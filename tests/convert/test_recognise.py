"""Names and shapes tell the network; what they cannot tell is asked for by name, and what contradicts them is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from convert.weights import GUIDED, LABELS, SAID, filled, spec_of

from iddpm_ray import presets
from iddpm_ray.convert.model import Given, Model, complete_spec
from iddpm_ray.convert.recognise import recognise
from iddpm_ray.errors import CheckpointError, SpecError
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import parse_yaml

PUBLISHED = json.loads((Path(__file__).parents[1] / "golden" / "checkpoint_keys.json").read_text())
RECIPES = {
    "imagenet64_uncond": "imagenet64-uncond",
    "cifar10_uncond": "cifar10",
    "imagenet64_cond": "imagenet64-cond",
    "upsample_cond": "upsample-64-256",
    "lsun_uncond": "lsun-bedroom",
}
NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "labels": LABELS,
    "guided": GUIDED,
    "guided, attention everywhere": {**GUIDED, "model.attention_resolutions": [16, 8, 4]},
    "one level": {"model.channel_mult": [1], "model.attention_resolutions": []},
    "one level, attention": {"model.channel_mult": [2], "model.attention_resolutions": [16], "model.num_res_blocks": 3},
    "pooled": {"model.conv_resample": False},
    "pooled, two blocks": {"model.conv_resample": False, "model.num_res_blocks": 2, "model.attention_resolutions": []},
    "added": {"model.scale_shift_norm": False},
    "fractions": {"model.num_channels": 64, "model.channel_mult": [0.5, 1, 1.5]},
    "enlarging": {"model.kind": "superres", "model.low_res_size": 4, "data.channels": 3},
    "enlarging, grey, fixed": {"model.kind": "superres", "model.low_res_size": 4, "diffusion.variance": "fixed_small"},
    "fixed": {"diffusion.variance": "fixed_large", "data.channels": 3},
}


def shapes_of(model: Model) -> dict[str, tuple[int, ...]]:
    return {key: tuple(tensor.shape) for key, tensor in model.tensors.items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_key_list_is_recognised_and_loads(name: str) -> None:
    record = PUBLISHED[name]
    shapes = {key: tuple(shape) for key, shape in record["keys"]}
    base = parse_yaml(presets.text(RECIPES[name]))
    spec = complete_spec(recognise(shapes, name=name), Given({}, base, f"preset {RECIPES[name]}"), name=name)
    tensors = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    network = Model(spec, (), tensors, name).network()
    assert list(network.state_dict()) == [key for key, _ in record["keys"]]
    assert sum(parameter.numel() for parameter in network.parameters()) == record["num_params"]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_spec_that_comes_out_is_the_one_that_went_in(name: str) -> None:
    spec = spec_of(NETWORKS[name])
    found = recognise(shapes_of(filled(spec, on="meta")), name="w.pt")
    heads = ["model.num_head_channels"] if spec.model.num_head_channels else ["model.num_heads", "model.num_heads_upsample"]
    asked = [*(path for path in SAID if not path.startswith("model.num_head")), *heads, "model.class_dropout", "model.low_res_size"]
    said = {path: value_of(spec, path) for path in asked}
    again = complete_spec(found, Given(said), name="w.pt")
    assert again.model == spec.model.model_copy(update={"channel_mult": spec.channel_mult()})
    assert (again.data, again.diffusion) == (spec.data, spec.diffusion)


def value_of(spec: JobSpec, path: str) -> Any:
    section, _, leaf = path.partition(".")
    return getattr(getattr(spec, section), leaf)


def test_what_a_file_cannot_tell_is_asked_for_all_at_once_by_name() -> None:
    found = recognise(shapes_of(filled(spec_of(LABELS), on="meta")), name="w.pt")
    with pytest.raises(SpecError) as caught:
        complete_spec(found, Given({"model.dropout": 0.1}), name="w.pt")
    asked = [line.split(" (")[0].strip() for line in str(caught.value).splitlines()[1:-1]]
    assert asked == [path for path in SAID if path != "model.dropout"]
    assert "--preset NAME, --spec FILE or --flags" in str(caught.value)
    for path in SAID:
        with pytest.raises(SpecError, match=rf"does not tell:\n  {path} "):
            complete_spec(found, Given({key: value for key, value in SAID.items() if key != path}), name="w.pt")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"model.num_channels": 64}, "model.num_channels: the file has 32, you say 64"),
        ({"model.scale_shift_norm": False}, "model.scale_shift_norm: the file has true, you say false"),
        ({"diffusion.variance": "fixed_small"}, "diffusion.variance: the file has learned_range, you say fixed_small"),
        ({"model.attention_resolutions": [8]}, "model.attention_resolutions: the file has [4], you say [8]"),
        ({"model.class_cond": True, "data.labels": "folder"}, "model.class_cond: the file has false, you say true"),
    ],
)
def test_what_contradicts_the_file_is_refused(said: dict[str, Any], message: str) -> None:
    found = recognise(shapes_of(filled(spec_of({}), on="meta")), name="w.pt")
    with pytest.raises(SpecError) as caught:
        complete_spec(found, Given({**SAID, **said}), name="w.pt")
    assert message in str(caught.value)


def test_a_recipe_that_is_not_the_files_is_refused_with_both_values() -> None:
    shapes = {key: tuple(shape) for key, shape in PUBLISHED["imagenet64_cond"]["keys"]}
    base = parse_yaml(presets.text("imagenet64-uncond"))
    with pytest.raises(SpecError) as caught:
        complete_spec(recognise(shapes, name="w.pt"), Given({}, base, "preset imagenet64-uncond"), name="w.pt")
    assert "model.num_channels: the file has 192, preset imagenet64-uncond says 128" in str(caught.value)
    assert "model.class_cond: the file has true, preset imagenet64-uncond says false" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out.2.bias": None}, "it lacks out.2.bias"),
        ({"more": (3,)}, "it also holds more"),
        ({"middle_block.1.qkv.bias": (7,)}, "middle_block.1.qkv.bias is [7] and should be [192]"),
        ({"time_embed.0.weight": None}, "there is no time_embed.0.weight"),
        ({"input_blocks.0.0.weight": (32, 5, 3, 3)}, "5 channels go in and 2 come out"),
        ({"input_blocks.1.0.in_layers.2.weight": (40, 32, 3, 3)}, "cannot be built here"),
    ],
)
def test_what_is_no_whole_network_is_named(change: dict[str, Any], message: str) -> None:
    shapes: dict[str, Any] = {**shapes_of(filled(spec_of({}), on="meta")), **change}
    with pytest.raises(CheckpointError) as caught:
        recognise({key: shape for key, shape in shapes.items() if shape is not None}, name="w.pt")
    assert "w.pt" in str(caught.value)
    assert message in str(caught.value)


def test_weights_from_inside_a_wrapper_are_named() -> None:
    shapes = {f"module.{key}": shape for key, shape in shapes_of(filled(spec_of({}), on="meta")).items()}
    with pytest.raises(CheckpointError, match=r"w\.pt: module\..* was saved from inside a wrapper"):
        recognise(shapes, name="w.pt")
