"""Laws of the U-Net: what it accepts and refuses, and what changes no number."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from iddpm_ray.errors import SpecError
from iddpm_ray.models.attention import AttentionBlock
from iddpm_ray.models.nn import timestep_embedding
from iddpm_ray.models.superres import SuperResUNet
from iddpm_ray.models.unet import UNet, level_widths
from iddpm_ray.models.weights import init_weights

SMALL: dict[str, Any] = {
    "image_channels": 1,
    "model_channels": 32,
    "out_channels": 2,
    "num_res_blocks": 1,
    "attention_factors": (2,),
    "channel_mult": (1, 2),
    "num_heads": 2,
}


def make(kind: type[UNet] = UNet, **changed: Any) -> UNet:
    """A small network whose layers that begin at zero do not."""
    model = kind(**(SMALL | changed))
    init_weights(model, seed=0)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.1)
    return model


def inputs(model: UNet, *, size: tuple[int, int] = (4, 6), batch: int = 2) -> dict[str, Tensor]:
    torch.manual_seed(1)
    made = {"x": torch.randn(batch, model.image_channels, *size), "t": torch.linspace(0.5, 900.0, batch)}
    if model.num_classes is not None:
        made["y"] = torch.arange(batch) % model.num_classes
    if isinstance(model, SuperResUNet):
        made["low_res"] = torch.randn(batch, model.image_channels, 2, 3)
    return made


@pytest.mark.parametrize("image_channels", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [(4, 4), (2, 10), (12, 6)])
def test_any_number_of_colours_and_any_shape_of_picture(image_channels: int, size: tuple[int, int]) -> None:
    model = make(image_channels=image_channels, out_channels=2 * image_channels)
    assert model(**inputs(model, size=size)).shape == (2, 2 * image_channels, *size)


def test_a_fresh_network_predicts_zero() -> None:
    model = UNet(**SMALL)
    init_weights(model, seed=0)
    assert not model(**inputs(model)).any()


def test_a_picture_does_not_see_the_rest_of_its_batch() -> None:
    model = make(num_classes=3)
    given = inputs(model, batch=3)
    together = model(**given)
    for index in range(3):
        alone = model(**{name: value[index : index + 1] for name, value in given.items()})
        torch.testing.assert_close(together[index : index + 1], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(5, 4), (4, 7), (6, 4)])
def test_sizes_that_cannot_be_halved_are_refused(size: tuple[int, int]) -> None:
    model = make(channel_mult=(1, 1, 1))
    with pytest.raises(SpecError, match=rf"multiples of 2.*got {size[0]}x{size[1]}.*multiples of 4"):
        model(**inputs(model, size=size))


@pytest.mark.parametrize(("base", "mult"), [(48, [1, 2]), (32, [1, 1.5]), (32, [0.5]), (0, [1])])
def test_widths_that_groups_do_not_divide_are_refused(base: int, mult: list[float]) -> None:
    with pytest.raises(SpecError, match="multiple of 32"):
        level_widths(base, mult)


def test_no_level_is_refused() -> None:
    with pytest.raises(SpecError, match="channel_mult"):
        level_widths(32, [])


def test_fractional_multipliers_are_truncated_products() -> None:
    assert level_widths(64, [0.5, 1, 1.5]) == [32, 64, 96]
    model = make(model_channels=64, channel_mult=(0.5, 1, 1.5))
    assert model.input_blocks[0][0].weight.shape[0] == 32
    assert model(**inputs(model, size=(4, 8))).shape == (2, 2, 4, 8)


def test_attention_where_no_level_is_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no level has \(got \[3, 4\]\).*\[1, 2\]"):
        UNet(**(SMALL | {"attention_factors": (2, 3, 4)}))


@pytest.mark.parametrize("changed", [{"num_heads": 3}, {"num_heads_upsample": 5}, {"attention_factors": (), "num_heads": 7}])
def test_heads_that_do_not_divide_are_refused_on_the_way_down_up_and_in_the_middle(changed: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="cut into heads"):
        UNet(**(SMALL | changed))


def test_labels_go_to_conditional_networks_only() -> None:
    plain, conditional = make(), make(num_classes=4)
    with pytest.raises(AssertionError, match="labels"):
        plain(**inputs(plain), y=torch.tensor([0, 1]))
    with pytest.raises(AssertionError, match="labels"):
        conditional(**{name: value for name, value in inputs(conditional).items() if name != "y"})


def test_the_null_class_is_one_more_row_and_off_by_default() -> None:
    assert make(num_classes=4).label_emb.weight.shape[0] == 4
    model = make(num_classes=4, null_class=True)
    assert model.label_emb.weight.shape[0] == 5
    given = inputs(model) | {"y": torch.tensor([4, 0])}
    given["y"].fill_(4)
    assert model(**given).isfinite().all()


@pytest.mark.parametrize("kind", [UNet, SuperResUNet])
@pytest.mark.parametrize("changed", [{}, {"num_classes": 3, "gradient_checkpointing": True, "attention": "math"}], ids=["plain", "options"])
def test_a_network_runs_on_the_meta_device(kind: type[UNet], changed: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = kind(**(SMALL | changed))
        given = {name: value.to("meta").requires_grad_(name == "x") for name, value in inputs(model).items()}
        out = model(**given)
        out.sum().backward()
    assert out.is_meta
    assert out.shape == (2, 2, 4, 6)


def test_memory_layout_changes_no_number() -> None:
    model = make()
    given = inputs(model, size=(8, 8))
    plain = model(**given)
    model.to(memory_format=torch.channels_last)
    given["x"] = given["x"].contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(**given), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_autocast_stays_near_float32_and_returns_float32(attention: str) -> None:
    model = make(attention=attention, num_classes=3)
    given = inputs(model, size=(8, 8))
    exact = model(**given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(**given)
    assert out.dtype == torch.float32
    assert (out - exact).norm() < 0.05 * exact.norm()
    assert not torch.equal(out, exact)


def test_the_embedding_is_float32_under_autocast() -> None:
    model = make(num_classes=3)
    given = inputs(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen: list[Tensor] = []
        model.time_embed.register_forward_hook(lambda module, args, out: seen.append(out))
        model(**given)
    assert torch.equal(seen[0], model.time_embed(timestep_embedding(given["t"], dim=model.model_channels)))


@contextmanager
def host_reads_forbidden() -> Iterator[None]:
    """Every way of asking a tensor for its value raises."""
    before: dict[str, Callable[..., Any]] = {}

    def forbid(name: str) -> Callable[..., Any]:
        def read(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError(f"Tensor.{name} waits for the device")

        return read

    for name in ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        before[name] = getattr(Tensor, name)
        setattr(Tensor, name, forbid(name))
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Tensor, name, method)


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", [UNet, SuperResUNet])
def test_nothing_in_a_pass_waits_for_the_device(kind: type[UNet], autocast: bool, gradient_checkpointing: bool) -> None:
    model = make(kind, num_classes=3, gradient_checkpointing=gradient_checkpointing, dropout=0.1).train()
    given = inputs(model)
    with host_reads_forbidden():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = model(**given)
        out.sum().backward()


@pytest.mark.parametrize(("kind", "autocast"), [(UNet, False), (SuperResUNet, True)])
def test_it_compiles_as_one_graph(kind: type[UNet], autocast: bool) -> None:
    torch._dynamo.reset()
    model = make(kind, num_classes=3, gradient_checkpointing=True)
    given = inputs(model)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        plain = model(**given)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(**given)
    tolerance = 0.1 if autocast else 1e-4
    torch.testing.assert_close(compiled, plain, rtol=tolerance, atol=tolerance)
    compiled.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_residual_blocks_that_resample_take_the_places_and_names_of_the_layers_they_replace() -> None:
    model = make(resblock_updown=True, channel_mult=(1, 2, 2), attention_factors=(2,))
    keys = {key for key in model.state_dict() if key.endswith("in_layers.2.weight")}
    assert keys >= {f"input_blocks.{block}.0.in_layers.2.weight" for block in range(1, 6)}
    assert {"output_blocks.1.1.in_layers.2.weight", "output_blocks.3.2.in_layers.2.weight"} <= keys
    assert not [key for key in model.state_dict() if ".op." in key or ".conv." in key]
    assert model(**inputs(model, size=(8, 4))).shape == (2, 2, 8, 4)


def test_heads_of_one_width_are_as_many_as_fit() -> None:
    model = make(num_head_channels=16, channel_mult=(1, 2), attention_factors=(1, 2))
    heads = {module.qkv.in_channels: module.num_heads for module in model.modules() if isinstance(module, AttentionBlock)}
    assert heads == {32: 2, 64: 4}
    with pytest.raises(SpecError, match=r"64 channels.*got 24.*divisor of 64"):
        make(num_head_channels=24)
