"""diffusers, for real: both networks say the same, weights come back bit for bit, and what it cannot express is refused with the reason."""

import dataclasses
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from convert.weights import GUIDED, LABELS, equal, filled, opened, spec_of
from torch import Tensor

from iddpm_ray import build, cli, presets
from iddpm_ray.convert import write
from iddpm_ray.convert.agree import fixed_inputs
from iddpm_ray.convert.diffusers import fields_of_config, layout_of, unet_config
from iddpm_ray.convert.model import Model
from iddpm_ray.convert.names import Layout, from_diffusers, to_diffusers
from iddpm_ray.convert.scheduler import fields_of_scheduler, scheduler_config
from iddpm_ray.convert.source import describe
from iddpm_ray.convert.write import write_model
from iddpm_ray.diffusion.respace import respaced_betas
from iddpm_ray.diffusion.sample import ddpm_sample
from iddpm_ray.diffusion.schedule import tables_of
from iddpm_ray.errors import CheckpointError, SpecError

SCRIPT = Path(__file__).parents[2] / "docs" / "sample_with_diffusers.py"
EXPRESSIBLE: dict[str, dict[str, Any]] = {
    "the demo's": {**LABELS, "model.num_classes": 10},
    "additive, two blocks": {"model.scale_shift_norm": False, "model.num_res_blocks": 2, "data.channels": 3},
    "head width at two widths": {"model.attention_resolutions": [8, 4], "model.num_head_channels": 16},
    "guided, labels": {**GUIDED, "data.labels": "folder", "model.class_cond": True, "model.num_classes": 5},
    "fixed variance, not square": {"diffusion.variance": "fixed_large", "data.image_size": [16, 8]},
    "one level": {"model.channel_mult": [1], "model.attention_resolutions": []},
}


@pytest.fixture(scope="module", name="diffusers")
def diffusers_fixture() -> Any:
    """The library itself."""
    return pytest.importorskip("diffusers")


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_both_networks_say_the_same_and_weights_come_back_bit_for_bit(name: str, diffusers: Any, tmp_path: Path) -> None:
    model = filled(spec_of(EXPRESSIBLE[name]))
    said: list[str] = []
    write_model(model, str(tmp_path / "folder"), say=said.append)
    line = next(line for line in said if "says the same" in line)
    print(f"{name}: {line}")
    unet = diffusers.UNet2DModel.from_pretrained(tmp_path / "folder", subfolder="unet").eval()
    ours = model.network()
    inputs = fixed_inputs(ours, num_timesteps=1000)
    labels = {} if inputs.y is None else {"class_labels": inputs.y}
    with torch.no_grad():
        difference = (unet(inputs.x, inputs.t, **labels).sample - inputs.ours(ours)).abs().max()
    assert difference < 1e-4
    assert diffusers.DDPMPipeline.from_pretrained(tmp_path / "folder").unet.config.sample_size == unet.config.sample_size
    values = {"model.qkv_order": model.spec.model.qkv_order}
    if "model.class_dropout" in EXPRESSIBLE[name]:
        with pytest.raises(SpecError, match=r"has 11 rows of labels and 10 classes.*give model\.class_dropout"):
            opened(tmp_path / "folder", values=values)
        values["model.class_dropout"] = 0.1
    back = opened(tmp_path / "folder", values=values)
    assert equal(model, back)
    assert back.classes == model.classes
    assert torch.equal(inputs.ours(back.network()), inputs.ours(ours))
    told = ("timesteps", "schedule", "predicts", "variance")
    assert [getattr(back.spec.diffusion, one) for one in told] == [getattr(model.spec.diffusion, one) for one in told]


