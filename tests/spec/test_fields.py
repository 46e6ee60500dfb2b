"""Every field has a description, a unit and a mark, and the marks are these."""

import pickle

import pytest
from spec.alternatives import ALTERNATIVES, COUPLED, REFUSED

from iddpm_ray.errors import SpecError
from iddpm_ray.spec.fields import fields_of, section_paths, value_of
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping

IDENTITY = {
    "run": "seed",
    "data": "labels image_column label_column image_size channels background flip on_error max_pixels validation_fraction",
    "model": "kind num_channels num_res_blocks channel_mult num_heads num_heads_upsample attention_resolutions dropout class_cond "
    "num_classes class_dropout conv_resample scale_shift_norm low_res_size low_res_noise num_head_channels resblock_updown qkv_order",
    "diffusion": "timesteps schedule respacing predicts variance loss rescale_timesteps",
    "resampler": "kind history uniform_prob",
    "optim": "betas adam_eps schedule anneal warmup ema_rates precision fp16_scale_growth",
    "train": "global_batch",
    "log": "timestep_bins",
    "init": "from weights only skip sha256",
}

MAY_CHANGE = {
    "run": "name output_dir",
    "data": "path adopt tasks cpus_per_task steps_per_block prefetch_blocks",
    "model": "gradient_checkpointing attention",
    "optim": "lr weight_decay clip_norm max_nonfinite_steps microbatch matmul_precision compile compile_cache channels_last deterministic",
    "train": "duration",
    "checkpoint": "every keep_last keep_every keep_best asynchronous save_timeout_s max_unsaved",
    "log": "every tensorboard csv prometheus sinks project mlflow_url progress validate_every validate_rows",
    "sample": "every count method respacing eta ema guidance guidance_interval low_res_noise classes",
    "evaluate": "every count batch features inception inception_sha256 reference cpus gpus threads",
    "cluster": "address workers cpus_per_worker gpus_per_worker threads_per_worker accelerator_type placement max_failures "
    "max_fruitless max_hours collective_timeout_s hang_timeout_s grow_every_s start_timeout_s object_store_gib price_per_worker_hour",
    "cluster.mesh": "data fsdp tensor",
    "kube": "image namespace machine capacity reclaim_window_s preflight secrets",
}


def paths(named: dict[str, str]) -> list[str]:
    return sorted(f"{section}.{name}" for section, names in named.items() for name in names.split())


def test_marks_are_these():
    marks = {field.path: field.mark for field in fields_of(JobSpec)}
    assert sorted(path for path, mark in marks.items() if mark == "identity") == paths(IDENTITY)
    assert sorted(path for path, mark in marks.items() if mark == "may_change") == paths(MAY_CHANGE)


@pytest.mark.parametrize("field", fields_of(JobSpec), ids=lambda field: field.path)
def test_every_field_says_what_it_is_in_one_line_with_a_unit(field):
    assert 10 <= len(field.description) <= 120
    assert "\n" not in field.description
    assert not field.description.endswith(".")
    assert field.unit


def test_required_fields_are_four():
    assert [field.path for field in fields_of(JobSpec) if field.required] == ["run.name", "run.output_dir", "data.path", "train.duration"]


def test_sections_are_these():
    top = ["run", "data", "model", "diffusion", "resampler", "optim", "train", "checkpoint", "log", "sample", "evaluate", "init"]
    top += ["cluster", "kube"]
    assert [path for path in section_paths(JobSpec) if "." not in path] == top
    assert "cluster.mesh" in section_paths(JobSpec)


def test_every_field_has_an_alternative():
    assert {*ALTERNATIVES, *REFUSED, *COUPLED} == {field.path for field in fields_of(JobSpec)}


def test_defaults_are_those_of_the_original(golden_flags):
    spec = load_mapping({"run": {"name": "a", "output_dir": "/r"}, "data": {"path": "/d"}, "train": {"duration": "1 step"}})
    values = {field.path: value_of(spec, field) for field in fields_of(JobSpec)}
    same = {
        "lr": "optim.lr",
        "weight_decay": "optim.weight_decay",
        "fp16_scale_growth": "optim.fp16_scale_growth",
        "image_size": "data.image_size",
        "num_channels": "model.num_channels",
        "num_res_blocks": "model.num_res_blocks",
        "num_heads": "model.num_heads",
        "num_heads_upsample": "model.num_heads_upsample",
        "dropout": "model.dropout",
        "class_cond": "model.class_cond",
        "diffusion_steps": "diffusion.timesteps",
        "noise_schedule": "diffusion.schedule",
        "timestep_respacing": "diffusion.respacing",
        "rescale_timesteps": "diffusion.rescale_timesteps",
        "use_scale_shift_norm": "model.scale_shift_norm",
        "use_checkpoint": "model.gradient_checkpointing",
        "schedule_sampler": "resampler.kind",
    }
    assert {flag: values[path] for flag, path in same.items()} == {flag: golden_flags[flag] for flag in same}
    assert ",".join(map(str, values["optim.ema_rates"])) == golden_flags["ema_rate"]
    assert ",".join(map(str, values["model.attention_resolutions"])) == golden_flags["attention_resolutions"]
    assert (values["diffusion.loss"] == "rescaled_mse") == golden_flags["rescale_learned_sigmas"]


@pytest.mark.parametrize("path", [field.path for field in fields_of(JobSpec)])
def test_a_spec_is_frozen(path):
    spec = load_mapping({"run": {"name": "a", "output_dir": "/r"}, "data": {"path": "/d"}, "train": {"duration": "1 step"}})
    *above, leaf = next(field.attributes for field in fields_of(JobSpec) if field.path == path)
    owner = spec
    for attribute in above:
        owner = getattr(owner, attribute)
    with pytest.raises(ValueError, match="frozen"):
        setattr(owner, leaf, None)


def test_a_spec_survives_pickling():
    spec = load_mapping({"run": {"name": "a", "output_dir": "/r"}, "data": {"path": "/d"}, "train": {"duration": "90 min"}})
    assert pickle.loads(pickle.dumps(spec)) == spec
    error = pickle.loads(pickle.dumps(SpecError("run.name", value="x", fix="another")))
    assert str(error) == "run.name (got x): another"
