"""The presets are the published recipes: they resolve with three values of the user's, and build the published networks."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from iddpm_ray import build, cli, presets
from iddpm_ray.errors import SpecError
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import parse_yaml

GOLDEN = Path(__file__).parent / "golden"
PUBLISHED = json.loads((GOLDEN / "checkpoint_keys.json").read_text())
DEFAULTS = {
    program: {name: default for name, _, default in flags} for program, flags in json.loads((GOLDEN / "cli_flags.json").read_text()).items()
}

CHECKPOINTS = {
    "cifar10": "cifar10_uncond",
    "cifar10-vlb": "cifar10_uncond",
    "imagenet64-uncond": "imagenet64_uncond",
    "imagenet64-uncond-vlb": "imagenet64_uncond",
    "imagenet64-cond": "imagenet64_cond",
    "lsun-bedroom": "lsun_uncond",
    "upsample-64-256": "upsample_cond",
}
SIMPLE = {"cifar10-simple": "cifar10_uncond", "imagenet64-uncond-simple": "imagenet64_uncond", "lsun-bedroom-simple": "lsun_uncond"}
OWN = {"digits"}


def resolve(name: str, *overrides: str) -> JobSpec:
    """The preset with the three values that it leaves open."""
    spec = cli.parse(["--preset", name, "run.name=a", "run.output_dir=/tmp/runs", "data.path=/tmp/pictures", *overrides]).spec
    assert spec is not None
    return spec


def shapes(spec: JobSpec) -> list[Any]:
    """Names and shapes of the network's parameters, in order."""
    with torch.device("meta"):
        network = build.model(spec, num_classes=spec.model.num_classes)
    return [[key, list(value.shape)] for key, value in network.state_dict().items()]


def flags_of(spec: JobSpec) -> dict[str, object]:
    """The spec in the flags of the original's training programs."""
    model, diffusion = spec.model, spec.diffusion
    return {
        "image_size": spec.data.image_size,
        "large_size": spec.data.image_size,
        "small_size": model.low_res_size,
        "num_channels": model.num_channels,
        "num_res_blocks": model.num_res_blocks,
        "num_heads": model.num_heads,
        "num_heads_upsample": model.num_heads_upsample,
        "attention_resolutions": ",".join(map(str, model.attention_resolutions)),
        "dropout": model.dropout,
        "learn_sigma": diffusion.variance == "learned_range",
        "class_cond": model.class_cond,
        "use_scale_shift_norm": model.scale_shift_norm,
    }


def test_presets_are_these():
    assert set(presets.names()) == {*CHECKPOINTS, *SIMPLE, *OWN}


@pytest.mark.parametrize("name", presets.names())
def test_preset_leaves_open_only_where_the_run_lives_and_what_it_sees(name):
    given = parse_yaml(presets.text(name))
    assert "run" not in given
    assert "path" not in given["data"]
    with pytest.raises(SpecError) as caught:
        cli.parse(["--preset", name])
    missing = re.findall(r"^  ([a-z_.]+): required", str(caught.value), re.MULTILINE)
    assert missing == ["run.name", "run.output_dir", "data.path"]
    assert resolve(name).run.name == "a"


@pytest.mark.parametrize("name", presets.names())
def test_preset_opens_with_a_line_that_says_what_it_is(name):
    line = presets.summary(name)
    assert presets.text(name).startswith("# ")
    assert 40 < len(line) < 140
    assert " M parameter" in line


@pytest.mark.parametrize(("name", "checkpoint"), {**CHECKPOINTS, **SIMPLE}.items())
def test_preset_has_the_flags_of_the_published_network(name, checkpoint):
    spec = resolve(name)
    program = "super_res_train" if spec.model.kind == "superres" else "image_train"
    published = {**DEFAULTS[program], **PUBLISHED[checkpoint]["flags"]}
    if name in SIMPLE:
        published["learn_sigma"] = False
    assert flags_of(spec) == {**flags_of(spec), **{flag: value for flag, value in published.items() if flag in flags_of(spec)}}


@pytest.mark.parametrize(("name", "checkpoint"), CHECKPOINTS.items())
def test_preset_builds_exactly_the_published_keys_and_shapes(name, checkpoint):
    assert shapes(resolve(name)) == PUBLISHED[checkpoint]["keys"]