@pytest.mark.parametrize("order", ["heads_first", "qkv_first"])
@pytest.mark.parametrize("updown", [False, True])
def test_names_and_tensors_are_a_bijection(order: Any, updown: bool) -> None:
    fields = {**GUIDED, **LABELS, "model.resblock_updown": updown, "model.qkv_order": order}
    model = filled(spec_of(fields))
    layout = layout_of(model.spec)
    theirs = to_diffusers(model.tensors, layout)
    assert sum(tensor.numel() for tensor in theirs.values()) == sum(tensor.numel() for tensor in model.tensors.values())
    back = from_diffusers(theirs, layout)
    assert back.keys() == model.tensors.keys()
    assert all(torch.equal(back[key], model.tensors[key]) for key in back)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"model.attention_resolutions": [8, 4], "model.num_channels": 32, "model.channel_mult": [1, 1, 2]},
            r"model\.num_heads=4: heads have 16 channels in the middle, 8 at 8 pixels, 16 at 4 pixels, and UNet2DModel has one",
        ),
        ({"model.num_heads_upsample": 2}, r"model\.num_heads=4, num_heads_upsample=2: heads have 16 channels .*32 on the way up at 4"),
        ({"model.conv_resample": False}, r"model\.conv_resample=false: UNet2DModel resamples by convolutions or residual blocks only"),
        (
            {"model.num_channels": 64, "model.channel_mult": [0.5, 1, 2]},
            r"model\.channel_mult begins with 0\.5: UNet2DModel embeds timesteps",
        ),
        ({"model.kind": "superres", "model.low_res_size": 4}, r"model\.kind=superres: UNet2DModel is given no small picture"),
        ({"diffusion.variance": "learned"}, r"diffusion\.variance=learned: DDPMScheduler takes a learned variance for itself"),
        ({"diffusion.predicts": "previous_x"}, r"diffusion\.predicts=previous_x: DDPMScheduler has no such prediction"),
        (
            {"diffusion.timesteps": 4000},
            r"the network is told 0\.25, 0\.5 \.\.\. 999\.75 for timesteps 1, 2 \.\.\. 3999 .*--respacing ddim1000",
        ),
        ({"diffusion.respacing": "100"}, r"the network is told 10, 20 \.\.\. 999 for timesteps 1, 2 \.\.\. 99"),
    ],
)
def test_what_diffusers_cannot_express_is_refused_with_the_reason(fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"diffusers cannot express this .*{reason}"):
        write_model(filled(spec_of(fields)), str(tmp_path / "folder"), say=print)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", presets.names())
def test_which_published_recipes_can_be_expressed(name: str) -> None:
    """The demo's is chosen so that it can be."""
    spec = cli.parse(["--preset", name, "run.name=a", "run.output_dir=/tmp/runs", "data.path=/tmp/pictures"]).spec
    assert spec is not None
    if name.startswith(("upsample", "imagenet64")):
        with pytest.raises(
            CheckpointError,
            match="superres" if "upsample" in name else r"heads have \d+ channels in the middle, \d+ at 16 pixels, \d+ at 8",
        ):
            unet_config(spec, label_rows=None)
        return
    assert unet_config(spec, label_rows=11 if name == "digits" else None)["attention_head_dim"] == {"digits": 16}.get(
        name, 512 if "lsun" in name else 64
    )
    if spec.diffusion.timesteps == 1000:
        assert scheduler_config(spec.diffusion)["num_train_timesteps"] == 1000
        return
    with pytest.raises(CheckpointError, match="--respacing ddim1000"):
        scheduler_config(spec.diffusion)
    assert len(scheduler_config(spec.diffusion, respacing="ddim1000")["trained_betas"]) == 1000


def test_every_reason_is_given_at_once() -> None:
    spec = spec_of({"model.attention_resolutions": [8, 4], "model.conv_resample": False})
    with pytest.raises(CheckpointError, match=r"conv_resample=false.*; model\.num_heads=4"):
        unet_config(spec, label_rows=None)


