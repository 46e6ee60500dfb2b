"""For every field of the spec another value that a small spec accepts, and what has to be set beside it for the field to matter."""

from dataclasses import dataclass, field
from typing import Any

from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping

SMALL: dict[str, Any] = {
    "run.name": "small",
    "run.output_dir": "/tmp/runs",
    "data.path": "/tmp/pictures",
    "data.image_size": 16,
    "model.num_channels": 32,
    "model.num_res_blocks": 1,
    "model.channel_mult": [1, 2],
    "model.attention_resolutions": [8],
    "diffusion.timesteps": 100,
    "train.global_batch": 8,
    "train.duration": "4 steps",
}
"""A network of 16 pixels that trains in seconds."""


@dataclass(frozen=True)
class Alternative:
    """Another value of a field; `given` is set in both specs, so that nothing but the field differs between them."""

    value: Any
    given: dict[str, Any] = field(default_factory=dict)


LABELS = {"data.labels": "folder", "model.class_cond": True, "model.num_classes": 4}
LOSS_AWARE = {"resampler.kind": "loss_second_moment"}
SUPERRES = {"model.kind": "superres", "model.low_res_size": 8}
START = {"init.from": "/tmp/start.pt"}
GPU = {"cluster.gpus_per_worker": 1}
JUDGED = {"data.labels": "folder", "evaluate.features": "digits-classifier", "evaluate.every": "2 steps"}
INCEPTION = {"evaluate.every": "2 steps", "evaluate.inception": "/tmp/inception.pth", "evaluate.inception_sha256": "0" * 64}
POD = {"kube.image": "registry/iddpm-ray:1", **GPU}

