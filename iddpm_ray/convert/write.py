"""Writes a network in another format, reads it back, and keeps what was written only if both say the same."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.checkpoint.commit import LABELS_FILE
from iddpm_ray.convert import agree
from iddpm_ray.convert.card import card, labels_json
from iddpm_ray.convert.diffusers import layout_of, unet_config
from iddpm_ray.convert.files import check_free, sha256_of, write_files, write_folder
from iddpm_ray.convert.model import Model
from iddpm_ray.convert.names import from_diffusers, to_diffusers
from iddpm_ray.convert.recognise import recognise
from iddpm_ray.convert.safetensors import model_of, write_safetensors
from iddpm_ray.convert.scheduler import process_of, scheduler_config
from iddpm_ray.convert.source import WEIGHTS_FILES
from iddpm_ray.convert.weight_files import PICKLES, read_weights
from iddpm_ray.errors import CheckpointError, SpecError

Say = Callable[[str], None]


def write_model(
    model: Model,
    url: str,
    *,
    say: Say,
    overwrite: bool = False,
    respacing: str | None = None,
    tolerance: float = agree.TOLERANCE,
    use_up: bool = False,
) -> None:
    """Writes the network where and as the URL's ending says: `.safetensors`, `.pt`, or else a folder of diffusers.

    Args:
        say: told what the model's source says besides, what was compared and what was written.
        overwrite: replace what is there.
        respacing: for diffusers, export the process shortened so.
        tolerance: of outputs, as a share of the largest.
        use_up: let go of the model's tensors once they are written, so that never two networks are in memory.

    Raises:
        CheckpointError: the format cannot express the network, what was written does not say the same, or cannot be written.
    """
    name = storage.name(url)
    check_free(url, overwrite=overwrite)
    if respacing is not None and url.endswith((".safetensors", *PICKLES)):
        raise SpecError("--respacing", value=respacing, fix="has no effect but on a folder of diffusers, whose scheduler holds the process")
    for remark in model.remarks:
        say(remark)
    if url.endswith(".safetensors"):
        beside = f"{name.removesuffix('.safetensors')}.md"
        write_files(url, lambda folder: _safetensors(model, Path(folder), name, beside, say, use_up), overwrite=overwrite, beside=(beside,))
    elif url.endswith(PICKLES):
        write_files(url, lambda folder: _openai(model, Path(folder) / name, say, use_up), overwrite=overwrite)
    else:
        write_folder(url, lambda folder: _diffusers(model, Path(folder), name, respacing, tolerance, say, use_up), overwrite=overwrite)


@dataclass(frozen=True)
class _Before:
    """What a network was before it was written, in little memory.

    Attributes:
        digests: SHA-256 of every tensor.
        outputs: [2, C, H, W] on the fixed inputs.
    """

    digests: Mapping[str, bytes]
    inputs: agree.Inputs
    outputs: Tensor

    @classmethod
    def of(cls, model: Model, *, num_timesteps: int) -> "_Before":
        network = model.network()
        inputs = agree.fixed_inputs(network, num_timesteps=num_timesteps)
        with torch.inference_mode():
            return cls(_digests(model.tensors), inputs, inputs.ours(network))

    def check_weights(self, after: Mapping[str, Tensor], *, name: str) -> None:
        """Raises a CheckpointError naming the first that is not what it was."""
        digests = _digests(after)
        wrong = [key for key in self.digests.keys() | digests.keys() if self.digests.get(key) != digests.get(key)]
        if wrong:
            raise CheckpointError(f"{name} does not give {sorted(wrong)[0]} back as it was", fix="mend the disk, or report this")

    def check_outputs(self, after: Model, *, say: Say) -> None:
        """Raises a CheckpointError unless a network of ours answers as before, bit for bit."""
        network = after.network()
        found = agree.compare(lambda: self.outputs, lambda: self.inputs.ours(network))
        if found.difference != 0:
            raise CheckpointError(f"outputs before and after differ: {found.describe()}", fix="report this with the spec")
        say(f"{len(self.digests)} tensors equal, outputs before and after equal: {found.describe()}")


def _digests(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    """SHA-256 of each tensor's shape and bytes."""
    found = {}
    for name, tensor in tensors.items():
        digest = hashlib.sha256(repr(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        found[name] = digest.digest()
    return found


def _safetensors(model: Model, folder: Path, name: str, beside: str, say: Say, use_up: bool) -> None:
    path = folder / name
    before = _Before.of(model, num_timesteps=model.spec.diffusion.timesteps)
    (folder / beside).write_text(card(model, name=name, library="iddpm_ray"), encoding="utf-8")
    write_safetensors(str(path), model)
    if use_up:
        model.tensors.clear()
    file = read_weights(str(path))
    back = model_of(file.tensors, file.metadata, name=name)
    if (back.spec, back.classes) != (model.spec, model.classes):
        raise CheckpointError(f"{name} does not give its spec and classes back", fix="report this with the spec")
    before.check_weights(back.tensors, name=name)
    before.check_outputs(back, say=say)
    say(f"{name}: sha256 {file.sha256}")


def _openai(model: Model, path: Path, say: Say, use_up: bool) -> None:
    """As OpenAI's programs save: a state dict by torch.save."""
    before = _Before.of(model, num_timesteps=model.spec.diffusion.timesteps)
    torch.save({name: model.tensors[name].contiguous() for name in model.network().state_dict()}, path)
    if use_up:
        model.tensors.clear()
    file = read_weights(str(path))
    recognise({key: tuple(tensor.shape) for key, tensor in file.tensors.items()}, name=path.name)
    before.check_weights(file.tensors, name=path.name)
    before.check_outputs(Model(model.spec, model.classes, file.tensors, path.name), say=say)
    say(f"{path.name}: sha256 {file.sha256}")


def _diffusers(model: Model, folder: Path, name: str, respacing: str | None, tolerance: float, say: Say, use_up: bool) -> None:
    betas = process_of(model.spec.diffusion, respacing=respacing).tables.betas.numpy()
    before = _Before.of(model, num_timesteps=len(betas))
    rows = model.tensors["label_emb.weight"].shape[0] if model.spec.model.class_cond else None
    config = unet_config(model.spec, label_rows=rows)
    scheduler = scheduler_config(model.spec.diffusion, respacing=respacing)
    index = {
        "_class_name": "DDPMPipeline",
        "_diffusers_version": config["_diffusers_version"],
        "scheduler": ["diffusers", "DDPMScheduler"],
        "unet": ["diffusers", "UNet2DModel"],
    }
    for place, value in (("model_index.json", index), ("unet/config.json", config), ("scheduler/scheduler_config.json", scheduler)):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(model, name=name, library="diffusers"), encoding="utf-8")
    layout = layout_of(model.spec)
    weights = folder / "unet" / WEIGHTS_FILES[0]
    _save_diffusers(weights, model, layout)
    if use_up:
        model.tensors.clear()
    before.check_weights(from_diffusers(read_weights(str(weights)).tensors, layout), name=weights.name)
    if model.classes:
        (folder / LABELS_FILE).write_text(labels_json(model), encoding="utf-8")
    try:
        import diffusers
    except ImportError:
        say("diffusers is not installed, so nothing was compared with it (pip install diffusers)")
    else:
        _compare_diffusers(diffusers, before, betas, config, scheduler, weights, tolerance, say)
    say(f"{weights.name}: sha256 {sha256_of(str(weights))}")


def _save_diffusers(path: Path, model: Model, layout: Any) -> None:
    from safetensors.torch import save_file

    tensors = {name: tensor.contiguous() for name, tensor in to_diffusers(model.tensors, layout).items()}
    save_file(tensors, os.fspath(path), metadata={"format": "pt"})


def _compare_diffusers(
    diffusers: Any,
    before: _Before,
    betas: NDArray[np.float64],
    config: dict[str, Any],
    scheduler: dict[str, Any],
    weights: Path,
    tolerance: float,
    say: Say,
) -> None:
    """Runs diffusers' own network on what was written, and compares its betas."""
    theirs_betas = diffusers.DDPMScheduler.from_config(scheduler).betas.double().numpy()
    off = float(np.abs(theirs_betas - betas).max())
    if off > 1e-6:
        raise CheckpointError(
            f"DDPMScheduler's betas differ from the spec's by {off:.3g}", fix=f"report this with diffusers {diffusers.__version__}"
        )
    with torch.device("meta"):
        theirs = diffusers.UNet2DModel.from_config(config)
    try:
        theirs.load_state_dict(read_weights(str(weights)).tensors, assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"diffusers {diffusers.__version__} does not take the weights: {' '.join(str(error).split())[:300]}",
            fix="report this with the spec",
        ) from None
    theirs.eval()
    inputs = before.inputs
    labels = {} if inputs.y is None else {"class_labels": inputs.y}
    found = agree.compare(lambda: before.outputs, lambda: theirs(inputs.x, inputs.t, **labels).sample)
    agree.accept(found, who=f"this package and diffusers {diffusers.__version__}", tolerance=tolerance)
    say(f"diffusers {diffusers.__version__} says the same: {found.describe()}; betas differ by at most {off:.3g}")
