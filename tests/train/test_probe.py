"""`microbatch: auto` is found before the first step, with all in memory that a step will find there."""

import gc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from train.small_run import small_spec, start, write_pictures

from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train import probe, setup
from iddpm_ray.train.directory import inspect_run
from iddpm_ray.train.session import LocalSession
from iddpm_ray.train.setup import Kit
from iddpm_ray.train.sources import LocalSources


def kit_of(spec: JobSpec, *, known: int | None = None) -> Kit:
    sources = LocalSources.of(spec, inspect_run(spec).manifest, rank=0, world_size=1)
    return setup.make(spec, LocalSession(), sources=sources, known_microbatch=lambda device, slice_samples: known)


def live_bytes() -> int:
    """Bytes of all tensors that somebody holds, gradients among them."""
    gc.collect()  # what earlier tests left
    held = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]  # none of the compiler's
    held += [one.grad for one in held if one.is_leaf and one.grad is not None]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in held if one.device.type == "cpu"}
    return sum(storages.values())


def test_a_microbatch_is_tried_beside_moments_averages_and_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path / "pictures")
    before, seen = live_bytes(), list[int]()

    def measured() -> SimpleNamespace:
        seen.append(live_bytes())
        return SimpleNamespace(available=2**40)

    monkeypatch.setattr(probe.psutil, "virtual_memory", measured)
    kit = kit_of(small_spec(tmp_path, optim={"microbatch": "auto", "ema_rates": [0.9, 0.99]}))
    weights = sum(parameter.untyped_storage().nbytes() for parameter in kit.state.model.parameters())
    (there,) = seen
    assert there - before >= (1 + 1 + 2 + 2) * weights  # themselves, gradients, two moments, two averages
    assert kit.microbatch == probe.Microbatch(7, "probed")
    assert all(parameter.grad is None for parameter in kit.state.model.parameters())
    for averages in kit.state.ema.averages.values():
        assert all(torch.equal(average, weight) for average, weight in zip(averages, kit.state.model.parameters(), strict=True))


def test_a_microbatch_found_with_other_settings_is_found_anew(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")

    def spec(steps: int, **model: object) -> JobSpec:
        return small_spec(tmp_path, optim={"microbatch": "auto"}, train={"duration": f"{steps} steps"}, model=model)

    start(spec(1, gradient_checkpointing=True))
    _, same = start(spec(2, gradient_checkpointing=True))
    _, without = start(spec(3))
    assert not any("found anew" in line for line in same)
    (said,) = [line for line in without if "found anew" in line]
    assert said.endswith("gradient checkpointing True -> False")


def code_of_two_steps(spec: JobSpec, *, known: int | None, ran: list[str]) -> list[str]:
    """Which code a process runs in its first two steps, a microbatch and a rest each, as the shapes that it is made for."""
    torch.compiler.reset()  # as in a new process
    kit = kit_of(spec, known=known)
    ran.clear()
    for size in (4, 3, 4, 3):
        kit.state.replica(torch.zeros(size, 1, 8, 8), torch.zeros(size), y=torch.zeros(size, dtype=torch.int64))
    return list(ran)


def test_a_restart_runs_the_code_of_the_process_that_found_the_microbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def compile_fx(graph: torch.fx.GraphModule, inputs: list[Any], **_: object) -> Callable[..., object]:
        made_for = str([tuple(one.shape) if isinstance(one, torch.Tensor) else one for one in inputs])

        def code(*given: object) -> object:
            ran.append(made_for)
            return graph.forward(*given)

        return code

    def fits(size: int, *, attempt: Callable[[int], None], device: torch.device) -> bool:
        attempt(size)
        return size <= 4

    class Network(torch.nn.Module):
        """Stands for one that takes minutes to compile."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(1, 2, 3, padding=1)

        def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
            return self.layer(x) + (t + y)[:, None, None, None]

    monkeypatch.setattr(setup.build, "model", lambda spec, num_classes: Network())
    monkeypatch.setattr("torch._dynamo.config.recompile_limit", 2)  # as many as the run needs, so that none may be left from probing
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    monkeypatch.setattr(probe, "_fits", fits)
    write_pictures(tmp_path / "pictures")
    spec = small_spec(tmp_path, optim={"microbatch": "auto", "compile": True})
    try:
        found = code_of_two_steps(spec, known=None, ran=ran)
        again = code_of_two_steps(spec, known=4, ran=ran)
    finally:
        torch.compiler.reset()
    first, second = found[: len(found) // 2], found[len(found) // 2 :]
    assert first == second == again[: len(again) // 2]
    assert len(set(first)) == 2
