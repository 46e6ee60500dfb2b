"""`microbatch: auto` is found before the first step, with all in memory that a step will find there."""

import gc
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
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
    held = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
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
