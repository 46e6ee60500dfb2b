"""Draws ten pictures of each of ten classes with diffusers alone: python docs/sample_with_diffusers.py FOLDER OUT.png [STEPS]"""

import sys

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.utils import make_image_grid, numpy_to_pil

unet = UNet2DModel.from_pretrained(sys.argv[1], subfolder="unet")
scheduler = DDPMScheduler.from_pretrained(sys.argv[1], subfolder="scheduler")
labels, generator = torch.arange(10).repeat(10), torch.Generator().manual_seed(0)
x = torch.randn(100, unet.config.in_channels, unet.config.sample_size, unet.config.sample_size, generator=generator)
scheduler.set_timesteps(int(sys.argv[3]) if len(sys.argv) > 3 else 250)
with torch.no_grad():
    for t in scheduler.timesteps:
        x = scheduler.step(unet(x, t, class_labels=labels).sample, t, x, generator=generator).prev_sample
pictures = numpy_to_pil((x / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).numpy())
make_image_grid(pictures, rows=10, cols=10).save(sys.argv[2])
