"""The model card that goes with exported weights: what they are, how to draw with them, and what is known of their training."""

import json

from iddpm_ray.convert.model import Model
from iddpm_ray.spec.text import dump_yaml

_DIFFUSERS = """\
```python
import torch
from diffusers import DDPMScheduler, UNet2DModel

unet, scheduler = UNet2DModel.from_pretrained(FOLDER, subfolder="unet"), DDPMScheduler.from_pretrained(FOLDER, subfolder="scheduler")
{labels}generator = torch.Generator().manual_seed(0)
pictures = torch.randn({count}, {channels}, {height}, {width}, generator=generator)
scheduler.set_timesteps({steps})
with torch.no_grad():
    for t in scheduler.timesteps:
        pictures = scheduler.step(unet(pictures, t{given}).sample, t, pictures, generator=generator).prev_sample
```
"""

_SAFETENSORS = """\
The file's header holds the spec and the names of the classes, so `init.from: {name}` begins a training of iddpm_ray with these weights, and
`python jobs/convert.py export {name} FOLDER` makes a folder of diffusers of them. Parameters have the names of OpenAI's checkpoints.
"""


def card(model: Model, *, name: str, library: str) -> str:
    """Markdown with the front matter that the Hugging Face hub reads.

    Args:
        name: of the file or folder.
        library: `diffusers`, or `iddpm_ray`.
    """
    spec = model.spec
    channels, height, width = spec.picture_shape()
    parameters = sum(tensor.numel() for tensor in model.tensors.values())
    diffusion = spec.diffusion
    tags = ["ddpm", "class-conditional-image-generation" if model.classes else "unconditional-image-generation"]
    front = ["---", f"library_name: {library}", "tags:", *(f"- {tag}" for tag in tags), "---"]
    lines = [
        *front,
        f"# {name}",
        "",
        f"A diffusion model of pictures of {height} x {width} pixels in {'grey' if channels == 1 else 'RGB'}, {parameters:,} parameters "
        "(Improved Denoising Diffusion Probabilistic Models, Nichol and Dhariwal 2021).",
        "",
        f"* process: {diffusion.timesteps} timesteps, {diffusion.schedule} schedule, predicts {diffusion.predicts}, "
        f"variance {diffusion.variance}",
        f"* weights: {model.origin}",
    ]
    if model.classes:
        shown = ", ".join(f"{index} {text}" for index, text in enumerate(model.classes[:20]))
        lines.append(f"* classes: {len(model.classes)}: {shown}{' ...' if len(model.classes) > 20 else ''}")
    if model.classes and spec.model.class_dropout > 0:
        lines.append(f"* label {model.num_classes} stands for no label, for classifier-free guidance")
    lines += ["", "## Use", ""]
    if library == "diffusers":
        labels = f"labels = torch.arange({len(model.classes)})\n" if model.classes else ""
        given = ", class_labels=labels" if model.classes else ""
        count = "len(labels)" if model.classes else "4"
        steps = min(250, diffusion.timesteps)
        lines.append(_DIFFUSERS.format(labels=labels, given=given, count=count, channels=channels, height=height, width=width, steps=steps))
        lines.append("Pictures lie in [-1, 1].")
    else:
        lines.append(_SAFETENSORS.format(name=name))
    lines += ["", "## Spec", "", "```yaml", dump_yaml(spec).rstrip(), "```", ""]
    return "\n".join(lines)


def labels_json(model: Model) -> str:
    """The names of the classes as the content of labels.json."""
    return json.dumps(list(model.classes), ensure_ascii=False)
