"""Laws of drawing from a run: picture i depends on seed and i alone, a cascade is its two halves, and what cannot be drawn is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluate.drawn_runs import LARGE, SUPERRES, trained

from iddpm_ray.errors import DataError, SpecError
from iddpm_ray.evaluate import npz, output
from iddpm_ray.evaluate.classes import of_array
from iddpm_ray.evaluate.digits import load_digit_files
from iddpm_ray.evaluate.drawing import Arithmetic, Drawing, make_drawing
from iddpm_ray.evaluate.generate import Job, Painter, generate_here, make_job, sample_run
from iddpm_ray.evaluate.trained import find_source

FAST = {"respacing": "4"}


@dataclass(frozen=True)
class Runs:
    """Directories of runs: digits of 8 pixels; the same without classes; others of 4; 8 to 16 without and with noise levels."""

    digits: str
    plain: str
    other: str
    enlarging: str
    noised: str


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("generate")
    noised: Mapping[str, Any] = {**SUPERRES, "low_res_noise": 10}
    held_out = {**LARGE, "validation_fraction": 0.1}
    sampled = {"every": "2 steps", "count": 3, "respacing": "3", "low_res_noise": 5}
    return Runs(
        digits=trained(root, "digits", model={"class_dropout": 0.2})[1],
        plain=trained(root, "plain", data={"labels": "none"}, model={"class_cond": False})[1],
        other=trained(root, "other", data={"image_size": 4})[1],
        enlarging=trained(root, "enlarging", model=SUPERRES, data=LARGE)[1],
        noised=trained(root, "noised", model=noised, sample=sampled, data=held_out, log={"validate_every": "2 steps"})[1],
    )


def drawing(run: str, **wanted: object) -> Drawing:
    return make_drawing(find_source(run), arithmetic=Arithmetic(), **{**FAST, **wanted})


def job(run: str, *, count: int | None = 10, base: Drawing | str | None = None, batch: int = 4, seed: int = 0, **wanted: object) -> Job:
    return make_job(drawing(run, **wanted), seed=seed, count=count, batch=batch, labels=None, base=base, threads=1)


def pictures(job: Job, folder: Path) -> np.ndarray:
    chunks = generate_here(job, str(folder))
    output.write_output(job, chunks, form="npz")
    with np.load(output.output_url(job, str(folder), form="npz")) as found:
        return found["arr_0"]


def test_a_picture_is_the_same_in_any_company(runs: Runs) -> None:
    labels = torch.arange(6) % 10
    together = sample_run(runs.digits, count=6, labels=labels, respacing="4", batch=6)
    apart = sample_run(runs.digits, count=6, labels=labels, respacing="4", batch=2)
    assert together.shape == (6, 1, 8, 8)
    assert (together.int() - apart.int()).abs().max() <= 1  # batches of another size round otherwise
    assert torch.equal(together, sample_run(runs.digits, count=6, labels=labels, respacing="4", batch=6))
    assert torch.equal(together[:5], sample_run(runs.digits, count=5, labels=labels[:5], respacing="4", batch=6))
    assert not torch.equal(together, sample_run(runs.digits, count=6, labels=labels, respacing="4", batch=6, seed=1))


def test_a_job_that_is_killed_and_goes_on_gives_the_same_bytes(runs: Runs, tmp_path: Path) -> None:
    whole = job(runs.digits)
    wanted = pictures(whole, tmp_path / "whole")
    assert wanted.shape == (10, 8, 8, 1)
    halves = whole.claim(str(tmp_path / "halves"))
    first = generate_here(whole, str(tmp_path / "whole"))
    halves.commit(2, first.read(2))  # what another worker had done before it was killed
    assert np.array_equal(pictures(job(runs.digits), tmp_path / "halves"), wanted)
    files = [(tmp_path / name / "samples_10x8x8x1.npz").read_bytes() for name in ("whole", "halves")]
    assert files[0] == files[1]
    fewer = pictures(job(runs.digits, count=6), tmp_path / "fewer")
    assert np.array_equal(fewer, wanted[:6])
    other = pictures(job(runs.digits, method="dpmpp"), tmp_path / "other")
    assert not np.array_equal(other, wanted)


def test_another_job_never_goes_on_in_the_same_folder(runs: Runs, tmp_path: Path) -> None:
    job(runs.digits).claim(str(tmp_path))
    for changed in (
        job(runs.digits, seed=1),
        job(runs.digits, batch=5),
        job(runs.digits, guidance=2.0),
        job(runs.other),
        job(runs.digits, ema=0.9),
    ):
        with pytest.raises(SpecError, match="holds the output of another job"):
            changed.claim(str(tmp_path))


def test_guidance_and_its_interval_change_pictures(runs: Runs, tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [{}, {"guidance": 8.0}, {"guidance": 8.0, "guidance_interval": (0, 4)}]
    drawn = [Painter(job(runs.digits, **way))(torch.arange(4)).pictures for way in ways]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    everywhere = Painter(job(runs.digits, guidance=8.0, guidance_interval=(0, 19)))(torch.arange(4)).pictures
    assert torch.equal(everywhere, drawn[1])
    nowhere = Painter(job(runs.digits, guidance=8.0, guidance_interval=(1, 1)))(torch.arange(4)).pictures  # which respacing left out
    assert torch.equal(nowhere, drawn[0])


def test_a_cascade_is_the_base_run_and_then_the_other_on_its_npz(runs: Runs, tmp_path: Path) -> None:
    first = job(runs.digits)
    base = pictures(first, tmp_path / "base")
    at_once = job(runs.enlarging, base=drawing(runs.digits))
    wanted = pictures(at_once, tmp_path / "at_once")
    url = str(tmp_path / "base" / "samples_10x8x8x1.npz")
    in_two = job(runs.enlarging, base=url, count=None)
    assert in_two.count == 10
    assert in_two.labels is not None
    assert in_two.labels.at(torch.arange(10)).tolist() == list(range(10))
    assert np.array_equal(pictures(in_two, tmp_path / "in_two"), wanted)
    assert wanted.shape == (10, 16, 16, 1)
    chunks = generate_here(at_once, str(tmp_path / "at_once"))
    kept = [npz.decode(data, name="chunk") for data in chunks.read_all()]
    assert np.array_equal(np.concatenate([one["low_res"] for one in kept]), base)
    assert np.concatenate([one["arr_1"] for one in kept]).tolist() == list(range(10))
    assert not np.array_equal(pictures(job(runs.enlarging, base=drawing(runs.digits, method="ddim")), tmp_path / "other"), wanted)
    assert output.write_grid(chunks, count=10).endswith("grid.png")


def test_the_noise_level_of_the_condition_is_told_and_by_number(runs: Runs) -> None:
    base = drawing(runs.digits)
    drawn = [Painter(job(runs.noised, base=base, low_res_noise=level))(torch.arange(4)).pictures for level in (0, 10)]
    assert not torch.equal(drawn[0], drawn[1])
    again = Painter(job(runs.noised, base=base, low_res_noise=10))(torch.arange(4)).pictures
    assert torch.equal(drawn[1], again)
    with pytest.raises(SpecError, match=r"sample.low_res_noise \(got 11\): should be at most model.low_res_noise, 10"):
        job(runs.noised, base=base, low_res_noise=11)
    with pytest.raises(SpecError, match=r"sample.low_res_noise \(got 1\): should be at most model.low_res_noise, 0"):
        job(runs.enlarging, base=base, low_res_noise=1)


def test_what_cannot_be_drawn_is_refused(runs: Runs, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"sample.guidance \(got 2.0\): needs a network trained with model.class_dropout"):
        job(runs.other, guidance=2.0)
    with pytest.raises(SpecError, match=r"sample.respacing \(got .*21.*\): asks for 21 timesteps where there are 20"):
        job(runs.digits, respacing="21")
    with pytest.raises(SpecError, match=r"sample.ema \(got 0.5\): should be one of optim.ema_rates"):
        job(runs.digits, ema=0.5)
    with pytest.raises(SpecError, match=r"no such class \(got 10\)"):
        sample_run(runs.digits, count=2, labels=torch.tensor([0, 10]))
    with pytest.raises(SpecError, match="the network enlarges pictures, and there are none: give --base"):
        job(runs.enlarging)
    with pytest.raises(SpecError, match=r"--base .* is for networks that enlarge"):
        job(runs.digits, base=drawing(runs.other))
    with pytest.raises(DataError, match="the base pictures are 4 x 4 of 1 channels: the network enlarges pictures of 8 x 8 of 1 channels"):
        job(runs.enlarging, base=drawing(runs.other))
    with pytest.raises(SpecError, match="is a network that enlarges itself"):
        job(runs.enlarging, base=drawing(runs.enlarging))
    npz.write_pictures(str(tmp_path / "big.npz"), [np.zeros((3, 9, 9, 1), dtype=np.uint8)], shape=(3, 9, 9, 1), labels=None)
    with pytest.raises(DataError, match="the base pictures are 9 x 9"):
        job(runs.enlarging, base=str(tmp_path / "big.npz"))
    small = [np.zeros((3, 8, 8, 1), dtype=np.uint8)]
    npz.write_pictures(str(tmp_path / "few.npz"), small, shape=(3, 8, 8, 1), labels=np.array([7, 7, 1]))
    with pytest.raises(DataError, match=r"the base file has 3 pictures \(got 10 wanted\): ask for --count 3 or fewer"):
        job(runs.enlarging, base=str(tmp_path / "few.npz"))
    whole = bytearray((tmp_path / "few.npz").read_bytes())
    whole[250] ^= 1
    (tmp_path / "few.npz").write_bytes(whole)
    with pytest.raises(DataError, match=r"few\.npz is damaged or cut short: make or copy it again"):
        job(runs.enlarging, base=str(tmp_path / "few.npz"), count=1)
    labels = of_array(np.array([0, 1]), num_classes=10)
    with pytest.raises(DataError, match="the file of classes has 2 pictures"):
        make_job(drawing(runs.digits), seed=0, count=3, batch=2, labels=labels, base=None, threads=1)


def test_small_pictures_without_a_class_are_given_none(runs: Runs, tmp_path: Path) -> None:
    url = str(tmp_path / "plain.npz")
    npz.write_pictures(url, [np.zeros((3, 8, 8, 1), dtype=np.uint8)], shape=(3, 8, 8, 1), labels=None)
    for base in (url, drawing(runs.plain)):
        with pytest.raises(SpecError, match="--classes: the base pictures say no class: name the class of each, or balanced"):
            job(runs.enlarging, base=base, count=None)
    said = of_array(np.array([7, 7, 1]), num_classes=10)
    known = make_job(drawing(runs.enlarging), seed=0, count=None, batch=4, labels=said, base=url, threads=1)
    assert known.labels is said


@pytest.mark.slow
def test_an_upsampler_learns_to_paint_what_it_is_given(tmp_path: Path) -> None:
    """What it draws, made small again, is nearer to its own small picture than to another's, by far."""
    sections: dict[str, Mapping[str, Any]] = {
        "model": {**SUPERRES, "channel_mult": [1, 1], "low_res_noise": 5},
        "data": LARGE,
        "diffusion": {"predicts": "x_start"},  # so short a training would leave eps too wrong where there is hardly a picture left
        "train": {"duration": "200 steps", "global_batch": 16},
        "checkpoint": {"every": "200 steps"},
        "optim": {"lr": 2e-3},
    }
    _, run = trained(tmp_path, "learned", **sections)
    real = load_digit_files(tmp_path / "pictures", size=(16, 16))
    large, labels = real.pictures[:16, 0].numpy(), real.labels[:16].numpy()
    small = _halved(large).round().astype(np.uint8)[..., None]  # as training makes the condition
    npz.write_pictures(str(tmp_path / "small.npz"), [small], shape=small.shape, labels=labels)
    enlarged = pictures(job(run, base=str(tmp_path / "small.npz"), count=None, respacing="", ema=0.9), tmp_path / "drawn")[..., 0]
    distances = np.abs(_halved(enlarged)[:, None] - small[None, ..., 0].astype(float)).mean(axis=(2, 3))
    own = distances.diagonal().mean()
    others = distances[~np.eye(16, dtype=bool)].mean()
    assert own < 0.4 * others, (own, others)


def _halved(pictures: np.ndarray) -> np.ndarray:
    """The means of [N, 16, 16] over squares of two pixels, [N, 8, 8]."""
    return pictures.reshape(-1, 8, 2, 8, 2).mean(axis=(2, 4))
