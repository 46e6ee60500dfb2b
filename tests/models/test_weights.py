"""Initial weights are a function of (seed, name) with the original's distributions."""

import pytest
import torch
from torch import nn

from iddpm_ray.models.unet import UNet
from iddpm_ray.models.weights import init_weights


def make(*, channel_mult: tuple[int, ...] = (1, 2), attention_factors: tuple[int, ...] = (2,), **changed: int) -> UNet:
    arguments = {
        "image_channels": 3,
        "model_channels": 32,
        "out_channels": 6,
        "num_res_blocks": 1,
        "num_heads": 2,
        "num_classes": 50,
    } | changed
    return UNet(**arguments, channel_mult=channel_mult, attention_factors=attention_factors)


def test_weights_do_not_depend_on_what_was_drawn_before_nor_disturb_it() -> None:
    first, second = make(), make()
    torch.manual_seed(5)
    init_weights(first, seed=3)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))
    init_weights(second, seed=3)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_a_tensor_depends_on_its_name_and_shape_not_on_the_rest_of_the_network() -> None:
    small, large = make(), make(channel_mult=(1, 2, 2))
    init_weights(small, seed=3)
    init_weights(large, seed=3)
    theirs = large.state_dict()
    # The bound of a bias follows the shape of its weight, so only weights are compared.
    shared = [
        name for name, value in small.state_dict().items() if value.dim() > 1 and name in theirs and theirs[name].shape == value.shape
    ]
    assert len(shared) > 20
    for name in shared:
        assert torch.equal(small.state_dict()[name], theirs[name]), name


def test_seeds_and_names_give_different_weights() -> None:
    first, second = make(), make()
    init_weights(first, seed=0)
    init_weights(second, seed=1)
    assert not torch.equal(first.time_embed[2].weight, second.time_embed[2].weight)
    middle = first.middle_block
    assert not torch.equal(middle[0].in_layers[2].weight, middle[2].in_layers[2].weight)


def test_a_network_built_without_memory_gets_the_same_weights() -> None:
    with torch.device("meta"):
        empty = make()
    assert all(parameter.is_meta for parameter in empty.parameters())
    empty.to_empty(device="cpu")
    plain = make()
    for model in (empty, plain):
        init_weights(model, seed=9)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, empty.state_dict()[name]), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_are_made_in_float32_and_then_converted(dtype: torch.dtype) -> None:
    exact, converted = make(), make().to(dtype)
    init_weights(exact, seed=2)
    init_weights(converted, seed=2)
    for name, value in exact.state_dict().items():
        assert torch.equal(value.to(dtype), converted.state_dict()[name]), name


def test_distributions_are_those_of_the_original() -> None:
    model = make()
    init_weights(model, seed=0)
    for name, module in model.named_modules():
        zero = name == "out.2" or name.endswith(("proj_out", "out_layers.3"))
        if isinstance(module, nn.GroupNorm):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert torch.equal(module.bias, torch.zeros_like(module.bias))
        elif isinstance(module, nn.Embedding):
            assert abs(module.weight.mean()) < 0.05
            assert abs(module.weight.std() - 1) < 0.05
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear):
            bound = module.weight[0].numel() ** -0.5
            for values in (module.weight, module.bias):
                assert values is not None
                assert values.abs().max() <= bound
                assert bool((values == 0).all()) == zero, name
            if not zero:
                deviation = 5 * bound / module.weight.numel() ** 0.5
                assert abs(module.weight.mean()) < deviation
                assert float(module.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)


def test_a_fresh_network_has_the_same_layers_at_zero() -> None:
    fresh, filled = make(), make()
    init_weights(filled, seed=0)
    zeros = [{name for name, value in model.state_dict().items() if not value.any()} for model in (fresh, filled)]
    assert zeros[0] == zeros[1]


def test_a_layer_without_a_rule_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match=r"no rule for the weights of 0\.weight"):
        init_weights(nn.Sequential(nn.LayerNorm(3)), seed=0)
