"""Fields that contradict each other are refused by name, with a value that would do; what is possible is let through."""

import pytest
from spec.alternatives import LABELS, LOSS_AWARE, SUPERRES, spec_with

from iddpm_ray.errors import SpecError

WIDE = {"model.num_channels": 64, "model.channel_mult": [1, 2, 3], "data.image_size": 16, "model.attention_resolutions": []}

REFUSED = [
    ({"run.name": "a/b"}, 'run.name (got "a/b"): should be 1 to 100 letters'),
    ({"run.name": ""}, 'run.name (got ""): should be 1 to 100 letters'),
    ({"run.name": ".."}, 'run.name (got ".."): should be 1 to 100 letters'),
    ({"run.name": "a..b"}, 'run.name (got "a..b"): should be 1 to 100 letters'),
    ({"run.name": "a\n"}, r'run.name (got "a\n"): should be 1 to 100 letters'),
    ({"run.name": "a b"}, 'run.name (got "a b"): should be 1 to 100 letters'),
    ({"run.name": "-a"}, 'run.name (got "-a"): should be 1 to 100 letters'),
    ({"run.name": "a" * 101}, "should be 1 to 100 letters"),
    ({"run.output_dir": "memory://x"}, 'run.output_dir (got "memory://x"): lives in the memory of one process: use a path, gs://, s3://'),
    ({"run.output_dir": "simplecache::memory://x"}, "run.output_dir"),
    ({"run.output_dir": "/runs/x::y"}, "run.output_dir (got \"/runs/x::y\"): should not hold '::', by which fsspec chains file systems"),
    ({"run.output_dir": "simplecache::gs://b/runs"}, "run.output_dir (got \"simplecache::gs://b/runs\"): should not hold '::'"),
    ({"data.path": "Memory://x"}, "data.path"),
    ({"run.output_dir": ""}, "run.output_dir"),
    ({"run.output_dir": "/a\x07b"}, "should not be empty, nor hold control characters"),
    ({"data.path": " /a"}, "data.path"),
    (
        {"data.image_size": 48, "model.channel_mult": None},
        "model.channel_mult (got null): is needed for pictures of 48 pixels (null is known for 16, 32, 64, 256)",
    ),
    (
        {"data.image_size": 18, "model.channel_mult": [1, 1, 1]},
        "data.image_size (got 18): 18 should be a multiple of 4, as 3 levels halve it 2 times: 16 or 20, or a shorter model.channel_mult",
    ),
    ({"data.image_size": [16, 9]}, "data.image_size (got [16, 9]): 9 should be a multiple of 2, as 2 levels halve it 1 times: 8 or 10,"),
    ({"data.image_size": 1}, "data.image_size (got 1): 1 should be a multiple of 2, as 2 levels halve it 1 times: 2, or"),
    ({"model.num_channels": 100}, "model.num_channels (got 100): should be a multiple of 32 (group normalisation), such as 96"),
    ({"model.num_channels": 1}, "model.num_channels (got 1): should be a multiple of 32 (group normalisation), such as 32"),
    ({"model.channel_mult": [1, 1.5]}, "model.channel_mult (got [1.0, 1.5]): 1.5 x 32 = 48 channels, not a multiple of 32"),
    (
        {"model.attention_resolutions": [7]},
        "model.attention_resolutions (got [7]): no level has size 7: the levels of this network have 16, 8",
    ),
    ({"model.attention_resolutions": [4]}, "no level has size 4: the levels of this network have 16, 8"),
    ({"model.attention_resolutions": [8, 8]}, "names a size twice"),
    ({"data.image_size": [8, 32], "model.attention_resolutions": [8]}, "no level has size 8: the levels of this network have 32, 16"),
    ({"model.num_heads": 3}, "model.num_heads (got 3): does not divide the 64 channels of attention at size 8: 1, 2, 4 would do"),
    (
        {**WIDE, "model.num_heads": 5},
        "model.num_heads (got 5): does not divide the 192 channels of attention in the middle block: 3, 4, 6 would do",
    ),
    ({**WIDE, "model.num_heads": 6, "model.attention_resolutions": [8]}, "does not divide the 128 channels of attention at size 8"),
    ({"model.num_heads_upsample": 3}, "model.num_heads_upsample (got 3): does not divide the 64 channels of attention at size 8"),
    (
        {"model.num_head_channels": 24},
        "model.num_head_channels (got 24): does not divide the 64 channels of attention at size 8: 8,",
    ),
    ({"model.num_head_channels": 32, "model.num_heads": 2}, "model.num_heads (got 2): has no effect with model.num_head_channels"),
    ({"model.num_head_channels": 32, "model.num_heads_upsample": 2}, "model.num_heads_upsample (got 2): has no effect with model."),
    ({"model.resblock_updown": True, "model.conv_resample": False}, "model.conv_resample (got false): has no effect with model.resblock"),
    ({"model.num_heads_upsample": 0}, "model.num_heads_upsample (got 0): should be at least 1, or -1"),
    ({"model.low_res_size": 8}, "model.low_res_size (got 8): has no effect on model.kind=unet"),
    ({"model.kind": "superres"}, "model.low_res_size (got null): is needed by model.kind=superres"),
    ({"model.kind": "superres", "model.low_res_size": 16}, "model.low_res_size (got 16): should be smaller than data.image_size, 16"),
    (
        {"model.kind": "superres", "model.low_res_size": 5},
        "model.low_res_size (got 5): should divide the picture, 16 x 16, by a whole factor",
    ),
    ({"model.kind": "superres", "model.low_res_size": 2, "data.image_size": [16, 4]}, "should divide the picture, 16 x 4"),
    ({"model.class_cond": True}, "model.class_cond (got true): needs labels: set data.labels to folder, prefix or column"),
    ({"model.num_classes": 3}, "model.num_classes (got 3): has no effect without model.class_cond=true"),
    ({"model.class_dropout": 0.1}, "model.class_dropout (got 0.1): has no effect without model.class_cond=true"),
    ({"sample.classes": [0]}, "sample.classes (got [0]): has no effect without model.class_cond=true"),
    ({"sample.guidance": 2.0}, "sample.guidance (got 2.0): needs a network trained with model.class_dropout above 0"),
    ({**LABELS, "sample.guidance": 2.0}, "sample.guidance"),
    ({**LABELS, "sample.classes": [0, 4]}, "sample.classes (got [0, 4]): has 4, but classes are 0 to 3 (model.num_classes)"),
    ({"data.label_column": "digit"}, "data.label_column"),
    ({"diffusion.timesteps": 1}, "diffusion.timesteps (got 1): should be at least 2"),
    ({"diffusion.timesteps": 1, "diffusion.schedule": "cosine"}, "diffusion.timesteps (got 1): should be at least 2"),
    (
        {"diffusion.timesteps": 20},
        "diffusion.timesteps (got 20): the last beta of a linear schedule, 20 / timesteps = 1, has to be below 1: use 21 or more",
    ),
    ({"diffusion.timesteps": 2}, "20 / timesteps = 10, has to be below 1"),
    ({"diffusion.respacing": "1"}, 'diffusion.respacing (got "1"): leaves one timestep'),
    ({"diffusion.respacing": "101"}, "asks for 101 timesteps where there are 100"),
    ({"diffusion.respacing": "30,30,40"}, "diffusion.respacing"),
    (
        {"sample.respacing": "ddim30"},
        'sample.respacing (got "ddim30"): is impossible: no whole stride through 100 timesteps takes exactly 30 of them',
    ),
    ({"log.validate_rows": 5}, "log.validate_rows (got 5): has no effect without log.validate_every"),
    ({"cluster.grow_every_s": 5}, "cluster.grow_every_s (got 5.0): has no effect unless cluster.workers is [min, max]"),
    ({"resampler.history": 5}, "resampler.history (got 5): has no effect without resampler.kind=loss_second_moment"),
    ({"resampler.uniform_prob": 0.5}, "resampler.uniform_prob"),
    ({"optim.anneal": "5 steps"}, 'optim.anneal (got "5 steps"): has no effect with optim.schedule=constant'),
    ({"optim.schedule": "linear"}, "optim.anneal (got null): is needed by optim.schedule=linear"),
    ({"optim.schedule": "cosine"}, "optim.anneal (got null): is needed by optim.schedule=cosine"),
    ({"optim.ema_rates": [0.9, 0.99, 0.9]}, "optim.ema_rates (got [0.9, 0.99, 0.9]): names a rate twice"),
    ({"sample.ema": 0.9}, "sample.ema (got 0.9): should be one of optim.ema_rates, [0.9999], or null for the raw weights"),
    ({"sample.eta": 0.5}, "sample.eta (got 0.5): has no effect without sample.method=ddim"),
    ({"optim.fp16_scale_growth": 0.1}, "optim.fp16_scale_growth (got 0.1): has no effect without optim.precision=fp16"),
    ({"optim.microbatch": 9}, "optim.microbatch (got 9): should be at most train.global_batch, 8"),
    ({"log.validate_every": "5 steps"}, 'log.validate_every (got "5 steps"): needs held-out rows: set data.validation_fraction'),
    ({"init.weights": 0.99}, "init.weights (got 0.99): has no effect without init.from"),
    ({"init.only": ["a"]}, 'init.only (got ["a"]): has no effect without init.from'),
    ({"init.skip": ["a"]}, "init.skip"),
    ({"init.sha256": "0" * 64}, "init.sha256"),
    ({"cluster.workers": 9}, "train.global_batch (got 8): should be at least the number of workers, 9, so that each has a sample"),
    ({"cluster.workers": [1, 9]}, "train.global_batch (got 8): should be at least the number of workers, 9"),
    ({"cluster.workers": [3, 2]}, "cluster.workers (got [3, 2]): should be [min, max]: [2, 3]"),
    ({"cluster.workers": 0}, "cluster.workers (got 0): should be at least 1"),
    ({"cluster.mesh.fsdp": 2}, "cluster.mesh.fsdp (got 2): should be 1: sharding is not built yet"),
    ({"cluster.mesh.tensor": 2}, "cluster.mesh.tensor (got 2): should be 1: splitting layers is not built yet"),
    ({"cluster.mesh.data": 2}, "cluster.mesh.data (got 2): should be -1, or cluster.workers where that is one number"),
    ({"cluster.mesh.data": 2, "cluster.workers": [1, 2]}, "has to be the workers, 1 to 2"),
    ({"cluster.mesh.data": 0}, "cluster.mesh.data (got 0): should be -1"),
    ({"cluster.gpus_per_worker": 2}, "cluster.gpus_per_worker (got 2.0): should be 0 or 1: a worker drives one GPU"),
    ({"cluster.gpus_per_worker": 0.5, "cluster.workers": 2}, "cluster.gpus_per_worker (got 0.5): should be 0 or 1 with several workers"),
    ({"cluster.accelerator_type": "L4"}, 'cluster.accelerator_type (got "L4"): has no effect without cluster.gpus_per_worker=1'),
    (
        {"cluster.object_store_gib": 1.0, "cluster.address": "auto"},
        "cluster.object_store_gib (got 1.0): has no effect on a cluster that is joined",
    ),
]


