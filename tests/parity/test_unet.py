"""Recorded U-Nets: keys, outputs, gradients and activations, with both attentions, with and without gradient checkpointing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden import Golden, GoldenFile
from networks import build_recorded, fill_by_formula
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from iddpm_ray.models.attention import Attention
from iddpm_ray.models.superres import SuperResUNet
from iddpm_ray.models.unet import UNet

# Norms of gradients that are zero in exact arithmetic: rounding noise, in float64 and in float32.
NOISE_F64 = 1e-8
NOISE_F32 = 1e-3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a recorded network; a directory without any gives one that has nothing to do."""
    if "case" in metafunc.fixturenames:
        directory = Path(str(metafunc.config.getoption("--golden")))
        metafunc.parametrize("case", sorted(path.stem for path in directory.glob("unet_*.json")) or [""])


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass.

    Attributes:
        out: [N, out_channels, H, W].
        loss: sum(out * r).
        x_grad: [N, C, H, W].
        grads: by parameter name.
        act_norms: by `down`, `middle`, `up`: L2 norms of the blocks' outputs.
    """

    out: Tensor
    loss: Tensor
    x_grad: Tensor
    grads: dict[str, Tensor]
    act_norms: dict[str, list[float]]

    def norms(self) -> np.ndarray:
        """[P] L2 norms of the gradients, alphabetically."""
        return np.array([float(self.grads[name].double().norm()) for name in sorted(self.grads)])

    def sums(self) -> np.ndarray:
        """[P] sums of the gradients, alphabetically."""
        return np.array([float(self.grads[name].double().sum()) for name in sorted(self.grads)])

    def sizes(self) -> np.ndarray:
        """[P] numbers of elements, alphabetically."""
        return np.array([self.grads[name].numel() for name in sorted(self.grads)])


def run(model: UNet, g: GoldenFile, *, dtype: torch.dtype) -> Pass:
    fill_by_formula(model)
    model.to(dtype).eval()
    x = torch.from_numpy(g.input("x")).to(dtype).requires_grad_()
    cond = {}
    if "y" in g.arrays:
        cond["y"] = torch.from_numpy(g.input("y"))
    if "low_res" in g.arrays:
        cond["low_res"] = torch.from_numpy(g.input("low_res")).to(dtype)
    act_norms: dict[str, list[float]] = {"down": [], "middle": [], "up": []}

    def record(place: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, inputs, output: act_norms[place].append(float(output.detach().double().norm()))

    for place, blocks in (("down", model.input_blocks), ("middle", [model.middle_block]), ("up", model.output_blocks)):
        for block in blocks:
            block.register_forward_hook(record(place))
    out = model(x, torch.from_numpy(g.input("t")), **cond)
    loss = (out * torch.from_numpy(g.input("r")).to(dtype)).sum()
    loss.backward()
    assert x.grad is not None
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return Pass(out.detach(), loss.detach(), x.grad, grads, act_norms)


@pytest.mark.parametrize("gradient_checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_outputs_and_gradients_are_the_recorded_ones(golden: Golden, case: str, attention: Attention, gradient_checkpointing: bool) -> None:
    g = golden.open(f"{case}.npz")
    if not g.arrays:
        return
    config = golden.json(f"{case}.json")["config"]
    ours = run(build_recorded(config, attention=attention, gradient_checkpointing=gradient_checkpointing), g, dtype=torch.float32)
    vanishing = g.arrays["grad_norms.f64"] < NOISE_F64
    with g.collecting():
        g.check("out", ours.out, rtol=1e-5, atol=2e-5 + 10 * gaps(g).out)
        g.check("loss", ours.loss, atol=2e-5 * float(np.linalg.norm(g.arrays["r"])))
        g.check("grad_norms", ours.norms(), rtol=1e-4, atol=np.where(vanishing, np.minimum(NOISE_F32, 30 * ours.norms()), NOISE_F32))
        g.check("grad_sums", ours.sums(), atol=_slack_of_sums(g, ours, vanishing))
        g.check("grad_x_norm", ours.x_grad.double().norm(), rtol=1e-5)
        for name in g.names():
            group, _, rest = name.partition(".")
            if group == "grad":
                zero = vanishing[sorted(ours.grads).index(rest)]
                g.check(name, ours.grads[rest], atol=_noise(g.arrays[name]) if zero else 5e-5 * float(np.abs(g.arrays[name]).max()))
            elif group == "act_norms":
                g.check(name, np.array(ours.act_norms[rest]), rtol=5e-6)


def _noise(recorded: np.ndarray) -> float:
    """What rounding may put where there is nothing: many times the median, which a few wrong elements cannot move."""
    return min(NOISE_F32, 60 * float(np.median(np.abs(recorded))) + 1e-7)


def _slack_of_sums(g: GoldenFile, ours: Pass, vanishing: np.ndarray) -> np.ndarray:
    """[P]: rounding of n elements adds up like a random walk; for pure noise the Cauchy-Schwarz bound holds whatever it is."""
    walk = 6e-6 * np.sqrt(ours.sizes()) * g.arrays["grad_norms.f64"]
    bound = np.sqrt(ours.sizes()) * (ours.norms() + g.arrays["grad_norms"])
    return np.where(vanishing, bound, walk + NOISE_F32)


@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_float64_outputs_and_gradient_norms_are_the_recorded_ones(golden: Golden, case: str, attention: Attention) -> None:
    g = golden.open(f"{case}.npz")
    if not g.arrays:
        return
    ours = run(build_recorded(golden.json(f"{case}.json")["config"], attention=attention), g, dtype=torch.float64)
    with g.collecting():
        g.check("out.f64", ours.out, atol=50 * gaps(g).out)
        g.check("grad_norms.f64", ours.norms(), rtol=50 * gaps(g).norms, atol=NOISE_F64)


@dataclass(frozen=True)
class Gaps:
    """How far the recorded float32 run is from the float64 one: medians, which a few wrong elements cannot move.

    They say what a rounding of the embedding's frequencies may do: processors differ in it, timesteps multiply it. Where they do not
    differ, our float64 run is at 1e-14.
    """

    out: float
    norms: float


def gaps(g: GoldenFile) -> Gaps:
    out, norms = g.arrays["out.f64"], g.arrays["grad_norms.f64"]
    real = norms > NOISE_F64
    apart = np.abs(g.arrays["grad_norms"] - norms)[real] / norms[real]
    return Gaps(out=float(np.median(np.abs(g.arrays["out"] - out))), norms=float(np.median(apart)))


def test_keys_shapes_order_and_count_are_the_recorded_ones(golden: Golden, case: str) -> None:
    if not case:
        return
    record = golden.json(f"{case}.json")
    model = build_recorded(record["config"])
    norms = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.GroupNorm)}
    halves = narrowed(model, record["config"])
    assert record["name"] == case.removeprefix("unet_")
    assert [name for name, _ in model.named_parameters()] == [key for key, *_ in record["keys"]]
    assert [[key, list(tensor.shape), int(key in norms), int(key in halves)] for key, tensor in model.state_dict().items()] == record[
        "keys"
    ]
    assert sum(parameter.numel() for parameter in model.parameters()) == record["num_params"]


def narrowed(model: UNet, config: Mapping[str, Any]) -> set[str]:
    """Names of the parameters that a forward pass under autocast converts to half precision."""
    watch = _Casts(list(model.named_parameters()))
    x = torch.zeros(1, config["in_channels"], 2 * model.size_multiple, 2 * model.size_multiple)
    cond = {} if config["num_classes"] is None else {"y": torch.zeros(1, dtype=torch.int64)}
    if isinstance(model, SuperResUNet):
        cond["low_res"] = x
    with torch.autocast("cpu", dtype=torch.bfloat16), watch:
        out = model(x, torch.zeros(1), **cond)
    assert out.dtype == torch.float32
    return watch.found


class _Casts(TorchDispatchMode):
    """Notes which of the given parameters are converted to bfloat16."""

    def __init__(self, named: Sequence[tuple[str, Tensor]]) -> None:
        super().__init__()
        self.names = {parameter.untyped_storage().data_ptr(): name for name, parameter in named}
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and (kwargs or {}).get("dtype") == torch.bfloat16:
            name = self.names.get(args[0].untyped_storage().data_ptr())
            if name is not None:
                self.found.add(name)
        return func(*args, **(kwargs or {}))