def test_networks_that_do_not_say_the_same_are_refused_and_nothing_is_left(
    diffusers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(tensors: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
        theirs = to_diffusers(tensors, layout)
        query, key = (f"mid_block.attentions.0.to_{one}.weight" for one in "qv")
        theirs[query], theirs[key] = theirs[key], theirs[query]
        return theirs

    def back(theirs: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
        query, key = (f"mid_block.attentions.0.to_{one}.weight" for one in "qv")
        return from_diffusers({**theirs, query: theirs[key], key: theirs[query]}, layout)

    monkeypatch.setattr(write, "to_diffusers", mistaken)
    monkeypatch.setattr(write, "from_diffusers", back)
    with pytest.raises(CheckpointError, match=r"this package and diffusers .* do not say the same: largest difference .*, tolerated "):
        write_model(filled(spec_of({})), str(tmp_path / "folder"), say=print)
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_says_nothing_cannot_be_compared(diffusers: Any, tmp_path: Path) -> None:
    model = filled(spec_of({}))
    silent = {key: torch.zeros_like(tensor) if key.startswith("out.2") else tensor for key, tensor in model.tensors.items()}
    with pytest.raises(CheckpointError, match="every output is 0 or not finite, so nothing could be compared"):
        write_model(Model(model.spec, (), silent, "silence"), str(tmp_path / "folder"), say=print)


@pytest.mark.parametrize(
    ("fields", "respacing"),
    [
        ({}, None),
        ({"diffusion.schedule": "linear", "diffusion.variance": "fixed_small"}, None),
        (
            {
                "diffusion.variance": "fixed_large",
                "diffusion.predicts": "x_start",
                "diffusion.timesteps": 500,
                "diffusion.rescale_timesteps": False,
            },
            None,
        ),
        ({"diffusion.timesteps": 4000}, "ddim1000"),
    ],
)
def test_the_same_noise_gives_the_same_pictures(fields: dict[str, Any], respacing: str | None, diffusers: Any) -> None:
    """Twenty steps of the ancestral loop, theirs and ours, drawing from generators in the same order."""
    model = filled(spec_of({**fields, "model.attention_resolutions": []}))
    ours = model.network()
    scheduler = diffusers.DDPMScheduler.from_config(scheduler_config(model.spec.diffusion, respacing=respacing))
    scheduler.set_timesteps(20)
    generator = torch.Generator().manual_seed(5)
    pictures = torch.randn(2, 1, 8, 8, generator=generator)
    with torch.no_grad():
        for t in scheduler.timesteps:
            said = 0.1 * ours(pictures, t.expand(2))
            pictures = scheduler.step(said, t, pictures, generator=generator).prev_sample
    generator = torch.Generator().manual_seed(5)
    start = torch.randn(2, 1, 8, 8, generator=generator)
    steps = scheduler.timesteps.tolist()[::-1]
    process = build.diffusion(model.spec.diffusion, respacing="20")
    if respacing is None:
        assert process.timestep_map.tolist() == steps
    else:  # shortened twice: to what is exported, and to what is drawn
        process = build.diffusion(model.spec.diffusion, respacing=respacing)
        tables = tables_of(respaced_betas(process.tables.betas.numpy(), np.array(steps)))
        process = dataclasses.replace(process, tables=tables, timestep_map=process.timestep_map[torch.tensor(steps)])
    drawn = ddpm_sample(
        process,
        lambda x, t: 0.1 * ours(x, t),
        start=start,
        noise=lambda done: torch.randn(start.shape, generator=generator),
        cond={},
    )
    assert (drawn - pictures).abs().max() < 2e-3
    assert pictures.abs().max() > 0.1


def test_ten_lines_of_diffusers_alone_draw_every_class(diffusers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = filled(spec_of({**LABELS, "model.num_classes": 10, "model.channel_mult": [1, 2], "model.attention_resolutions": [8]}))
    write_model(model, str(tmp_path / "folder"), say=print)
    source = SCRIPT.read_text()
    assert "iddpm_ray" not in source.partition('"""')[2].partition('"""')[2]
    assert len([line for line in source.partition('"""')[2].partition('"""')[2].splitlines() if line.strip()]) <= 14
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / "folder"), str(tmp_path / "out.png"), "2"])
    runpy.run_path(str(SCRIPT))
    from PIL import Image

    assert Image.open(tmp_path / "out.png").size == (160, 160)


def test_the_same_noise_becomes_the_same_pictures_here_and_there(diffusers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By DDIM without noise, all the way from noise to bytes; to within the one level that rounding may cost."""
    model = filled(spec_of({**LABELS, "model.num_classes": 10, "data.image_size": 8, "model.channel_mult": [1, 2]}))
    for target in ("folder", "w.safetensors"):
        write_model(model, str(tmp_path / target), say=print)
    compare = runpy.run_path(str(SCRIPT.with_name("beside_diffusers.py")))["main"]
    assert compare(str(tmp_path / "w.safetensors"), str(tmp_path / "folder"), str(tmp_path / "out.png")) <= 1
    from PIL import Image

    drawn = np.asarray(Image.open(tmp_path / "out.png"))
    assert drawn.shape == (3 * (5 * 10 + 2), 3 * (21 * 10 + 2))
    assert len(np.unique(drawn)) > 50


REFUSED = [
    ({"freq_shift": 1}, "freq_shift=1: its embedding has other frequencies"),
    ({"flip_sin_to_cos": False}, "flip_sin_to_cos=False: its embedding has its sines first"),
    ({"norm_eps": 1e-6}, "norm_eps=1e-06: normalisations here have epsilon 1e-5"),
    ({"downsample_padding": 0}, "downsample_padding=0: convolutions that halve"),
    ({"time_embedding_type": "fourier"}, "time_embedding_type=fourier: timesteps here"),
    ({"attn_norm_num_groups": None}, "attn_norm_num_groups=None: the middle attention here"),
    ({"up_block_types": ["UpBlock2D"] * 3}, "and mirrors them"),
    ({"in_channels": 4, "out_channels": 4}, "in_channels=4, out_channels=4: pictures here have 1 or 3"),
    ({"class_embed_type": "timestep"}, "class_embed_type=timestep: labels here are looked up"),
    ({"add_attention": False}, "add_attention=False: the middle block here always has attention"),
    ({"new_thing": 1}, "new_thing: there is no such setting in diffusers"),
    ({"_class_name": "UNet2DConditionModel"}, "configures a UNet2DConditionModel"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_a_model_of_theirs_that_is_none_of_ours_is_refused_with_the_reason(change: dict[str, Any], message: str) -> None:
    config = unet_config(spec_of({}), label_rows=None)
    assert fields_of_config(config, name="config.json")["model.num_channels"] == 32
    with pytest.raises(CheckpointError) as caught:
        fields_of_config({**config, **change}, name="config.json")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta_schedule": "scaled_linear"}, "beta_schedule=scaled_linear, 0.0001 to 0.02: neither the linear nor the cosine"),
        ({"beta_schedule": "linear", "beta_end": 0.03}, "beta_schedule=linear, 0.0001 to 0.03: neither"),
        ({"trained_betas": [0.1] * 1000}, "trained_betas, 0.0001 to 0.02: neither"),
        ({"prediction_type": "v_prediction"}, "prediction_type=v_prediction: networks here predict"),
        ({"rescale_betas_zero_snr": True}, "rescale_betas_zero_snr: the schedules here"),
        ({"variance_type": "learned"}, "variance_type=learned: its network says the variance itself"),
    ],
)
def test_a_process_of_theirs_that_is_none_of_ours_is_refused_with_the_reason(change: dict[str, Any], message: str) -> None:
    config = scheduler_config(spec_of({}).diffusion)
    assert fields_of_scheduler(config, name="s.json")["diffusion.schedule"] == "cosine"
    with pytest.raises(CheckpointError) as caught:
        fields_of_scheduler({**config, **change}, name="s.json")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"thresholding": True}, "thresholding=True"),
        ({"clip_sample": False}, "clip_sample=False"),
        ({"clip_sample_range": 2.0, "thresholding": True}, "thresholding=True, clip_sample_range=2.0"),
        ({}, None),
    ],
)
def test_what_a_scheduler_does_to_predictions_and_no_spec_does_is_said(change: dict[str, Any], said: str | None, tmp_path: Path) -> None:
    write_model(filled(spec_of({})), str(tmp_path / "folder"), say=print)
    file = tmp_path / "folder" / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    model = opened(tmp_path / "folder")
    told: list[str] = []
    write_model(model, str(tmp_path / "w.safetensors"), say=told.append)
    about = [line for line in told if "clamped" in line]
    wanted = "predictions of the picture are clamped to -1 .. 1 here, so it draws other pictures there"
    assert about == ([] if said is None else [f"{file} has {said}: {wanted}"])
    assert all(line in describe(str(tmp_path / "folder")) for line in about)


def test_a_folder_without_a_scheduler_asks_for_the_process(tmp_path: Path) -> None:
    write_model(filled(spec_of({})), str(tmp_path / "folder"), say=print)
    (tmp_path / "folder" / "scheduler" / "scheduler_config.json").unlink()
    with pytest.raises(SpecError, match=r"does not tell:\n  diffusion\.timesteps .*\n  diffusion\.schedule"):
        opened(tmp_path / "folder")
    with pytest.raises(SpecError, match=r"is another network:\n  model\.num_head_channels: there 16, you say 8"):
        opened(tmp_path / "folder", values={"model.num_head_channels": 8})


def test_the_layout_of_the_files_is_what_diffusers_saves(diffusers: Any, tmp_path: Path) -> None:
    model = filled(spec_of({}))
    write_model(model, str(tmp_path / "ours"), say=print)
    unet = diffusers.UNet2DModel.from_pretrained(tmp_path / "ours", subfolder="unet")
    scheduler = diffusers.DDPMScheduler.from_pretrained(tmp_path / "ours", subfolder="scheduler")
    diffusers.DDPMPipeline(unet=unet, scheduler=scheduler).save_pretrained(tmp_path / "theirs")
    written = {path.relative_to(tmp_path / "theirs") for path in (tmp_path / "theirs").rglob("*") if path.is_file()}
    assert written <= {path.relative_to(tmp_path / "ours") for path in (tmp_path / "ours").rglob("*")}
    ignored: Callable[[str], bool] = lambda key: key in ("_name_or_path", "_diffusers_version", "_use_default_values")  # noqa: E731
    for name in ("unet/config.json", "scheduler/scheduler_config.json"):
        ours, theirs = (json.loads((tmp_path / side / name).read_text()) for side in ("ours", "theirs"))
        assert {key: value for key, value in theirs.items() if not ignored(key) and ours.get(key, value) != value} == {}
    assert equal(model, opened(tmp_path / "theirs", values={"diffusion.rescale_timesteps": False}))