@pytest.mark.parametrize(
    ("settings", "says"), REFUSED, ids=lambda value: " ".join(f"{k}={v!r:.30}" for k, v in value.items()) if isinstance(value, dict) else ""
)
def test_contradiction_is_refused_by_name(settings, says):
    with pytest.raises(SpecError) as caught:
        spec_with(settings)
    assert says in str(caught.value)
    assert "problems" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"run.name": "a"},
        {"run.name": "A.b_c-9"},
        {"run.output_dir": "gs://bucket/x"},
        {"run.output_dir": "relative/path"},
        {"run.output_dir": "/with space/ü"},
        {"data.image_size": [16, 8]},
        {"data.image_size": [2, 16]},
        {"data.image_size": 256, "model.channel_mult": None, "model.attention_resolutions": [16]},
        {"model.channel_mult": [0.5, 1], "model.num_channels": 64},
        {"model.channel_mult": [1], "model.attention_resolutions": [16]},
        {"model.attention_resolutions": []},
        {"model.num_heads": 64, "model.attention_resolutions": []},
        {**WIDE, "model.num_heads": 6, "model.attention_resolutions": [4]},
        {"model.num_heads_upsample": 3, "model.attention_resolutions": []},
        {**SUPERRES, "data.image_size": [16, 8]},
        {**SUPERRES, **LABELS},
        {**LABELS, "sample.classes": [0, 3], "model.class_dropout": 0.1, "sample.guidance": 0.0},
        {"data.labels": "prefix", "model.class_cond": True, "sample.classes": [999]},
        {"data.labels": "folder"},
        {"diffusion.timesteps": 21},
        {"diffusion.timesteps": 2, "diffusion.schedule": "cosine"},
        {"diffusion.respacing": "2"},
        {"diffusion.respacing": "10,15,20", "sample.respacing": "ddim50"},
        {"sample.respacing": "1"},
        {**LOSS_AWARE, "resampler.history": 1, "resampler.uniform_prob": 1.0},
        {"optim.ema_rates": []},
        {"optim.microbatch": 8},
        {"optim.precision": "fp16"},
        {"train.duration": "15 min", "checkpoint.every": "5 min"},
        {"cluster.workers": 8},
        {"cluster.workers": [1, 8]},
        {"cluster.workers": [2, 2], "cluster.mesh.data": 2},
        {"cluster.gpus_per_worker": 0.25},
        {"cluster.gpus_per_worker": 1, "cluster.workers": 4},
    ],
    ids=str,
)
def test_what_is_possible_is_let_through(settings):
    assert spec_with(settings)


