"""The network's compiled code, kept beside the run or wherever the spec says, so that a start on a fresh machine need not compile.

What is kept is machine code: a place that others may write to would let them run theirs.
"""

import hashlib
import json
import logging
from dataclasses import dataclass

import torch

from iddpm_ray import storage
from iddpm_ray.data.order import slice_of
from iddpm_ray.parallel.collective import world_size
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.conditions import device_model

_log = logging.getLogger(__name__)


@dataclass
class CompiledCode:
    """A folder for each network, cut of the global batch, device and version of torch; torch itself checks whether what is in it fits.

    Attributes:
        kept: what this process had compiled when code was taken or kept last; None if there is none of use.
    """

    url: str
    kept: int | None = None

    @classmethod
    def of(cls, spec: JobSpec, run_url: str, *, device: torch.device) -> "CompiledCode | None":
        """Where the code of this run's network lies; None if it is not compiled."""
        if not spec.optim.compile:
            return None
        folder = spec.optim.compile_cache or storage.join(run_url, "compiled")
        optim = spec.optim
        what = [spec.model.model_dump(mode="json"), spec.data.height_width(), spec.data.channels, optim.precision, optim.channels_last]
        first = slice_of(spec.train.global_batch, rank=0, world_size=world_size())  # of the rank that keeps its code
        where = [device_model(device), torch.__version__]
        key = hashlib.sha256(json.dumps([what, [first.stop, optim.microbatch], where], sort_keys=True).encode()).hexdigest()[:16]
        return cls(storage.join(folder, key))

    def take(self) -> bool:
        """Gives torch what is there; whether there was anything of use. What cannot be read is compiled anew."""
        found = False
        try:
            for file in storage.find(self.url):
                found |= torch.compiler.load_cache_artifacts(storage.read_bytes(storage.join(self.url, file.path))) is not None
        except Exception as error:  # only time is lost
            _log.warning("compiled code could not be read: %s", storage.reason(error))
        if found:
            self.kept = _compiled()
        return found

    def keep(self) -> None:
        """Keeps for the next start what was compiled and did not come from there; for one rank, after every step."""
        if self.kept == _compiled():
            return
        self.kept = _compiled()
        try:
            kept = torch.compiler.save_cache_artifacts()
            if kept is not None:  # in a file of its own, for torch reads only what was added last out of what it saves a second time
                storage.write_whole(storage.join(self.url, f"{hashlib.sha256(kept[0]).hexdigest()[:16]}.bin"), kept[0])
        except Exception as error:  # as above
            _log.warning("compiled code could not be kept: %s", storage.reason(error))


def _compiled() -> int:
    """Pieces of code that this process had to make itself."""
    from torch._dynamo.utils import counters  # seconds of imports, which a network that is not compiled does without

    return counters["inductor"]["fxgraph_cache_miss"]
