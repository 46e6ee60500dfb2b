"""A conversion needs at most twice the memory of the file, whatever libraries need by themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from convert.weights import GUIDED, LABELS, SAID, filled, spec_of

TESTS = Path(__file__).parents[1]
LARGE = {**LABELS, "model.num_channels": 128, "model.channel_mult": [1, 2, 3], "model.num_res_blocks": 2, "data.channels": 3}
TOLD = {**{path: value for path, value in SAID.items() if not path.startswith("model.num_heads")}, "model.num_head_channels": 64}


@pytest.fixture(scope="module", name="large")
def large_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of about 45 M parameters as OpenAI saves it."""
    torch.manual_seed(0)
    spec = spec_of(
        {**GUIDED, **LARGE, "model.qkv_order": "heads_first", "diffusion.rescale_timesteps": True, "diffusion.schedule": "cosine"}
    )
    tensors = {name: 0.02 * torch.randn(tensor.shape) for name, tensor in filled(spec, on="meta").tensors.items()}
    path = tmp_path_factory.mktemp("large") / "large.pt"
    torch.save(tensors, path)
    return path


@pytest.mark.slow  # three processes that import everything, and networks of 45 M parameters
def test_each_conversion_needs_at_most_twice_the_file(large: Path) -> None:
    """From OpenAI's file to one that knows itself, and from there to diffusers (with its own network beside ours) and back."""
    told = [f"{path}={str(value).lower() if isinstance(value, bool) else value}" for path, value in TOLD.items()]
    surroundings = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS), str(TESTS / "parity"), os.environ.get("PYTHONPATH", "")]),
    }
    source = large
    for name, fields in (("a.safetensors", [*told, "model.class_dropout=0.1"]), ("folder", []), ("b.pt", [])):
        done = subprocess.run(
            [sys.executable, str(TESTS / "convert" / "peak.py"), str(source), str(large.parent / name), *fields],
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        measured = json.loads(done.stdout.splitlines()[-1])
        ratio = measured["peak_bytes"] / measured["file_bytes"]
        print(f"{source.name} to {name}: {ratio:.2f} x {measured['file_bytes']:,} bytes, {measured['seconds']} s; {measured['said'][0]}")
        assert ratio <= 2
        source = large.parent / ("a.safetensors" if name == "folder" else name)