def test_all_contradictions_are_named_at_once():
    with pytest.raises(SpecError) as caught:
        spec_with({"model.num_channels": 100, "diffusion.timesteps": 1, "optim.microbatch": 99, "cluster.mesh.fsdp": 2})
    message = str(caught.value)
    assert message.startswith("the job spec has 4 problems:\n")
    for path in ("model.num_channels", "diffusion.timesteps", "optim.microbatch", "cluster.mesh.fsdp"):
        assert f"\n  {path} (got " in message


def test_respacing_may_be_a_number_or_a_list():
    assert spec_with({"diffusion.respacing": 50}) == spec_with({"diffusion.respacing": "50"})
    assert spec_with({"diffusion.respacing": [10, 15]}) == spec_with({"diffusion.respacing": "10,15"})


@pytest.mark.parametrize(
    ("settings", "mult", "picture", "low"),
    [
        ({}, (1, 2), (3, 16, 16), None),
        ({"data.image_size": 64, "model.channel_mult": None}, (1, 2, 3, 4), (3, 64, 64), None),
        ({"data.image_size": [16, 32], "model.channel_mult": None, "data.channels": 1}, (1, 2, 2, 2), (1, 16, 32), None),
        ({**SUPERRES, "data.image_size": [8, 16]}, (1, 2), (3, 8, 16), (4, 8)),
    ],
)
def test_spec_answers_for_shapes(settings, mult, picture, low):
    spec = spec_with(settings)
    assert spec.channel_mult() == mult
    assert spec.picture_shape() == picture
    assert spec.low_res_height_width() == low


@pytest.mark.parametrize(("workers", "low_high"), [(2, (2, 2)), ([1, 4], (1, 4))])
def test_spec_answers_for_workers(workers, low_high):
    assert spec_with({"cluster.workers": workers}).cluster.worker_range() == low_high
