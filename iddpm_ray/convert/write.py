"""Writes a network in another format, reads it back, and keeps what was written only if both say the same."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
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
    model: Model, url: str, *, say: Say, overwrite: bool = False, respacing: str | None = None, tolerance: float = agree.TOLERANCE
) -> None:
    """Writes the network where and as the URL's ending says: `.safetensors`, `.pt`, or else a folder of diffusers.

    Args:
        say: told what was compared and what was written.
        overwrite: replace what is there.
        respacing: for diffusers, export the process shortened so.
        tolerance: of outputs, as a share of the largest.

    Raises:
        CheckpointError: the format cannot express the network, what was written does not say the same, or cannot be written.
    """
    name = storage.name(url)
    check_free(url, overwrite=overwrite)
    if respacing is not None and url.endswith((".safetensors", *PICKLES)):
        raise SpecError("--respacing", value=respacing, fix="has no effect but on a folder of diffusers, whose scheduler holds the process")
    if url.endswith(".safetensors"):
        beside = f"{name.removesuffix('.safetensors')}.md"
        write_files(url, lambda folder: _safetensors(model, Path(folder), name, beside, say), overwrite=overwrite, beside=(beside,))
    elif url.endswith(PICKLES):
        write_files(url, lambda folder: _openai(model, Path(folder) / name, say), overwrite=overwrite)
    else:
        write_folder(url, lambda folder: _diffusers(model, Path(folder), name, respacing, tolerance, say), overwrite=overwrite)


def _safetensors(model: Model, folder: Path, name: str, beside: str, say: Say) -> None:
    path = folder / name
    write_safetensors(str(path), model)
    (folder / beside).write_text(card(model, name=name, library="iddpm_ray"), encoding="utf-8")
    file = read_weights(str(path))
    back = model_of(file.tensors, file.metadata, name=name)
    if (back.spec, back.classes) != (model.spec, model.classes):
        raise CheckpointError(f"{name} does not give its spec and classes back", fix="report this with the spec")
    _same_weights(model.tensors, back.tensors, name=name)
    _same_outputs(model, back, say=say)
    say(f"{name}: sha256 {file.sha256}")


def _openai(model: Model, path: Path, say: Say) -> None:
    """As OpenAI's programs save: a state dict by torch.save."""
    names = model.network().state_dict()
    torch.save({name: model.tensors[name].contiguous() for name in names}, path)
    file = read_weights(str(path))
    recognise({key: tuple(tensor.shape) for key, tensor in file.tensors.items()}, name=path.name)
    _same_weights(model.tensors, file.tensors, name=path.name)
    _same_outputs(model, Model(model.spec, model.classes, file.tensors, path.name), say=say)
    say(f"{path.name}: sha256 {file.sha256}")


def _same_weights(before: dict[str, Tensor], after: dict[str, Tensor], *, name: str) -> None:
    wrong = [
        key for key in before.keys() | after.keys() if key not in before or key not in after or not torch.equal(before[key], after[key])
    ]
    if wrong:
        raise CheckpointError(f"{name} does not give {sorted(wrong)[0]} back as it was", fix="mend the disk, or report this")


def _same_outputs(before: Model, after: Model, *, say: Say) -> None:
    one, other = before.network(), after.network()
    inputs = agree.fixed_inputs(one, num_timesteps=before.spec.diffusion.timesteps)
    found = agree.compare(lambda: inputs.ours(one), lambda: inputs.ours(other))
    if found.difference != 0:
        raise CheckpointError(f"outputs before and after differ: {found.describe()}", fix="report this with the spec")
    say(f"{len(before.tensors)} tensors equal, outputs before and after equal: {found.describe()}")


def _diffusers(model: Model, folder: Path, name: str, respacing: str | None, tolerance: float, say: Say) -> None:
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
    layout = layout_of(model.spec)
    weights = folder / "unet" / WEIGHTS_FILES[0]
    _save_diffusers(weights, model, layout)
    _same_weights(model.tensors, from_diffusers(read_weights(str(weights)).tensors, layout), name=weights.name)
    if model.classes:
        (folder / LABELS_FILE).write_text(labels_json(model), encoding="utf-8")
    (folder / "README.md").write_text(card(model, name=name, library="diffusers"), encoding="utf-8")
    try:
        import diffusers
    except ImportError:
        say("diffusers is not installed, so nothing was compared with it (pip install diffusers)")
    else:
        _compare_diffusers(diffusers, model, config, scheduler, weights, respacing, tolerance, say)
    say(f"{weights.name}: sha256 {sha256_of(str(weights))}")


def _save_diffusers(path: Path, model: Model, layout: Any) -> None:
    from safetensors.torch import save_file

    tensors = {name: tensor.contiguous() for name, tensor in to_diffusers(model.tensors, layout).items()}
    save_file(tensors, os.fspath(path), metadata={"format": "pt"})


def _compare_diffusers(
    diffusers: Any,
    model: Model,
    config: dict[str, Any],
    scheduler: dict[str, Any],
    weights: Path,
    respacing: str | None,
    tolerance: float,
    say: Say,
) -> None:
    """Runs diffusers' own network on what was written, and compares its betas."""
    theirs_betas = diffusers.DDPMScheduler.from_config(scheduler).betas.double().numpy()
    betas = process_of(model.spec.diffusion, respacing=respacing).tables.betas.numpy()
    off = float(np.abs(theirs_betas - betas).max())
    if off > 1e-6:
        raise CheckpointError(
            f"DDPMScheduler's betas differ from the spec's by {off:.3g}", fix=f"report this with diffusers {diffusers.__version__}"
        )
    ours = model.network()
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
    inputs = agree.fixed_inputs(ours, num_timesteps=len(betas))
    labels = {} if inputs.y is None else {"class_labels": inputs.y}
    found = agree.compare(lambda: inputs.ours(ours), lambda: theirs(inputs.x, inputs.t, **labels).sample)
    agree.accept(found, who=f"this package and diffusers {diffusers.__version__}", tolerance=tolerance)
    say(f"diffusers {diffusers.__version__} says the same: {found.describe()}; betas differ by at most {off:.3g}")