@pytest.mark.parametrize(("name", "checkpoint"), SIMPLE.items())
def test_simple_preset_differs_in_the_last_convolution_alone(name, checkpoint):
    own, published = shapes(resolve(name)), PUBLISHED[checkpoint]["keys"]
    assert [key for key, _ in own] == [key for key, _ in published]
    different = {key: (shape, other) for (key, shape), (_, other) in zip(own, published, strict=True) if shape != other}
    assert set(different) == {"out.2.weight", "out.2.bias"}
    assert all(shape[0] * 2 == other[0] for shape, other in different.values())


@pytest.mark.parametrize("name", presets.names())
def test_number_of_parameters_is_the_one_that_the_first_line_says(name):
    total = sum(math.prod(shape) for _, shape in shapes(resolve(name)))
    said = re.search(r"([0-9.]+) M parameter", presets.summary(name))
    assert said is not None
    assert f"{total / 1e6:.1f}" == said.group(1)


@pytest.mark.parametrize(
    ("name", "schedule", "timesteps", "loss", "resampler", "lr", "batch", "duration", "dropout"),
    [
        ("cifar10", "cosine", 4000, "rescaled_mse", "uniform", 1e-4, 128, "500000 steps", 0.3),
        ("cifar10-simple", "cosine", 4000, "mse", "uniform", 1e-4, 128, "500000 steps", 0.3),
        ("cifar10-vlb", "cosine", 4000, "rescaled_kl", "loss_second_moment", 1e-4, 128, "500000 steps", 0.3),
        ("imagenet64-uncond", "cosine", 4000, "rescaled_mse", "uniform", 1e-4, 128, "1.5M steps", 0.0),
        ("imagenet64-uncond-simple", "cosine", 4000, "mse", "uniform", 1e-4, 128, "1.5M steps", 0.0),
        ("imagenet64-uncond-vlb", "cosine", 4000, "rescaled_kl", "loss_second_moment", 1e-4, 128, "1.5M steps", 0.0),
        ("imagenet64-cond", "cosine", 4000, "mse", "uniform", 3e-4, 2048, "250000 steps", 0.0),
        ("lsun-bedroom", "linear", 1000, "mse", "uniform", 1e-4, 128, "1.2M steps", 0.0),
        ("lsun-bedroom-simple", "linear", 1000, "mse", "uniform", 1e-4, 128, "1.2M steps", 0.0),
        ("upsample-64-256", "linear", 4000, "mse", "uniform", 3e-4, 256, "500000 steps", 0.0),
    ],
)
def test_recipe_is_the_published_one(name, schedule, timesteps, loss, resampler, lr, batch, duration, dropout):
    spec = resolve(name)
    assert (spec.diffusion.schedule, spec.diffusion.timesteps, spec.diffusion.loss) == (schedule, timesteps, loss)
    assert (spec.resampler.kind, spec.optim.lr, spec.train.global_batch, str(spec.train.duration)) == (resampler, lr, batch, duration)
    assert (spec.model.dropout, spec.optim.ema_rates, spec.optim.weight_decay, spec.data.flip) == (dropout, (0.9999,), 0.0, False)
    assert spec.diffusion.rescale_timesteps == (name not in ("imagenet64-cond", "upsample-64-256", "lsun-bedroom", "lsun-bedroom-simple"))


def test_class_conditional_presets_bring_their_labels():
    labelled = {name for name in presets.names() if resolve(name).model.class_cond}
    assert labelled == {"imagenet64-cond", "upsample-64-256", "digits"}
    assert all(resolve(name).data.labels == "folder" and resolve(name).model.num_classes for name in labelled)


def test_digits_fits_two_cores_and_can_be_told_in_heads_or_in_their_width():
    spec = resolve("digits")
    workers = spec.cluster.worker_range()[1]
    assert workers == 2
    assert workers * spec.cluster.cpus_per_worker + max(spec.data.tasks, workers) * spec.data.cpus_per_task <= 2
    mult, side = spec.channel_mult(), max(spec.data.height_width())
    widths = {spec.model.num_channels * times for level, times in enumerate(mult) if side // 2**level in spec.model.attention_resolutions}
    assert widths | {spec.model.num_channels * mult[-1]} == {spec.model.num_channels * mult[-1]}
    assert (spec.diffusion.variance, spec.model.num_classes, spec.data.image_size) == ("learned_range", 10, 16)


def test_unknown_preset_is_refused_with_the_one_that_was_meant():
    with pytest.raises(SpecError, match=r"there is no preset imagenet64uncond: did you mean imagenet64-uncond\? the presets are cifar10, "):
        presets.text("imagenet64uncond")
    with pytest.raises(SpecError, match=r"there is no preset \.\./presets/digits"):
        presets.text("../presets/digits")
