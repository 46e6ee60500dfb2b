"""Laws of the averages of the weights."""

import torch

from iddpm_ray.train.ema import Ema

GO, SKIP = torch.tensor(0.0), torch.tensor(1.0)


def test_an_average_follows_its_formula_at_every_rate() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    ema = Ema.begin([weight], [0.5, 0.9])
    with torch.no_grad():
        weight.add_(1.0)
    ema.update(GO)
    torch.testing.assert_close(ema.averages[0.5][0], torch.tensor([1.5, 2.5]))
    torch.testing.assert_close(ema.averages[0.9][0], torch.tensor([1.1, 2.1]))


def test_a_skipped_step_leaves_averages_alone_bit_for_bit() -> None:
    weight = torch.nn.Parameter(torch.randn(100))
    ema = Ema.begin([weight], [0.9])
    with torch.no_grad():
        weight.mul_(1.5)
    before = ema.averages[0.9][0].clone()
    ema.update(SKIP)
    assert torch.equal(before, ema.averages[0.9][0])


def test_applied_lends_an_average_to_the_model_and_gives_the_weights_back() -> None:
    module = torch.nn.Linear(2, 2)
    ema = Ema.begin(list(module.parameters()), [0.9])
    raw = module.weight.detach().clone()
    ema.averages[0.9][0].fill_(7.0)
    with ema.applied(0.9):
        assert torch.equal(module.weight.data, torch.full((2, 2), 7.0))
    assert torch.equal(module.weight.data, raw)
    with ema.applied(None):
        assert torch.equal(module.weight.data, raw)
