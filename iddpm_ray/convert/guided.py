"""The flags of guided-diffusion's programs (openai/guided-diffusion, MIT), where they differ from improved-diffusion's."""

from typing import Any

from iddpm_ray.convert import openai

# rescale_timesteps and rescale_learned_sigmas moved to False, and sigma_small is gone: the same command line means another model.
MODEL: dict[str, Any] = {
    **openai.MODEL,
    "num_head_channels": -1,
    "resblock_updown": False,
    "rescale_timesteps": False,
    "rescale_learned_sigmas": False,
    "use_fp16": False,
}
SAME_SIZE: dict[str, Any] = {"image_size": 64, **MODEL, "channel_mult": "", "use_new_attention_order": False}
ENLARGING: dict[str, Any] = {**MODEL, "large_size": 256, "small_size": 64}

CLASSIFIER: dict[str, Any] = {
    "image_size": 64,
    "classifier_use_fp16": False,
    "classifier_width": 128,
    "classifier_depth": 2,
    "classifier_attention_resolutions": "32,16,8",
    "classifier_use_scale_shift_norm": True,
    "classifier_resblock_updown": True,
    "classifier_pool": "attention",
}

PROGRAMS: dict[str, dict[str, Any]] = {
    "image_train": {**openai.TRAINING, **SAME_SIZE},
    "image_sample": {**openai.SAMPLING, **SAME_SIZE},
    "image_nll": {**openai.LIKELIHOOD, **SAME_SIZE},
    "super_res_train": {**openai.TRAINING, **ENLARGING},
    "super_res_sample": {**openai.SAMPLING, "base_samples": "", **ENLARGING},
    "classifier_sample": {**openai.SAMPLING, **SAME_SIZE, **CLASSIFIER, "classifier_path": "", "classifier_scale": 1.0},
}

CHANNEL_MULT: dict[int, tuple[float, ...]] = {
    512: (0.5, 1, 1, 2, 2, 4, 4),
    256: (1, 1, 2, 2, 4, 4),
    128: (1, 1, 2, 3, 4),
    64: (1, 2, 3, 4),
}
"""Widths by the size of the pictures; any other size needs the flag channel_mult."""

LARGE_CHANNEL_MULT: dict[int, tuple[float, ...]] = {512: (1, 1, 2, 2, 4, 4), 256: (1, 1, 2, 2, 4, 4), 64: (1, 2, 3, 4)}
"""The same for pictures that are enlarged."""

FLIPS = True
"""Whether its training mirrors pictures, which no flag says."""
