"""The peers are fair: they compute what ours computes, only in the slow way."""

import io
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from bench import ORDER, document
from our_step import OurTrainer, bench_spec
from plain_loader import Files, Rows, endless_batches
from plain_sample import PlainProcess, bits, draw
from plain_step import PlainTables, PlainTrainer
from timing import Comparison, NotRun, compare, spread, timed

from iddpm_ray import stats
from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose
from iddpm_ray.diffusion.gaussian import LossType, MeanType, VarianceType
from iddpm_ray.diffusion.loss import training_losses
from iddpm_ray.diffusion.respace import make_diffusion
from iddpm_ray.diffusion.seeded import NOISES_A_PICTURE, Way, draw_pictures
from iddpm_ray.evaluate.nll import Pictures, seeded_noise, whole_bound
from iddpm_ray.models.unet import UNet
from iddpm_ray.models.weights import init_weights


def small_network() -> UNet:
    network = UNet(
        image_channels=1, model_channels=32, out_channels=2, num_res_blocks=1, attention_factors=(2,), channel_mult=(1, 1), num_classes=3
    )
    init_weights(network, seed=1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return network


@pytest.mark.parametrize("num_timesteps", [10, 1000])
def test_the_plain_step_has_our_losses(num_timesteps: int) -> None:
    torch.set_num_threads(1)
    network = small_network()
    diffusion = make_diffusion(
        schedule="cosine",
        num_timesteps=num_timesteps,
        sections=None,
        mean_type=MeanType.EPSILON,
        variance_type=VarianceType.LEARNED_RANGE,
        loss_type=LossType.RESCALED_MSE,
        rescale_timesteps=True,
    )
    generator = torch.Generator().manual_seed(0)
    x_start = torch.rand(6, 1, 8, 8, generator=generator) * 2 - 1
    labels, t = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 1, 3, num_timesteps // 2, num_timesteps - 2, num_timesteps - 1])
    torch.manual_seed(7)
    peer = PlainTrainer(network, PlainTables.cosine(num_timesteps)).losses(x_start, t, labels)
    torch.manual_seed(7)
    ours = training_losses(diffusion, network, x_start=x_start, t=t, noise=torch.randn_like(x_start), cond={"y": labels})
    assert ours.mse is not None
    assert ours.vb is not None
    torch.testing.assert_close(peer["mse"], ours.mse, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(peer["vb"], ours.vb, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(peer["loss"], ours.loss, rtol=1e-4, atol=1e-5)


def test_the_plain_loops_draw_our_pictures_and_measure_our_bits() -> None:
    torch.set_num_threads(1)
    network, given = small_network(), {"schedule": "cosine", "num_timesteps": 20, "rescale_timesteps": True}
    kinds = {"mean_type": MeanType.EPSILON, "variance_type": VarianceType.LEARNED_RANGE, "loss_type": LossType.RESCALED_MSE}
    shape, labels, indices = (1, 8, 8), torch.tensor([0, 1, 2]), torch.arange(3)
    few = make_diffusion(sections=[5], **given, **kinds)
    process = PlainProcess.cosine(20, kept=few.timestep_map.tolist())
    ours = draw_pictures(few, network, indices=indices, shape=shape, seed=0, cond={"y": labels}, way=Way())
    start = draws.normals(0, Purpose.SAMPLE_START, indices, shape)
    noises = [draws.normals(0, Purpose.SAMPLE_NOISE, indices * NOISES_A_PICTURE + done, shape) for done in range(5)]
    plain = draw(process, network, start, labels, noise=lambda done: noises[done])
    assert (ours.int() - plain.int()).abs().max() <= 1
    assert len(ours.unique()) > 20

    whole = make_diffusion(sections=None, **given, **kinds)
    pictures = Pictures(torch.rand(3, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1, indices, {"y": labels})
    noise = seeded_noise(pictures, num_timesteps=20, seed=0)
    bound = whole_bound(whole, network, pictures, noise=noise)
    found = bits(PlainProcess.cosine(20, kept=list(range(20))), network, pictures.x_start, labels, noise=noise)
    torch.testing.assert_close(found.total.double(), bound.total_bpd.double(), rtol=1e-4, atol=1e-4)
    for name in ("vb", "xstart_mse", "mse"):
        torch.testing.assert_close(getattr(found, name).double(), getattr(bound, name).double(), rtol=2e-3, atol=1e-4)


def test_the_plain_step_learns_and_books() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer = PlainTrainer(small_network(), PlainTables.cosine(20), lr=1e-3, ema_rate=0.9)
    before = [average.clone() for average in trainer.averages]
    x_start = torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8).repeat(8, 1, 1, 1)
    for _ in range(12):
        trainer.step(x_start, torch.zeros(8, dtype=torch.int64))
    assert sum(trainer.book["mse"][-3:]) < sum(trainer.book["mse"][:3])
    assert len(trainer.book["grad_norm"]) == 12
    assert sum(len(values) for name, values in trainer.book.items() if name.startswith("loss_q")) == 12 * 8
    assert all(not torch.equal(one, two) for one, two in zip(before, trainer.averages, strict=True))


def test_our_side_is_the_products_step_with_its_statistics() -> None:
    torch.set_num_threads(1)
    model = {"num_channels": 32, "num_res_blocks": 1, "channel_mult": [1], "attention_resolutions": []}
    spec = bench_spec(size=8, channels=1, batch=4, sections={"model": model, "diffusion": {"timesteps": 20}})
    ours = OurTrainer(spec, device=torch.device("cpu"))
    collector = stats.Collector(statistics=ours.statistics)
    pixels, labels = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8), torch.arange(4)
    for _ in range(3):
        outcome = ours.step(pixels, labels)
    collector.update()
    assert ours.kit.state.step == 3
    assert torch.isfinite(outcome.loss).all()
    assert (collector.num("loss"), collector.num("grad_norm")) == (3, 3)


def test_the_plain_loader_gives_every_file_once_an_epoch(tmp_path: Path) -> None:
    for number in range(7):
        Image.new("L", (2, 2), number).save(tmp_path / f"{number}.png")

    def decode(data: bytes) -> torch.Tensor:
        return torch.tensor([Image.open(io.BytesIO(data)).getpixel((0, 0))])

    paths = sorted(tmp_path.iterdir())
    batches = endless_batches(Files(paths, decode), batch=3, workers=0)
    for _ in range(2):
        epoch = torch.cat([next(batches), next(batches)]).flatten().tolist()
        assert len(set(epoch)) == 6
    with pytest.raises(ValueError, match="7 pictures do not fill a batch of 8"):
        next(endless_batches(Files(paths, decode), batch=8, workers=0))


def test_the_plain_loader_reads_the_rows_of_all_shards(tmp_path: Path) -> None:
    for shard, count in enumerate((3, 3, 1)):
        (tmp_path / f"shard-{shard}.u8").write_bytes(bytes(10 * shard + i for i in range(count) for _ in range(4)))
    rows = Rows(sorted(tmp_path.iterdir()), (1, 2, 2))
    assert [int(rows[i].unique()) for i in range(len(rows))] == [0, 1, 2, 10, 11, 12, 20]


def test_turns_alternate_and_the_first_is_thrown_away() -> None:
    calls: list[str] = []
    result = compare("x", lambda: calls.append("ours"), lambda: calls.append("peer"), ours_label="a", peer_label="b", repeats=4)
    assert calls == ["peer", "ours", "ours", "peer", "peer", "ours", "ours", "peer", "peer", "ours"]
    assert len(result.ours) == len(result.peer) == len(result.ratios()) == 4


def test_the_table_says_ratio_goal_and_what_was_not_run() -> None:
    slower = Comparison("a step", (2.0, 2.2, 2.1), (1.0, 1.1, 1.05), "ours", "plain", at_most=1.0)
    share = Comparison("a share", (0.001,), (1.0,), "part", "step", at_most=0.01)
    text = document([slower, share, NotRun("GPU", "none here")], command="bench", load=0.1, quick=False)
    assert "| **2.00** | 2.00 to 2.00 | 2100 ms | 1050 ms | at most 1: MISSED |" in text
    assert "| **0.1 %** |" in text
    assert "at most 0.01: met" in text
    assert "GPU: not run, none here" in text


def test_every_benchmark_is_in_the_order() -> None:
    assert {path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")} == set(ORDER)


def test_spread_is_median_and_quartiles() -> None:
    found = spread([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (found.low, found.median, found.high) == (2.0, 3.0, 4.0)
    assert spread([2.0]).high == 2.0


def test_the_clock_waits_for_the_device() -> None:
    order: list[str] = []
    assert timed(lambda: order.append("call"), calls=2, sync=lambda: order.append("sync")) >= 0
    assert order == ["sync", "call", "call", "sync"]
