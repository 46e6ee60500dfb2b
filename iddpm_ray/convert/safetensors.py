"""A network in one safetensors file that knows what it is: the weights, and in the header its spec and its classes."""

import json
from collections.abc import Mapping

from safetensors.torch import save_file
from torch import Tensor

from iddpm_ray.convert.model import Model
from iddpm_ray.errors import CheckpointError
from iddpm_ray.spec.text import dump_yaml, load_text

SPEC, CLASSES, ORIGIN = "iddpm_ray.spec", "iddpm_ray.classes", "iddpm_ray.origin"


def write_safetensors(path: str, model: Model) -> None:
    """Writes the file; the tensors are not copied."""
    metadata = {
        "format": "pt",
        SPEC: dump_yaml(model.spec),
        CLASSES: json.dumps(list(model.classes), ensure_ascii=False),
        ORIGIN: model.origin,
    }
    save_file({name: tensor.contiguous() for name, tensor in model.tensors.items()}, path, metadata=metadata)


def knows_itself(metadata: Mapping[str, str]) -> bool:
    """Whether a file's header holds a spec."""
    return SPEC in metadata


def model_of(tensors: dict[str, Tensor], metadata: Mapping[str, str], *, name: str) -> Model:
    """The network of a file that knows itself.

    Args:
        name: of the file, for errors and as its origin.

    Raises:
        CheckpointError: the header is no spec or names no classes.
        SpecError: the spec is not one of this version.
    """
    spec = load_text(metadata[SPEC], source=f"the spec in {name}")
    try:
        classes = json.loads(metadata.get(CLASSES, "[]"))
        if not isinstance(classes, list) or not all(isinstance(one, str) for one in classes):
            raise ValueError
    except (ValueError, RecursionError):
        raise CheckpointError(f"{name}: {CLASSES} in its header is no list of names", fix="make the file again") from None
    return Model(spec, tuple(classes), tensors, name)
