"""Laws of residual blocks and stages: the skip, the condition, gradient checkpointing that changes nothing."""

import pytest
import torch
from torch import Tensor, nn

from iddpm_ray.models.attention import AttentionBlock
from iddpm_ray.models.blocks import Downsample, Resample, ResidualBlock, Stage, Upsample


def residual(channels: int = 32, out_channels: int = 64, *, dropout: float = 0.0, scale_shift_norm: bool = True) -> ResidualBlock:
    torch.manual_seed(1)
    made = ResidualBlock(channels, out_channels=out_channels, embedding_channels=16, dropout=dropout, scale_shift_norm=scale_shift_norm)
    nn.init.normal_(made.out_layers[3].weight, std=0.1)
    return made


def test_a_fresh_residual_block_is_its_skip() -> None:
    x, embedding = torch.randn(2, 32, 4, 6), torch.randn(2, 16)
    same = ResidualBlock(32, out_channels=32, embedding_channels=16, dropout=0.0, scale_shift_norm=True)
    wider = ResidualBlock(32, out_channels=64, embedding_channels=16, dropout=0.0, scale_shift_norm=True)
    assert torch.equal(same(x, embedding), x)
    assert torch.equal(wider(x, embedding), wider.skip_connection(x))


@pytest.mark.parametrize("scale_shift_norm", [True, False])
def test_the_condition_of_one_picture_touches_no_other(scale_shift_norm: bool) -> None:
    made = residual(out_channels=64, scale_shift_norm=scale_shift_norm)
    x, embedding = torch.randn(3, 32, 4, 4), torch.randn(3, 16)
    changed = embedding.clone()
    changed[1] += 1
    before, after = made(x, embedding), made(x, changed)
    torch.testing.assert_close(before[[0, 2]], after[[0, 2]])
    assert not torch.allclose(before[1], after[1], atol=1e-3)


def test_pooled_resampling_is_means_and_repetition() -> None:
    x = torch.arange(16.0).view(1, 1, 2, 8)
    assert torch.equal(Downsample(1, learned=False)(x), x.view(1, 1, 2, 4, 2).mean(dim=(2, 4), keepdim=False)[:, :, None])
    assert torch.equal(Upsample(1, learned=False)(x), x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3))


@pytest.mark.parametrize(("resample", "scaled"), [("down", Downsample(32, learned=False)), ("up", Upsample(32, learned=False))])
def test_a_residual_block_resamples_its_skip_and_before_its_first_convolution(resample: Resample, scaled: nn.Module) -> None:
    torch.manual_seed(1)
    made = ResidualBlock(32, out_channels=64, embedding_channels=16, dropout=0.0, scale_shift_norm=False, resample=resample)
    nn.init.normal_(made.out_layers[3].weight, std=0.1)
    x, embedding = torch.randn(2, 32, 4, 6), torch.randn(2, 16)
    norm, activation, convolution = made.in_layers
    h = convolution(scaled(activation(norm(x)))) + made.emb_layers(embedding)[:, :, None, None]
    torch.testing.assert_close(made(x, embedding), made.skip_connection(scaled(x)) + made.out_layers(h))


def stage(*, gradient_checkpointing: bool, dropout: float) -> Stage:
    torch.manual_seed(2)
    layers = [residual(32, 64, dropout=dropout), AttentionBlock(64, num_heads=2, attention="sdpa"), Upsample(64, learned=True)]
    return Stage(*layers, gradient_checkpointing=gradient_checkpointing).train()


def gradients(made: Stage, x: Tensor, embedding: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    out = made(x, embedding)
    torch.randn(7)  # what comes after the forward pass must not reach the replay
    wanted = [tensor for tensor in [x, embedding, *made.parameters()] if tensor.requires_grad]
    return [out.detach(), *torch.autograd.grad(out.square().sum(), wanted)]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
def test_gradient_checkpointing_changes_no_bit(dropout: float, frozen: bool) -> None:
    results = []
    for gradient_checkpointing in (False, True):
        made = stage(gradient_checkpointing=gradient_checkpointing, dropout=dropout)
        if frozen:
            made[0].requires_grad_(False)
            made[1].norm.requires_grad_(False)
        torch.manual_seed(4)
        x, embedding = torch.randn(2, 32, 4, 4, requires_grad=not frozen), torch.randn(2, 16, requires_grad=not frozen)
        results.append(gradients(made, x, embedding))
    for kept, replayed in zip(*results, strict=True):
        assert torch.equal(kept, replayed)


def test_gradient_checkpointing_keeps_less() -> None:
    kept = {}
    for gradient_checkpointing in (False, True):
        made = stage(gradient_checkpointing=gradient_checkpointing, dropout=0.1)
        own = {parameter.data_ptr() for parameter in made.parameters()}
        sizes: dict[int, int] = {}

        def keep(tensor: Tensor, own: set[int] = own, sizes: dict[int, int] = sizes) -> Tensor:
            if tensor.data_ptr() not in own:
                sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            made(torch.randn(4, 32, 8, 8, requires_grad=True), torch.randn(4, 16))
        kept[gradient_checkpointing] = sum(sizes.values())
    assert kept[True] < kept[False] / 2


def test_gradient_checkpointing_replays_autocast() -> None:
    results = []
    for gradient_checkpointing in (False, True):
        made = stage(gradient_checkpointing=gradient_checkpointing, dropout=0.3)
        torch.manual_seed(4)
        x, embedding = torch.randn(2, 32, 4, 4, requires_grad=True), torch.randn(2, 16)
        torch.manual_seed(5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = made(x, embedding)
        results.append([out.detach(), *torch.autograd.grad(out.float().square().sum(), [x, *made.parameters()])])
    for kept, replayed in zip(*results, strict=True):
        assert torch.equal(kept, replayed)
