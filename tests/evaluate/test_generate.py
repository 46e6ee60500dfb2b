"""Laws of drawing from a run: picture i depends on seed and i alone, and what cannot be drawn is refused."""

from pathlib import Path

import pytest
import torch
from train.small_run import run_url, small_spec, start, write_pictures

from iddpm_ray.errors import CheckpointError, SpecError
from iddpm_ray.evaluate.generate import load_trained, sample_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("generate")
    write_pictures(root / "pictures")
    spec = small_spec(root, train={"duration": "2 steps"})
    start(spec)
    return run_url(spec)


def test_a_picture_is_the_same_in_any_company(run: str) -> None:
    labels = torch.arange(6) % 10
    together = sample_run(run, count=6, labels=labels, respacing="4", batch=6)
    apart = sample_run(run, count=6, labels=labels, respacing="4", batch=2)
    assert together.shape == (6, 1, 8, 8)
    assert (together.int() - apart.int()).abs().max() <= 1  # batches of another size round otherwise
    assert torch.equal(together, sample_run(run, count=6, labels=labels, respacing="4", batch=6))
    assert not torch.equal(together, sample_run(run, count=6, labels=labels, respacing="4", batch=6, seed=1))


def test_averages_and_raw_weights_are_different_networks(run: str) -> None:
    raw, average = load_trained(run, ema=None), load_trained(run, ema=0.9)
    assert raw.step == average.step == 2
    assert raw.classes == tuple(str(digit) for digit in range(10))
    pairs = zip(raw.network.parameters(), average.network.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in pairs)


def test_what_cannot_be_drawn_is_refused(run: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="keeps no such average"):
        load_trained(run, ema=0.5)
    with pytest.raises(SpecError, match="class-conditional"):
        sample_run(run, count=1)
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        load_trained(str(tmp_path), ema=None)
