"""The flags of improved-diffusion's programs (openai/improved-diffusion, MIT), with their defaults, in the order of their help."""

from typing import Any

MODEL: dict[str, Any] = {
    "num_channels": 128,
    "num_res_blocks": 2,
    "num_heads": 4,
    "num_heads_upsample": -1,
    "attention_resolutions": "16,8",
    "dropout": 0.0,
    "learn_sigma": False,
    "class_cond": False,
    "diffusion_steps": 1000,
    "noise_schedule": "linear",
    "timestep_respacing": "",
    "use_kl": False,
    "predict_xstart": False,
    "rescale_timesteps": True,
    "rescale_learned_sigmas": True,
    "use_checkpoint": False,
    "use_scale_shift_norm": True,
}
SAME_SIZE: dict[str, Any] = {"image_size": 64, **MODEL, "sigma_small": False}
ENLARGING: dict[str, Any] = {**MODEL, "large_size": 256, "small_size": 64}
TRAINING: dict[str, Any] = {
    "data_dir": "",
    "schedule_sampler": "uniform",
    "lr": 1e-4,
    "weight_decay": 0.0,
    "lr_anneal_steps": 0,
    "batch_size": 1,
    "microbatch": -1,
    "ema_rate": "0.9999",
    "log_interval": 10,
    "save_interval": 10000,
    "resume_checkpoint": "",
    "use_fp16": False,
    "fp16_scale_growth": 1e-3,
}
SAMPLING: dict[str, Any] = {"clip_denoised": True, "num_samples": 10000, "batch_size": 16, "use_ddim": False, "model_path": ""}
LIKELIHOOD: dict[str, Any] = {"data_dir": "", "clip_denoised": True, "num_samples": 1000, "batch_size": 1, "model_path": ""}

PROGRAMS: dict[str, dict[str, Any]] = {
    "image_train": {**TRAINING, **SAME_SIZE},
    "image_sample": {**SAMPLING, **SAME_SIZE},
    "image_nll": {**LIKELIHOOD, **SAME_SIZE},
    "super_res_train": {**TRAINING, **ENLARGING},
    "super_res_sample": {**SAMPLING, "base_samples": "", **ENLARGING},
}

CHANNEL_MULT: dict[int, tuple[float, ...]] = {256: (1, 1, 2, 2, 4, 4), 64: (1, 2, 3, 4), 32: (1, 2, 2, 2)}
"""Widths by the size of the pictures; it knows no other size."""

LARGE_CHANNEL_MULT: dict[int, tuple[float, ...]] = {256: (1, 1, 2, 2, 4, 4), 64: (1, 2, 3, 4)}
"""The same for pictures that are enlarged."""

NUM_CLASSES = 1000
FLIPS = False
"""Whether its training mirrors pictures, which no flag says."""
