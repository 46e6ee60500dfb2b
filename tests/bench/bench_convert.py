"""Conversions in processes of their own: how long they take against a plain rewriting of the file, and how much memory they need."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from bench_sample import network_of
from our_step import bench_spec
from timing import Comparison, Effort

from iddpm_ray.convert.model import Model

TESTS = Path(__file__).parents[1]
FIELDS = (
    "data.image_size=32",
    "data.labels=folder",
    "model.num_head_channels=64",
    "model.qkv_order=heads_first",
    "model.class_dropout=0.1",
    "diffusion.timesteps=1000",
    "diffusion.schedule=cosine",
    "diffusion.rescale_timesteps=true",
    "diffusion.predicts=eps",
    "diffusion.variance=learned_range",
    "model.dropout=0",
)
NOTE = "a process of its own whose libraries are warm; read, converted, written, read back and run before it is put in place"


def results(effort: Effort) -> list[Comparison]:
    """For each conversion seconds against torch.load and torch.save of the same file, and its peak of memory against the file's size."""
    out: list[Comparison] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        source = folder / "openai.pt"
        torch.save(_model(effort).tensors, source)
        for target, fields in (("ours.safetensors", FIELDS), ("diffusers", ()), ("back.pt", ())):
            runs = [_convert(source, folder / f"{number}-{target}", fields) for number in range(effort.of(3, quick=1))]
            plain = tuple(_rewritten(folder / "openai.pt", folder / "plain.pt") for _ in runs)
            seconds, peaks = tuple(one["seconds"] for one in runs), tuple(float(one["peak_bytes"]) for one in runs)
            sizes = tuple(float(one["file_bytes"]) for one in runs)
            what = f"{source.name.partition('-')[2] or source.name} to {target}, {sizes[0] / 2**20:.0f} MiB"
            out += [
                Comparison(f"conversion, {what}", seconds, plain, "jobs/convert.py", "torch.load and torch.save", note=NOTE),
                Comparison(f"memory of a conversion, {what}", peaks, sizes, "peak", "the file", at_most=2.0, note=NOTE, unit="bytes"),
            ]
            source = folder / "0-ours.safetensors"
    return out


def _model(effort: Effort) -> Model:
    large = {
        "num_channels": 128,
        "num_res_blocks": 2,
        "channel_mult": [1, 2, 3],
        "attention_resolutions": [16],
        "num_head_channels": 64,
        "qkv_order": "heads_first",
        "class_dropout": 0.1,
    }
    small = {"num_channels": 64, "num_res_blocks": 1, "channel_mult": [1, 1]} if effort.quick else {}
    sections = {"model": {**large, **small}, "diffusion": {"rescale_timesteps": True}}
    return network_of(bench_spec(size=32, channels=3, batch=1, sections=sections))


def _convert(source: Path, target: Path, fields: tuple[str, ...]) -> dict[str, float]:
    """What tests/convert/peak.py measured of it."""
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(str(place) for place in (TESTS.parent, TESTS, TESTS / "parity"))}
    command = [sys.executable, str(TESTS / "convert" / "peak.py"), str(source), str(target), *fields]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def _rewritten(source: Path, target: Path) -> float:
    began = time.perf_counter()
    torch.save(torch.load(source, weights_only=True), target)
    return time.perf_counter() - began
