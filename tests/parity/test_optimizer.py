"""AdamW, annealing, averages and the loss scale against the recorded steps of a small linear layer."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from golden import Golden, GoldenFile

from iddpm_ray.train.ema import Ema
from iddpm_ray.train.optim import LearningRate, LossScale, apply_update, make_adamw


@dataclass
class Layer:
    """The recorded layer: parameters, their optimiser and averages."""

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter
    optimizer: torch.optim.AdamW
    ema: Ema


def begin(g: GoldenFile, hyper: dict[str, object]) -> Layer:
    weight, bias = (torch.nn.Parameter(torch.from_numpy(g.input(f"init.{name}").copy())) for name in ("weight", "bias"))
    optimizer = make_adamw([weight, bias], betas=(0.9, 0.999), eps=1e-8)
    return Layer(weight, bias, optimizer, Ema.begin([weight, bias], [float(rate) for rate in hyper["ema"]]))


def give_gradients(layer: Layer, g: GoldenFile, step: int, *, factor: float = 1.0) -> None:
    layer.weight.grad = torch.from_numpy(g.input("grad.weight")[step] * np.float32(factor))
    layer.bias.grad = torch.from_numpy(g.input("grad.bias")[step] * np.float32(factor))


def check_tracks(g: GoldenFile, tracks: dict[str, list[torch.Tensor]]) -> None:
    for name, values in tracks.items():
        if name in g.arrays:
            g.check(name, torch.stack(values), rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("prefix", ["anneal", "const"])
def test_updates_rates_and_averages_are_the_recorded_ones(golden: Golden, prefix: str) -> None:
    if "optimizer.npz" not in golden.files:
        return
    g, hyper = golden.open("optimizer.npz"), golden.json("meta.json")["optimizer"]
    layer = begin(g, hyper)
    rate = LearningRate(hyper["lr"], "linear" if prefix == "anneal" else "constant", anneal=hyper["anneal"])
    tracks: dict[str, list[torch.Tensor]] = {}
    for step in range(hyper["steps"]):
        give_gradients(layer, g, step)
        lr = rate.at(before=step + hyper["resume_step"], after=step + hyper["resume_step"] + 1)
        update = apply_update(layer.optimizer, lr=lr, weight_decay=hyper["wd"])
        layer.ema.update(update.skipped)
        for name, parameter in (("weight", layer.weight), ("bias", layer.bias)):
            state = layer.optimizer.state[parameter]
            now = {name: parameter.detach(), f"exp_avg.{name}": state["exp_avg"], f"exp_avg_sq.{name}": state["exp_avg_sq"]}
            for text, averages in zip(hyper["ema"], layer.ema.averages.values(), strict=True):
                now[f"ema_{text}.{name}"] = averages[0 if name == "weight" else 1]
            for key, value in now.items():
                tracks.setdefault(f"{prefix}.{key}", []).append(value.clone())
        tracks.setdefault(f"{prefix}.lr", []).append(torch.tensor(lr, dtype=torch.float64))
        tracks.setdefault(f"{prefix}.grad_norm", []).append(update.grad_norm.double())
    check_tracks(g, tracks)


def test_an_overflow_leaves_everything_but_the_loss_scale(golden: Golden) -> None:
    if "optimizer.npz" not in golden.files:
        return
    g, hyper = golden.open("optimizer.npz"), golden.json("meta.json")["optimizer"]
    if "fp16.overflow" not in g.arrays:
        return
    layer = begin(g, hyper)
    scale = LossScale.begin(enabled=True, growth=0.001, device=torch.device("cpu"))
    rate = LearningRate(hyper["lr"], "linear", anneal=hyper["anneal"])
    overflow = g.input("fp16.overflow")
    tracks: dict[str, list[torch.Tensor]] = {}
    skipped = []
    for step in range(hyper["steps"]):
        factor = scale.factor()
        assert factor is not None
        give_gradients(layer, g, step, factor=float("inf") if overflow[step] else float(factor))
        update = apply_update(layer.optimizer, lr=rate.at(before=step, after=step + 1), weight_decay=hyper["wd"], scale=scale)
        layer.ema.update(update.skipped)
        skipped.append(int(update.skipped))
        assert scale.log2 is not None
        tracks.setdefault("fp16.lg_loss_scale_after", []).append(scale.log2.clone())
        tracks.setdefault("fp16.weight", []).append(layer.weight.detach().clone())
        first = next(iter(layer.ema.averages.values()))
        tracks.setdefault("fp16.ema_first.weight", []).append(first[0].clone())
    check_tracks(g, tracks)
    g.check("fp16.overflow", np.array(skipped))
