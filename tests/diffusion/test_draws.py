"""Draws are a function of (seed, purpose, position, element) and of nothing else, and are distributed as they should be."""

import math
from collections.abc import Iterator

import pytest
import torch
from no_sync import HostWaited, NoHostSync
from torch import Tensor

from iddpm_ray.diffusion import draws
from iddpm_ray.diffusion.draws import Purpose, Words, normals, philox, uniforms

KNOWN_ANSWERS = [
    # Random123's kat_vectors: counter, key, output of philox4x32 with 10 rounds.
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def positions(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def philox_of_integers(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """The published definition, in Python's own integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return tuple(c)


def words_of(seed: int, purpose: int, position: int, block: int) -> tuple[int, ...]:
    seed %= 1 << 64
    return philox_of_integers((block, purpose, position & 0xFFFFFFFF, position >> 32), (seed & 0xFFFFFFFF, seed >> 32))


def largest_gap_to_normal(values: Tensor) -> float:
    """Kolmogorov's statistic times sqrt(n): above 1.95 once in a thousand."""
    ordered = values.flatten().double().sort().values
    n = ordered.shape[0]
    cdf = torch.special.ndtr(ordered)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    return float(torch.maximum((cdf - steps[:-1]).abs().max(), (cdf - steps[1:]).abs().max())) * math.sqrt(n)


def correlation(first: Tensor, second: Tensor) -> float:
    """Times sqrt(n): a standard normal number where the two are independent."""
    a, b = first.flatten().double(), second.flatten().double()
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / (a.norm() * b.norm())) * math.sqrt(a.shape[0])


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: tuple[int, ...], key: tuple[int, int], answer: tuple[int, ...]) -> None:
    assert philox_of_integers(counter, key) == answer
    words = philox(Words(*(positions(word) for word in counter)), key=key)
    assert tuple(int(word) for word in (words.w0, words.w1, words.w2, words.w3)) == answer


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 + 5, 2**63, 2**64 - 1, -3])
@pytest.mark.parametrize("position", [0, 1, 2**31, 2**32 - 1, 2**32, 2**40 + 12345, 2**63 - 1])
def test_uniforms_are_53_bits_of_the_counters_own_words(seed: int, position: int) -> None:
    drawn = uniforms(seed, Purpose.TIMESTEP, positions(position), count=5)
    expected = []
    for block in range(3):
        w = words_of(seed, Purpose.TIMESTEP, position, block)
        expected += [((w[0] >> 5) * 2**26 + (w[1] >> 6)) / 2**53, ((w[2] >> 5) * 2**26 + (w[3] >> 6)) / 2**53]
    assert drawn.tolist() == [expected[:5]]


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (7, 2**32 + 9), (2**64 - 1, 2**50)])
def test_normals_are_box_muller_of_the_counters_own_words(seed: int, position: int) -> None:
    drawn = normals(seed, Purpose.NOISE, positions(position), (2, 5))
    expected = []
    for block in range(3):
        w = words_of(seed, Purpose.NOISE, position, block)
        for radius, angle in ((w[0], w[1]), (w[2], w[3])):
            r, a = math.sqrt(-2.0 * math.log(min(1.0, radius / 2**32 + 2**-33))), 2.0 * math.pi * angle / 2**32
            expected += [r * math.cos(a), r * math.sin(a)]
    torch.testing.assert_close(drawn.flatten().double(), torch.tensor(expected[:10], dtype=torch.float64), rtol=1e-5, atol=2e-6)


def test_a_draw_does_not_depend_on_how_the_batch_is_cut_or_ordered() -> None:
    where = positions(5, 2**33, 0, 17, 2**32 - 1, 5, 123456789)
    whole = normals(3, Purpose.NOISE, where, (3, 7, 5))
    alone = torch.cat([normals(3, Purpose.NOISE, where[i : i + 1], (3, 7, 5)) for i in range(len(where))])
    order = torch.tensor([6, 0, 3, 5, 1, 4, 2])
    assert torch.equal(whole, alone)
    assert torch.equal(whole[order], normals(3, Purpose.NOISE, where[order], (3, 7, 5)))
    assert torch.equal(whole[0], whole[5])
    every_other = torch.arange(20)[::3]
    assert torch.equal(uniforms(3, Purpose.FLIP, every_other, 3), uniforms(3, Purpose.FLIP, torch.arange(20), 3)[::3])


