"""The network's compiled code, kept beside the run or wherever the spec says, so that a start on a fresh machine need not compile.

What is kept is machine code: a place that others may write to would let them run theirs.
"""

import hashlib
import json
import logging
from dataclasses import dataclass

import torch

from iddpm_ray import storage
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.conditions import device_model

_log = logging.getLogger(__name__)


@dataclass
class CompiledCode:
    """One file a network, device and version of torch; torch itself checks whether what is in it fits.

    Attributes:
        taken: whether there is no need to keep anything.
    """

    url: str
    taken: bool = False

    @classmethod
    def of(cls, spec: JobSpec, run_url: str, *, device: torch.device) -> "CompiledCode | None":
        """Where the code of this run's network lies; None if it is not compiled."""
        if not spec.optim.compile:
            return None
        folder = spec.optim.compile_cache or storage.join(run_url, "compiled")
        optim = spec.optim
        what = [spec.model.model_dump(mode="json"), spec.data.height_width(), spec.data.channels, optim.precision, optim.channels_last]
        where = [device_model(device), torch.__version__]
        key = hashlib.sha256(json.dumps([what, where], sort_keys=True).encode()).hexdigest()[:16]
        return cls(storage.join(folder, f"{key}.bin"))

    def take(self) -> bool:
        """Gives torch what is there; whether there was anything of use. What cannot be read is compiled anew."""
        try:
            info = torch.compiler.load_cache_artifacts(storage.read_bytes(self.url)) if storage.exists(self.url) else None
        except Exception as error:  # only time is lost
            _log.warning("compiled code could not be read: %s", storage.reason(error))
            return False
        self.taken = info is not None
        return self.taken

    def keep(self) -> None:
        """Keeps what was compiled for the next start, once, unless it came from there; for one rank, after its first step."""
        if self.taken:
            return
        self.taken = True
        try:
            kept = torch.compiler.save_cache_artifacts()
            if kept is not None:
                storage.write_whole(self.url, kept[0])
        except Exception as error:  # as above
            _log.warning("compiled code could not be kept: %s", storage.reason(error))
