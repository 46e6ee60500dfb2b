"""Laws of attention: two implementations of one function, the published order of channels, clear refusals."""

import pytest
import torch

from iddpm_ray.errors import SpecError
from iddpm_ray.models.attention import Attention, AttentionBlock, attend


def block(channels: int, *, num_heads: int, attention: str = "sdpa") -> AttentionBlock:
    torch.manual_seed(0)
    made = AttentionBlock(channels, num_heads=num_heads, attention=attention)  # type: ignore[arg-type]  # one name stands for both
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.double()


@pytest.mark.parametrize("size", [(3, 5), (4, 4), (1, 1)])
def test_both_implementations_agree_in_value_and_gradient(size: tuple[int, int]) -> None:
    x = torch.randn(2, 64, *size, dtype=torch.float64, requires_grad=True)
    results = []
    for attention in ("sdpa", "math"):
        made = block(64, num_heads=4, attention=attention)
        out = made(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *made.parameters()])])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_channels_of_qkv_are_heads_then_q_k_v() -> None:
    made = block(64, num_heads=2)
    x = torch.randn(1, 64, 2, 3, dtype=torch.float64)
    qkv = torch.einsum("oc,ncl->nol", made.qkv.weight[:, :, 0], made.norm(x).flatten(2)) + made.qkv.bias[:, None]
    heads = []
    for head in range(2):
        q, k, v = qkv[0, 96 * head : 96 * (head + 1)].split(32)
        heads.append(v @ torch.softmax(q.T @ k / 32**0.5, dim=1).T)
    expected = (
        x.flatten(2) + torch.einsum("oc,ncl->nol", made.proj_out.weight[:, :, 0], torch.cat(heads)[None]) + made.proj_out.bias[:, None]
    )
    torch.testing.assert_close(made(x), expected.view(x.shape))


@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_the_new_order_of_qkv_is_a_permutation_of_its_channels(attention: Attention) -> None:
    heads_first = block(64, num_heads=4, attention=attention)
    qkv_first = AttentionBlock(64, num_heads=4, attention=attention, qkv_order="qkv_first").double()
    state = heads_first.state_dict()
    for name in ("qkv.weight", "qkv.bias"):
        state[name] = state[name].unflatten(0, (4, 3, 16)).transpose(0, 1).flatten(0, 2)
    x = torch.randn(2, 64, 3, 5, dtype=torch.float64)
    qkv_first.load_state_dict(state)
    torch.testing.assert_close(qkv_first(x), heads_first(x))
    qkv_first.load_state_dict(heads_first.state_dict())
    assert not torch.allclose(qkv_first(x), heads_first(x), atol=1e-3)


def test_a_fresh_block_is_the_identity() -> None:
    x = torch.randn(2, 32, 4, 4)
    assert torch.equal(AttentionBlock(32, num_heads=2, attention="sdpa")(x), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_softmax_is_float32_whatever_the_activations_are(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 64, 32).to(dtype) for _ in range(2))
    v = torch.eye(64)[None, None].to(dtype)
    weights = attend(q, k, v)
    scale = 32**-0.25
    exact = torch.softmax(((q * scale) @ (k * scale).transpose(-1, -2)).float(), dim=-1)
    assert weights.dtype == dtype
    assert torch.equal(weights, exact.to(dtype))


@pytest.mark.parametrize("num_heads", [3, 0, 128])
def test_heads_that_do_not_divide_are_refused(num_heads: int) -> None:
    with pytest.raises(SpecError, match=rf"64 channels.*got {num_heads}.*divisor of 64"):
        AttentionBlock(64, num_heads=num_heads, attention="sdpa")
