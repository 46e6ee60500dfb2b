"""Command lines of OpenAI's programs: every flag maps, is named as belonging elsewhere, or is refused with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from iddpm_ray import build, presets
from iddpm_ray.convert import guided, openai
from iddpm_ray.convert.flags import Converted, parse_command, to_spec
from iddpm_ray.convert.model import UNSAID, nested
from iddpm_ray.errors import SpecError
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping, parse_yaml

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED: dict[str, list[list[Any]]] = json.loads((GOLDEN / "cli_flags.json").read_text())
PUBLISHED = json.loads((GOLDEN / "checkpoint_keys.json").read_text())
OTHERS: dict[str, str] = {
    "image_size": "32",
    "large_size": "64",
    "small_size": "32",
    "attention_resolutions": "8",
    "noise_schedule": "cosine",
    "schedule_sampler": "loss-second-moment",
    "timestep_respacing": "50",
    "ema_rate": "0.99,0.999",
    "num_channels": "64",
    "dropout": "0.1",
    "num_heads": "2",
    "num_heads_upsample": "2",
    "microbatch": "2",
    "channel_mult": "1,2",
    "num_head_channels": "32",
}
"""For flags whose value cannot be just anything, another value."""

AROUND = {
    "microbatch": "--batch_size 8",
    "fp16_scale_growth": "--use_fp16 True",
    "rescale_learned_sigmas": "--learn_sigma True",
    "large_size": "--small_size 16",
}
"""Flags in whose company another one matters: samples to cut, a loss scale to grow."""


def refused(program: str, name: str) -> bool:
    return name == "resume_checkpoint" or (name == "clip_denoised" and program != "image_nll")


def converted(text: str, **options: Any) -> Converted:
    processes = options.pop("processes", 4)
    return to_spec(parse_command(text.split(), **options), processes=processes)


def spec_of(made: Converted) -> JobSpec:
    return load_mapping(nested({**UNSAID, **made.values}))


def other_value(name: str, kind: str, default: Any) -> str:
    if name in OTHERS:
        return OTHERS[name]
    match kind:
        case "bool":
            return str(not default)
        case "int":
            return str(default + 1 if default > 0 else 2)
        case "float":
            return str(default * 2 + 0.001)
        case _:
            return "some/path"


def test_flags_and_defaults_are_the_recorded_ones() -> None:
    for program, flags in RECORDED.items():
        assert openai.PROGRAMS[program] == {name: default for name, _, default in flags}
        assert [type(openai.PROGRAMS[program][name]).__name__ for name, *_ in flags] == [kind for _, kind, _ in flags]


@pytest.mark.parametrize(("program", "name"), [(program, flag[0]) for program, flags in RECORDED.items() for flag in flags])
def test_every_flag_maps_or_is_named_or_refused_with_the_reason(program: str, name: str) -> None:
    _, kind, default = next(flag for flag in RECORDED[program] if flag[0] == name)
    words = f"{AROUND.get(name, '')} --{name} {other_value(name, kind, default)}"
    if refused(program, name):
        with pytest.raises(SpecError, match=f"--{name} "):
            converted(words, program=program)
        return
    made = converted(words, program=program)
    if made.values == converted(AROUND.get(name, ""), program=program).values:
        assert name in made.remarks, f"--{name} is dropped in silence"
        assert f"--{name} " in made.yaml()


@pytest.mark.parametrize(("program", "name"), [(program, name) for program, flags in guided.PROGRAMS.items() for name in flags])
def test_no_flag_of_guided_diffusion_is_dropped_in_silence(program: str, name: str) -> None:
    default = guided.PROGRAMS[program][name]
    value = "128" if name == "image_size" else other_value(name, type(default).__name__, default)
    words = f"{AROUND.get(name, '')} --{name} {value}"
    if refused(program, name) or name.startswith("classifier_"):
        with pytest.raises(SpecError, match=f"--{name} "):
            converted(words, program=program, dialect="guided")
        return
    made = converted(words, program=program, dialect="guided")
    assert made.values != converted(AROUND.get(name, ""), program=program, dialect="guided").values or name in made.remarks


def test_a_likelihood_without_clamping_is_said_to_the_program_that_measures() -> None:
    made = converted("--clip_denoised False", program="image_nll")
    assert "# --clip_denoised False: said to the program that measures, as `jobs/nll.py --no-clip`, not in a spec" in made.yaml()


def test_every_value_of_the_spec_that_a_program_decides_is_written() -> None:
    text = converted("--image_size 64 --num_channels 128 --lr_anneal_steps 1000").yaml()
    spec = load_mapping({**parse_yaml(text), "run": {"name": "a", "output_dir": "b"}, "data": {**parse_yaml(text)["data"], "path": "c"}})
    assert (spec.train.global_batch, str(spec.train.duration), str(spec.optim.anneal)) == (4, "1000 steps", "1000 steps")
    assert text.splitlines()[1] == "# You give: run.name, run.output_dir, data.path."


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_flags_build_the_published_network(name: str) -> None:
    record = PUBLISHED[name]
    program = "super_res_train" if name == "upsample_cond" else "image_train"
    words = " ".join(f"--{flag} {value}" for flag, value in record["flags"].items())
    spec = spec_of(converted(words, program=program))
    with torch.device("meta"):
        network = build.model(spec, num_classes=spec.model.num_classes)
    assert [[key, list(tensor.shape)] for key, tensor in network.state_dict().items()] == record["keys"]


def test_the_defaults_of_the_two_makers_differ_where_they_do() -> None:
    improved, moved = (spec_of(converted("--learn_sigma True", dialect=dialect)) for dialect in ("improved", "guided"))
    assert (improved.diffusion.rescale_timesteps, moved.diffusion.rescale_timesteps) == (True, False)
    assert (improved.diffusion.loss, moved.diffusion.loss) == ("rescaled_mse", "mse")
    assert (improved.data.flip, moved.data.flip) == (False, True)


def test_the_published_64_pixel_flags_of_guided_diffusion() -> None:
    text = (
        "python scripts/image_sample.py --attention_resolutions 32,16,8 --class_cond True --diffusion_steps 1000 --dropout 0.1 "
        "--image_size 64 --learn_sigma True --noise_schedule cosine --num_channels 192 --num_head_channels 64 --num_res_blocks 3 "
        "--resblock_updown True --use_new_attention_order True --use_fp16 True --use_scale_shift_norm True --timestep_respacing 250"
    )
    made = converted(text, dialect="guided")
    model = spec_of(made).model
    assert (model.num_head_channels, model.resblock_updown, model.qkv_order) == (64, True, "qkv_first")
    assert (model.attention_resolutions, spec_of(made).sample.respacing) == ((32, 16, 8), "250")
    with torch.device("meta"):
        network = build.model(spec_of(made), num_classes=1000)
    assert network.label_emb.num_embeddings == 1000
    assert network.output_blocks[3][2].resample == "up"


def test_launcher_and_script_are_read() -> None:
    command = parse_command(["mpiexec", "-n", "8", "python", "scripts/super_res_train.py", "--batch_size=32"])
    assert (command.program, command.processes) == ("super_res_train", 8)
    assert to_spec(command).values["train.global_batch"] == 256


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("--batch_size 16", {"processes": None}, "train.global_batch=16 x N (16 for 1, 128 for 8)"),
        ("", {"processes": None}, "--batch_size 1: is per process there"),
        ("--image_size 128", {}, "improved-diffusion has no widths for this size, but for 32, 64, 256"),
        ("--image_size 32", {"dialect": "guided"}, "but for 64, 128, 256, 512 or with --channel_mult"),
        (
            "--channel_mult 1,2",
            {},
            "improved-diffusion's image_train has no flag --channel_mult: guided-diffusion's has: give --from guided",
        ),
        ("--sigma_small True", {"dialect": "guided"}, "improved-diffusion's has: give --from improved"),
        (
            "--num_samples 5",
            {},
            "image_train has no flag --num_samples: image_sample, image_nll, super_res_sample has: give --program image_s",
        ),
        ("--num_chanels 5", {}, "did you mean num_channels?"),
        ("--lr", {}, "--lr: needs a value behind it"),
        ("--lr fast", {}, "--lr (got fast): should be a number"),
        ("--learn_sigma maybe", {}, "--learn_sigma (got maybe): should be True or False"),
        ("--resume_checkpoint m.pt --clip_denoised False", {"program": "image_train"}, "no flag --clip_denoised"),
        ("--resume_checkpoint m.pt", {}, "--resume_checkpoint m.pt: a run whose directory exists goes on by itself; init.from=FILE"),
        ("--clip_denoised False", {"program": "image_sample"}, "--clip_denoised False: predictions of the picture are always clamped"),
        ("--classifier_scale 4", {"program": "classifier_sample", "dialect": "guided"}, "classifier guidance is not here"),
        ("--num_heads 3", {}, "model.num_heads"),
        ("python scripts/classifier_train.py --lr 1", {"dialect": "guided"}, "the program (got classifier_train)"),
        ("--noise_schedule sqrt --schedule_sampler best", {}, "2 of the flags cannot be converted"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_words(text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        converted(text, **options)
    assert message in str(caught.value)


def test_flags_reproduce_the_presets() -> None:
    spec = spec_of(
        converted(
            "--image_size 64 --num_channels 128 --num_res_blocks 3 --diffusion_steps 4000 --noise_schedule cosine --learn_sigma True "
            "--lr 1e-4 --batch_size 128",
            processes=1,
        )
    )
    preset = load_mapping(nested({**UNSAID, **_flat(parse_yaml(presets.text("imagenet64-uncond")))}))
    same = spec.model.model_copy(update={"channel_mult": None})
    assert (same.model_dump(), spec.diffusion, spec.data) == (
        {**preset.model.model_dump()},
        preset.diffusion,
        preset.data,
    )
    assert (spec.optim, spec.train.global_batch) == (preset.optim, preset.train.global_batch)


def _flat(mapping: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, fields in mapping.items() for key, value in fields.items()}