def test_chunks_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = normals(3, Purpose.NOISE, torch.arange(9), (3, 8, 8))
    for chunk in (1, 500, 1000):
        monkeypatch.setattr(draws, "_CHUNK_CPU", chunk)
        assert torch.equal(normals(3, Purpose.NOISE, torch.arange(9), (3, 8, 8)), whole)


def test_an_element_does_not_depend_on_the_shape_around_it() -> None:
    where = torch.arange(4)
    wide = normals(1, Purpose.NOISE, where, (3, 8, 8)).flatten(1)
    for shape in ((1,), (7,), (2, 3), (3, 5, 1), (192,)):
        assert torch.equal(normals(1, Purpose.NOISE, where, shape).flatten(1), wide[:, : math.prod(shape)])
    assert torch.equal(uniforms(1, Purpose.NOISE, where, 3), uniforms(1, Purpose.NOISE, where, 8)[:, :3])
    assert normals(1, Purpose.NOISE, where, ()).shape == (4,)


def test_the_number_of_threads_leaves_no_trace() -> None:
    threads = torch.get_num_threads()
    found = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        found.append(normals(9, Purpose.NOISE, torch.arange(40), (3, 32, 32)))
    torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_nothing_is_asked_of_torchs_own_generators() -> None:
    before = torch.get_rng_state()
    normals(1, Purpose.NOISE, torch.arange(4), (8,))
    uniforms(1, Purpose.NOISE, torch.arange(4))
    assert torch.equal(before, torch.get_rng_state())


def test_draws_are_made_where_the_positions_are_and_wait_for_nothing() -> None:
    where = torch.zeros(6, dtype=torch.int64, device="meta")
    assert normals(1, Purpose.NOISE, where, (3, 4, 4)).device.type == "meta"
    assert uniforms(1, Purpose.NOISE, where, 3).device.type == "meta"
    with NoHostSync():
        normals(1, Purpose.NOISE, torch.arange(6), (3, 4, 4))
        uniforms(1, Purpose.NOISE, torch.arange(6), 3)
        with pytest.raises(HostWaited):
            uniforms(1, Purpose.NOISE, torch.arange(6)).sum().item()


def test_an_empty_batch_or_sample_is_empty() -> None:
    assert normals(1, Purpose.NOISE, torch.arange(0), (3, 4)).shape == (0, 3, 4)
    assert normals(1, Purpose.NOISE, torch.arange(2), (0, 4)).shape == (2, 0, 4)
    assert uniforms(1, Purpose.NOISE, torch.arange(0), 3).shape == (0, 3)


def test_positions_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match="int64"):
        uniforms(1, Purpose.NOISE, torch.arange(3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"\[2, 2\]"):
        normals(1, Purpose.NOISE, torch.zeros((2, 2), dtype=torch.int64), (3,))


def test_purposes_keep_their_numbers() -> None:
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "NOISE": 0,
        "TIMESTEP": 1,
        "FLIP": 2,
        "LABEL_DROP": 3,
        "ORDER": 4,
        "SAMPLE_START": 5,
        "SAMPLE_NOISE": 6,
        "VALIDATION": 7,
        "SPLIT": 8,
        "INIT": 9,
        "CONDITION_NOISE": 10,
        "UPSAMPLE_START": 11,
        "UPSAMPLE_NOISE": 12,
        "CONDITION_LEVEL": 13,
        "UPSAMPLE_CONDITION": 14,
        "LIKELIHOOD_NOISE": 15,
        "STRATUM_TIMESTEP": 16,
        "STRATUM_NOISE": 17,
        "SUBSET": 18,
        "BOOTSTRAP": 19,
    }


