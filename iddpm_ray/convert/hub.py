"""`hf://org/name@revision`: files of a repository on the Hugging Face hub, kept by huggingface_hub's own cache."""

import re
from dataclasses import dataclass
from pathlib import Path

from iddpm_ray import storage
from iddpm_ray.errors import CheckpointError, SpecError

_URL = re.compile(r"hf://([\w.-]+/[\w.-]+?)(?:@([\w.\-/]+?))?(?:/([\w./-]+\.(?:safetensors|pt|pth|bin)))?/?")
_FOLDER_FILES = ["*.json", "*.safetensors", "unet/*", "scheduler/*"]


@dataclass(frozen=True)
class Fetched:
    """What a URL of the hub holds: the path of a file or folder on this machine, and the URL with the commit that it is."""

    path: str
    pinned: str


def is_hub(url: str) -> bool:
    """Whether a URL is of the hub."""
    return storage.scheme(url) == "hf"


def fetch(url: str) -> Fetched:
    """Brings a file, or the folder of a model, to this machine; what is there already is not asked for again.

    Raises:
        SpecError: no such URL can be, or huggingface_hub is not installed.
        CheckpointError: it cannot be fetched; says why.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise SpecError(
            "the URL", value=url, fix="write hf://org/name@revision for a model's folder, or hf://org/name@revision/file.safetensors"
        )
    repository, revision, file = found.groups()
    try:
        from huggingface_hub import hf_hub_download, snapshot_download
    except ImportError:
        raise SpecError("hf:// needs a package that is not installed", value=url, fix="pip install huggingface_hub") from None
    try:
        if file is not None:
            path = Path(hf_hub_download(repository, file, revision=revision))
            commit = path.parts[-1 - len(Path(file).parts)]
        else:
            path = Path(snapshot_download(repository, revision=revision, allow_patterns=_FOLDER_FILES))
            commit = path.name
    except Exception as error:  # the hub's client raises many kinds, and those of its connection
        raise CheckpointError(
            f"cannot fetch {url} ({storage.reason(error)})",
            fix="check name, revision and network (HF_TOKEN for a private one), or copy the files here and name their folder",
        ) from None
    return Fetched(str(path), f"hf://{repository}@{commit}" + (f"/{file}" if file else ""))