ALTERNATIVES: dict[str, Alternative] = {
    "run.name": Alternative("other"),
    "run.output_dir": Alternative("/tmp/elsewhere"),
    "run.seed": Alternative(1),
    "data.path": Alternative("/tmp/other"),
    "data.labels": Alternative("folder"),
    "data.image_column": Alternative("picture"),
    "data.label_column": Alternative("class", {"data.labels": "column"}),
    "data.image_size": Alternative([16, 8]),
    "data.channels": Alternative(1),
    "data.background": Alternative([0, 0, 0]),
    "data.flip": Alternative(True),
    "data.on_error": Alternative("substitute"),
    "data.max_pixels": Alternative(1000),
    "data.validation_fraction": Alternative(0.25),
    "data.adopt": Alternative(True),
    "data.tasks": Alternative(2),
    "data.cpus_per_task": Alternative(0.5),
    "data.steps_per_block": Alternative(3),
    "data.prefetch_blocks": Alternative(1),
    "model.num_channels": Alternative(64),
    "model.num_res_blocks": Alternative(2),
    "model.channel_mult": Alternative([1, 1]),
    "model.num_heads": Alternative(2),
    "model.num_heads_upsample": Alternative(2),
    "model.num_head_channels": Alternative(32),
    "model.attention_resolutions": Alternative([16]),
    "model.dropout": Alternative(0.1),
    "model.class_cond": Alternative(True, {"data.labels": "folder"}),
    "model.num_classes": Alternative(5, LABELS),
    "model.class_dropout": Alternative(0.1, LABELS),
    "model.conv_resample": Alternative(False),
    "model.resblock_updown": Alternative(True),
    "model.qkv_order": Alternative("qkv_first"),
    "model.scale_shift_norm": Alternative(False),
    "model.gradient_checkpointing": Alternative(True),
    "model.attention": Alternative("math"),
    "model.low_res_size": Alternative(4, SUPERRES),
    "model.low_res_noise": Alternative(20, SUPERRES),
    "diffusion.timesteps": Alternative(200),
    "diffusion.schedule": Alternative("cosine"),
    "diffusion.respacing": Alternative("10"),
    "diffusion.predicts": Alternative("x_start"),
    "diffusion.variance": Alternative("learned_range"),
    "diffusion.loss": Alternative("kl"),
    "diffusion.rescale_timesteps": Alternative(False),
    "resampler.kind": Alternative("loss_second_moment"),
    "resampler.history": Alternative(3, LOSS_AWARE),
    "resampler.uniform_prob": Alternative(0.1, LOSS_AWARE),
    "optim.lr": Alternative(0.001),
    "optim.weight_decay": Alternative(0.05),
    "optim.betas": Alternative([0.8, 0.99]),
    "optim.adam_eps": Alternative(1e-6),
    "optim.schedule": Alternative("cosine", {"optim.schedule": "linear", "optim.anneal": "100 steps"}),
    "optim.anneal": Alternative("200 steps", {"optim.schedule": "linear", "optim.anneal": "100 steps"}),
    "optim.warmup": Alternative("16 samples"),
    "optim.clip_norm": Alternative(0.5),
    "optim.ema_rates": Alternative([0.9, 0.99]),
    "optim.precision": Alternative("bf16"),
    "optim.fp16_scale_growth": Alternative(0.01, {"optim.precision": "fp16"}),
    "optim.max_nonfinite_steps": Alternative(2),
    "optim.microbatch": Alternative(2),
    "optim.matmul_precision": Alternative("high"),
    "optim.compile": Alternative(True),
    "optim.compile_cache": Alternative("elsewhere", {"optim.compile": True}),
    "optim.channels_last": Alternative(True),
    "optim.deterministic": Alternative(False),
    "train.global_batch": Alternative(12),
    "train.duration": Alternative("6 steps"),
    "checkpoint.every": Alternative("2 steps"),
    "checkpoint.keep_last": Alternative(1),
    "checkpoint.keep_every": Alternative("2 steps"),
    "checkpoint.keep_best": Alternative(1, JUDGED),
    "checkpoint.asynchronous": Alternative(False),
    "checkpoint.save_timeout_s": Alternative(60.0),
    "checkpoint.max_unsaved": Alternative("2 steps"),
    "log.every": Alternative("2 steps"),
    "log.timestep_bins": Alternative(5),
    "log.tensorboard": Alternative(False),
    "log.csv": Alternative(True),
    "log.prometheus": Alternative(False),
    "log.sinks": Alternative(["wandb"]),
    "log.project": Alternative("cats", {"log.sinks": ["wandb"]}),
    "log.mlflow_url": Alternative("/tmp/elsewhere", {"log.sinks": ["mlflow"], "log.mlflow_url": "/tmp/mlflow"}),
    "log.progress": Alternative(False),
    "log.validate_every": Alternative("2 steps", {"data.validation_fraction": 0.25}),
    "log.validate_rows": Alternative(2, {"data.validation_fraction": 0.25, "log.validate_every": "2 steps"}),
    "sample.every": Alternative("2 steps"),
    "sample.count": Alternative(4, {"sample.every": "2 steps"}),
    "sample.method": Alternative("ddim", {"sample.every": "2 steps"}),
    "sample.respacing": Alternative("5", {"sample.every": "2 steps"}),
    "sample.eta": Alternative(0.5, {"sample.every": "2 steps", "sample.method": "ddim"}),
    "sample.ema": Alternative(0.9999, {"sample.every": "2 steps"}),
    "sample.guidance": Alternative(2.0, {"sample.every": "2 steps", "model.class_dropout": 0.1, **LABELS}),
    "sample.guidance_interval": Alternative(
        [10, 50], {"sample.every": "2 steps", "model.class_dropout": 0.1, "sample.guidance": 2.0, **LABELS}
    ),
    "sample.low_res_noise": Alternative(10, {"sample.every": "2 steps", "model.low_res_noise": 20, **SUPERRES}),
    "sample.classes": Alternative([1], {"sample.every": "2 steps", **LABELS}),
    "evaluate.every": Alternative("3 steps", JUDGED),
    "evaluate.count": Alternative(100, JUDGED),
    "evaluate.batch": Alternative(8, JUDGED),
    "evaluate.features": Alternative("other-classifier", JUDGED),
    "evaluate.inception": Alternative("/tmp/other.pth", INCEPTION),
    "evaluate.inception_sha256": Alternative("1" * 64, INCEPTION),
    "evaluate.reference": Alternative("/tmp/reference.npz", JUDGED),
    "evaluate.cpus": Alternative(2.0, JUDGED),
    "evaluate.gpus": Alternative(1.0, JUDGED),
    "evaluate.threads": Alternative(2, JUDGED),
    "init.from": Alternative("/tmp/start.pt"),
    "init.weights": Alternative(0.9999, START),
    "init.only": Alternative(["input_blocks.*"], START),
    "init.skip": Alternative(["out.*"], START),
    "init.sha256": Alternative("0" * 64, START),
    "cluster.address": Alternative("10.0.0.1:6379"),
    "cluster.workers": Alternative([1, 2]),
    "cluster.cpus_per_worker": Alternative(0.5),
    "cluster.gpus_per_worker": Alternative(1.0),
    "cluster.threads_per_worker": Alternative(2),
    "cluster.accelerator_type": Alternative("L4", GPU),
    "cluster.placement": Alternative("spread"),
    "cluster.mesh.data": Alternative(2, {"cluster.workers": 2}),
    "cluster.max_failures": Alternative(0),
    "cluster.max_fruitless": Alternative(1),
    "cluster.max_hours": Alternative(7.5),
    "cluster.hang_timeout_s": Alternative(30.0),
    "cluster.grow_every_s": Alternative(60.0, {"cluster.workers": [1, 2]}),
    "cluster.collective_timeout_s": Alternative(30.0),
    "cluster.start_timeout_s": Alternative(5),
    "cluster.object_store_gib": Alternative(0.5),
    "cluster.price_per_worker_hour": Alternative(2.5),
    "kube.image": Alternative("registry/iddpm-ray:2", POD),
    "kube.namespace": Alternative("elsewhere", POD),
    "kube.machine": Alternative("g2-standard-12", POD),
    "kube.capacity": Alternative("on-demand", POD),
    "kube.reclaim_window_s": Alternative(105, POD),
    "kube.preflight": Alternative(True, POD),
    "kube.secrets": Alternative(["wandb"], POD),
}

REFUSED: dict[str, Any] = {"cluster.mesh.fsdp": 2, "cluster.mesh.tensor": 2}
"""Fields whose every other value is refused, and such a value."""

COUPLED: dict[str, dict[str, Any]] = {"model.kind": SUPERRES}
"""Fields that cannot change alone, and the change that takes them along."""


def spec_with(settings: dict[str, Any]) -> JobSpec:
    """The small spec with fields set by dotted path."""
    return load_mapping(nested({**SMALL, **settings}))


def both(path: str) -> tuple[JobSpec, JobSpec]:
    """Two small specs that differ in one field alone."""
    alternative = ALTERNATIVES[path]
    return spec_with(alternative.given), spec_with({**alternative.given, path: alternative.value})


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """Mappings within mappings from dotted paths."""
    result: dict[str, Any] = {}
    for path, value in settings.items():
        place = result
        *above, leaf = path.split(".")
        for part in above:
            place = place.setdefault(part, {})
        place[leaf] = value
    return result
