"""One call each gives what the commands give."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from train.small_run import run_url, small_spec, start, write_pictures

from iddpm_ray.evaluate.classifier import make_network
from iddpm_ray.evaluate.features import ClassifierFeatures
from iddpm_ray.evaluate.in_short import compare, estimated_bpd

nll = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "nll.py"))["main"]


def test_the_estimate_is_that_of_the_command(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    spec = small_spec(tmp_path, train={"duration": "2 steps"})
    start(spec)
    said = estimated_bpd(run_url(spec), str(tmp_path / "pictures"), count=20, strata=4)
    arguments = ["--data", str(tmp_path / "pictures"), "--count", "20", "--strata", "4", "--estimate", "--workers", "0"]
    assert nll([run_url(spec), *arguments, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert said.startswith(f"{found['bpd']:.4f} +- {found['standard_error']:.4f} bits a dimension (estimated")


def test_samples_are_compared_with_references_by_name() -> None:
    torch.manual_seed(0)
    features = ClassifierFeatures(make_network((1, 8, 8), num_classes=3).eval(), "digits-classifier", "", (1, 8, 8))
    pictures = torch.randint(0, 256, (300, 1, 8, 8), dtype=torch.uint8)
    same = compare(pictures, pictures, features=features)
    other = compare(pictures // 4, pictures, features=features)
    assert same.metrics["fid[digits-classifier]"] == pytest.approx(0, abs=1e-5)
    assert other.metrics["fid[digits-classifier]"] > 100 * same.metrics["fid[digits-classifier]"]
