"""Suggestions for a field that does not exist: misspelt, in another section, or under the name it has elsewhere."""

import difflib
from collections.abc import Sequence

ELSEWHERE: dict[str, str] = {
    "attention_heads": "model.num_heads",
    "batch": "train.global_batch",
    "batch_size": "train.global_batch",
    "beta_schedule": "diffusion.schedule",
    "blocks": "model.num_res_blocks",
    "channel_multipliers": "model.channel_mult",
    "class_labels": "data.labels",
    "classifier_free_guidance": "sample.guidance",
    "clip": "optim.clip_norm",
    "clip_denoised": "nothing: predictions are clamped when pictures are drawn",
    "data_dir": "data.path",
    "data_path": "data.path",
    "device": "cluster.gpus_per_worker",
    "diffusion_steps": "diffusion.timesteps",
    "ema": "optim.ema_rates",
    "ema_decay": "optim.ema_rates",
    "ema_rate": "optim.ema_rates",
    "epochs": "train.duration (such as 3 epochs)",
    "eps": "optim.adam_eps",
    "grad_clip": "optim.clip_norm",
    "horizontal_flip": "data.flip",
    "iterations": "train.duration (such as 5000 steps)",
    "large_size": "data.image_size",
    "learn_sigma": "diffusion.variance=learned_range",
    "learning_rate": "optim.lr",
    "log_interval": "log.every (such as 10 steps)",
    "lr_anneal_steps": "optim.schedule=linear with optim.anneal (such as 5000 steps)",
    "max_steps": "train.duration (such as 5000 steps)",
    "mixed_precision": "optim.precision",
    "model_channels": "model.num_channels",
    "name": "run.name",
    "noise_schedule": "diffusion.schedule",
    "num_gpus": "cluster.workers with cluster.gpus_per_worker=1",
    "num_samples": "sample.count",
    "num_steps": "train.duration (such as 5000 steps)",
    "num_workers": "cluster.workers",
    "p_uncond": "model.class_dropout",
    "predict_xstart": "diffusion.predicts=x_start",
    "random_flip": "data.flip",
    "resolution": "data.image_size",
    "rescale_learned_sigmas": "diffusion.loss (rescaled_mse if true, mse if false)",
    "resume_checkpoint": "nothing: a run whose directory exists is resumed; init.from begins with other weights",
    "save_interval": "checkpoint.every (such as 10000 steps)",
    "schedule_sampler": "resampler.kind",
    "sigma_small": "diffusion.variance=fixed_small",
    "small_size": "model.low_res_size",
    "steps": "train.duration (such as 5000 steps)",
    "timestep_respacing": "diffusion.respacing, or sample.respacing for drawing only",
    "use_checkpoint": "model.gradient_checkpointing",
    "use_ddim": "sample.method=ddim",
    "use_fp16": "optim.precision=fp16",
    "use_kl": "diffusion.loss=rescaled_kl",
    "use_new_attention_order": "model.qkv_order=qkv_first",
    "use_scale_shift_norm": "model.scale_shift_norm",
    "warmup_steps": "optim.warmup (such as 500 steps)",
}
"""Names of Improved DDPM's own flags, and of habit, that are called otherwise here."""


def suggestion(path: str, *, fields: Sequence[str], sections: Sequence[str]) -> str:
    """`: did you mean ...`, or what there is instead; to be appended to a message.

    Args:
        path: the dotted path that names nothing.
        fields: all paths that do.
        sections: all paths that hold fields.
    """
    above, _, leaf = path.rpartition(".")
    leaf = leaf.replace("-", "_")
    siblings = [field for field in fields if field.rpartition(".")[0] == above]
    if moved := [field for field in fields if field.rpartition(".")[2] == leaf]:
        return f": did you mean {' or '.join(moved[:3])}?"
    if leaf in ELSEWHERE:
        return f": here this is {ELSEWHERE[leaf]}"
    if close := difflib.get_close_matches(f"{above}.{leaf}", siblings, n=1, cutoff=0.75):
        return f": did you mean {close[0]}?"
    if not above and (close := difflib.get_close_matches(leaf, sections, n=1, cutoff=0.7)):
        return f": did you mean the section {close[0]}?"
    if close := difflib.get_close_matches(path, fields, n=1, cutoff=0.7):
        return f": did you mean {close[0]}?"
    by_leaf = {field.rpartition(".")[2]: field for field in reversed(fields)}
    if close := difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.7):
        return f": did you mean {by_leaf[close[0]]}?"
    if siblings:
        return f": {above} has {', '.join(field.rpartition('.')[2] for field in siblings)}"
    return f": the sections are {', '.join(section for section in sections if '.' not in section)}"


def closest(word: str, words: Sequence[str]) -> str:
    """`did you mean X? ` for the word most like it, or nothing."""
    found = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"did you mean {found[0]}? " if found else ""