@pytest.mark.parametrize("first", [0, 2**32 - 200, 2**45])
def test_normals_have_the_moments_and_shape_of_the_normal(first: int) -> None:
    z = normals(11, Purpose.NOISE, torch.arange(first, first + 200), (2500,)).double()
    n = z.numel()
    assert z.dtype == torch.float64
    for power, moment, spread in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs(float((z**power).mean()) - moment) < 4.0 * math.sqrt(spread / n), power
    assert largest_gap_to_normal(z) < 1.95
    for lane in range(4):
        assert largest_gap_to_normal(z[:, lane::4]) < 1.95


def test_normals_have_the_tails_of_the_normal() -> None:
    n = 4_000_000
    z = normals(5, Purpose.NOISE, torch.arange(n // 4000), (4000,))
    z = z[z.abs() > 3.0]
    for beyond in (3.0, 3.5, 4.0, 4.5, 5.0):
        expected = n * math.erfc(beyond / math.sqrt(2.0)) / 2
        for side in (z > beyond, z < -beyond):
            assert abs(int(side.sum()) - expected) < 4.0 * math.sqrt(expected) + 2.0, beyond
    assert float(z.abs().max()) < 6.8


def test_normals_reach_beyond_six_and_are_never_infinite() -> None:
    extremes = positions(0, 1, 2**31, 2**32 - 256, 2**32 - 1)
    radius, angle = torch.meshgrid(extremes, positions(0, 2**30, 2**31, 2**32 - 1), indexing="ij")
    out = torch.empty((*radius.shape, 2))
    draws._box_muller(radius, angle, out=out)
    assert bool(torch.isfinite(out).all())
    assert 6.5 < float(out.max()) < 6.8
    assert float(out[-1].abs().max()) == 0.0


def test_uniforms_are_uniform_and_use_all_their_bits() -> None:
    u = uniforms(2, Purpose.TIMESTEP, torch.arange(100_000), 3)
    assert u.dtype == torch.float64
    assert 0.0 <= float(u.min()) < float(u.max()) < 1.0
    counts = torch.bincount((u.flatten() * 100).long(), minlength=100).double()
    chi_square = float(((counts - 3000) ** 2 / 3000).sum())
    assert 50 < chi_square < 160
    integers = (u * 2**53).long()
    assert torch.equal(integers.double() / 2**53, u)
    for bit in range(53):
        ones = int(((integers >> bit) & 1).sum())
        assert abs(ones - 150_000) < 5 * math.sqrt(75_000), bit


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"purpose": Purpose.SAMPLE_NOISE}),
        ({}, {"seed": 1}),
        ({}, {"seed": 1 << 32}),
        ({}, {"first": 1}),
        ({}, {"first": 1 << 32}),
        ({"seed": 1}, {"purpose": Purpose.TIMESTEP}),
        ({"seed": 1}, {"first": 1}),
        ({"first": 1}, {"purpose": Purpose.TIMESTEP}),
    ],
)
def test_other_seed_purpose_or_position_is_an_independent_stream(one: dict[str, int], other: dict[str, int]) -> None:
    def drawn(seed: int = 0, purpose: int = Purpose.NOISE, first: int = 0) -> Tensor:
        return normals(seed, Purpose(purpose), torch.arange(first, first + 100), (1000,))

    a, b = drawn(**one), drawn(**other)
    assert abs(correlation(a, b)) < 4.0
    assert abs(correlation(a**2, b**2)) < 4.0
    assert not torch.equal(a, b)


def test_neighbouring_positions_and_elements_are_independent() -> None:
    z = normals(4, Purpose.NOISE, torch.arange(400), (1000,))
    for lag in (1, 2, 3, 4, 8, 64):
        assert abs(correlation(z[:-lag], z[lag:])) < 4.0, lag
        assert abs(correlation(z[:, :-lag], z[:, lag:])) < 4.0, lag
        assert abs(correlation(z[:, :-lag] ** 2, z[:, lag:] ** 2)) < 4.0, lag
    # Sums over elements: a hidden dependence between a sample's elements would widen or narrow them.
    assert largest_gap_to_normal(z.double().sum(dim=1) / math.sqrt(1000)) < 1.95
    assert largest_gap_to_normal(z.double().sum(dim=0) / math.sqrt(400)) < 1.95
