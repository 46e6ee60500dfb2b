"""Converts one network in a process of its own and says how long it took and how much memory it needed beyond what was there before.

python tests/convert/peak.py SOURCE TO [section.key=value ...]: prints JSON with seconds, peak_bytes and file_bytes.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from convert.weights import filled, small_spec

from iddpm_ray.convert.model import Given, flat
from iddpm_ray.convert.source import open_model
from iddpm_ray.convert.write import write_model
from iddpm_ray.spec.overrides import override


def main(source: str, to: str, *fields: str) -> None:
    """Warms every library up on a small network, then measures."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("warm.pt", "warm.safetensors", "warm"):
            write_model(filled(small_spec()), os.path.join(folder, name), say=lambda line: None)
    mapping: dict[str, object] = {}
    for field in fields:
        mapping = override(mapping, field)
    said: list[str] = []
    before = _peak()
    began = time.monotonic()
    write_model(open_model(source, given=Given(flat(mapping))), to, say=said.append, use_up=True)
    seconds = time.monotonic() - began
    path = Path(source)
    size = path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.rglob("*.safetensors"))
    print(json.dumps({"seconds": round(seconds, 2), "peak_bytes": _peak() - before, "file_bytes": size, "said": said}))


def _peak() -> int:
    """Bytes of this program alone: what getrusage says begins with the peak of whoever started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
