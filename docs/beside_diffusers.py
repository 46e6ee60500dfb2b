"""The same noise drawn here and by diffusers, side by side: python docs/beside_diffusers.py SOURCE FOLDER OUT.png [RATE]

SOURCE is a run or a file of weights, FOLDER what `jobs/convert.py export SOURCE FOLDER` made of it, with `--weights RATE` if RATE is given.
Both draw 50 pictures, class by class, by DDIM without noise in 25 steps. Left ours, right theirs; prints how far a pixel is apart at most.
"""

import sys
from pathlib import Path

import torch
from diffusers import DDIMScheduler, UNet2DModel
from torch import Tensor

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.diffusion.sample import to_bytes
from iddpm_ray.evaluate.drawing import Arithmetic, make_drawing
from iddpm_ray.evaluate.figures import save_sheet
from iddpm_ray.evaluate.trained import find_source

COUNT, STEPS, SEED = 50, 25, 0


def theirs(folder: str, start: Tensor, labels: Tensor) -> Tensor:
    """Pictures [N, C, H, W] uint8 by diffusers out of noise of that shape."""
    unet = UNet2DModel.from_pretrained(folder, subfolder="unet").eval()
    scheduler = DDIMScheduler.from_pretrained(folder, subfolder="scheduler", timestep_spacing="leading")
    scheduler.set_timesteps(STEPS)
    x = start
    with torch.no_grad():
        for t in scheduler.timesteps:
            eps = unet(x, t, class_labels=labels).sample[:, : x.shape[1]]  # the rest is the learned variance, which DDIM does not use
            x = scheduler.step(eps, t, x, use_clipped_model_output=True).prev_sample
    return to_bytes(x)


def main(source: str, folder: str, out: str, rate: float | None = None) -> int:
    """Draws, writes the picture, and returns the greatest difference of a pixel, 0..255."""
    way = {"method": "ddim", "eta": 0.0, "respacing": f"ddim{STEPS}", "guidance": 1.0, "ema": rate}
    drawing = make_drawing(find_source(source), arithmetic=Arithmetic(), **way)
    indices, labels, shape = torch.arange(COUNT), torch.arange(COUNT) % 10, drawing.spec.picture_shape()
    ours = drawing.open().draw(indices, seed=SEED, labels=labels)
    other = theirs(folder, draws.normals(SEED, Purpose.SAMPLE_START, indices, shape), labels)
    gap = torch.full((COUNT // 10, 1, *shape), 255, dtype=torch.uint8)
    rows = [ours.view(-1, 10, *shape), gap, other.view(-1, 10, *shape)]
    save_sheet(torch.cat(rows, dim=1).flatten(0, 1), Path(out), columns=21, scale=3)
    difference = (ours.int() - other.int()).abs()
    apart = int((difference > 0).sum())
    print(f"{COUNT} pictures, {STEPS} steps: {apart} of {difference.numel()} values differ, at most by {difference.max()} of 255")
    return int(difference.max())


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(float, sys.argv[4:5]))
