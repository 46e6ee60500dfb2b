import math

import numpy as np
import pytest

from iddpm_ray.data import order


@pytest.mark.parametrize("block", range(20))
def test_every_epoch_is_a_permutation_of_the_rows(block: int) -> None:
    for num_rows in range(1 + 100 * block, 101 + 100 * block):
        epochs = order.rows(block, np.arange(2 * num_rows), num_rows).reshape(2, num_rows)
        assert (np.sort(epochs, axis=1) == np.arange(num_rows)).all()


def test_the_order_never_changes() -> None:
    """A change here changes the data of every run that is resumed: it must be a decision."""
    assert order.rows(0, np.arange(12), 10).tolist() == [5, 7, 2, 9, 1, 6, 8, 4, 3, 0, 3, 7]
    assert order.rows(0, np.arange(10), 1000).tolist() == [583, 346, 154, 422, 435, 763, 916, 37, 260, 795]
    assert order.rows(1, np.array([5, 5 + 1281167, 10**15]), 1281167).tolist() == [247945, 1078207, 90104]
    assert order.rows(2**64 - 3, np.arange(6), 1797).tolist() == [57, 451, 43, 242, 1741, 421]


def test_a_position_means_the_same_alone_or_among_others() -> None:
    positions = np.arange(3000)
    together = order.rows(3, positions, 1797)
    chosen = np.random.default_rng(0).permutation(3000)
    assert (order.rows(3, positions[chosen], 1797) == together[chosen]).all()
    assert [int(order.rows(3, positions[i : i + 1], 1797)[0]) for i in (0, 1796, 1797, 2999)] == together[[0, 1796, 1797, 2999]].tolist()


def test_epochs_and_seeds_differ() -> None:
    epochs = order.rows(0, np.arange(20 * 500), 500).reshape(20, 500)
    others = np.stack([order.rows(seed, np.arange(500), 500) for seed in range(1, 21)])
    both = np.concatenate([epochs, others])
    agreements = (both[:, None, :] == both[None, :, :]).sum(-1)[~np.eye(40, dtype=bool)]
    assert agreements.max() < 12  # a Poisson variable of mean 1
    assert abs(agreements.mean() - 1) < 0.1


@pytest.mark.parametrize("num_rows", [3, 4, 5, 6])
def test_all_permutations_of_a_few_rows_are_equally_likely(num_rows: int) -> None:
    epochs, kinds = 12000, math.factorial(num_rows)
    permutations = order.rows(9, np.arange(epochs * num_rows), num_rows).reshape(epochs, num_rows)
    counts = np.unique(permutations @ (num_rows ** np.arange(num_rows)), return_counts=True)[1]
    assert len(counts) == kinds
    statistic = ((counts - epochs / kinds) ** 2).sum() / (epochs / kinds)
    assert abs(statistic - (kinds - 1)) < 5 * math.sqrt(2 * (kinds - 1))


@pytest.mark.parametrize("num_rows", [100, 1797, 65537])
def test_neighbours_are_unrelated(num_rows: int) -> None:
    rows = order.rows(4, np.arange(100 * num_rows if num_rows < 2000 else 3 * num_rows), num_rows).astype(float)
    limit = 5 / math.sqrt(len(rows)) + 1 / num_rows
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < limit
    assert abs(np.corrcoef(np.arange(len(rows)) % num_rows, rows)[0, 1]) < limit


@pytest.mark.parametrize("global_batch", [4, 7, 16, 129])
def test_ranks_share_the_same_global_batch_at_any_world_size(global_batch: int) -> None:
    whole = order.positions(5, global_batch=global_batch, num_steps=3).reshape(3, global_batch)
    assert (whole.reshape(-1) == np.arange(5 * global_batch, 8 * global_batch)).all()
    for world_size in range(1, global_batch + 1):
        parts = [
            order.positions(5, global_batch=global_batch, rank=rank, world_size=world_size, num_steps=3).reshape(3, -1)
            for rank in range(world_size)
        ]
        assert (np.concatenate(parts, axis=1) == whole).all()
        lengths = [part.shape[1] for part in parts]
        assert max(lengths) - min(lengths) <= 1
        own = [order.slice_of(global_batch, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert [piece.stop - piece.start for piece in own] == lengths
