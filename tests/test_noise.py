"""Noise: the same decision has the same noise for ever and everywhere, and it is distributed as it says."""

import math

import numpy as np
import pytest

from farfield.errors import ConfigError
from farfield.experience import noise
from farfield.experience.seeds import noise_key

STREAM = "00112233445566778899aabbccddeeff"
KEY = (0x9440BEF7918529FF, 0x552E4C26595EB254)  # of seed 3 and STREAM
WORD = 0xD9939967E6FA6D51  # the first of counter 0 under KEY
GOLDEN = [  # decisions 7 and 8 of ALL
    [0.27006787, -0.017607447, -0.066712454, 0.43367088, 0.4251825, -1.3498502, 0.9627384, 0.068219714, 0.6464305],
    [0.57089925, 0.12608151, 0.5772382, 0.119251, 1.5795512, -2.2097025, 1.3066154, 0.7062867, 0.7646832],
]
ALL = (("gumbel", 3), ("uniform", 1), ("logistic", 2), ("normal", 3))


def test_a_decision_has_the_same_noise_however_many_are_drawn_at_once() -> None:
    whole = noise.draw(ALL, seed=3, stream=STREAM, first=100, steps=12, lanes=4)
    assert whole.shape == (12, 4, 9)
    assert whole.dtype == np.float32
    for t in range(12):
        row = noise.draw(ALL, seed=3, stream=STREAM, first=100 + 4 * t, steps=1, lanes=4)
        assert (row[0] == whole[t]).all()
    one = noise.draw(ALL, seed=3, stream=STREAM, first=100 + 4 * 5 + 2, steps=1, lanes=1)
    assert (one[0, 0] == whole[5, 2]).all()


def test_seeds_streams_and_decisions_differ() -> None:
    def first(seed: int, stream: str, at: int) -> float:
        return float(noise.draw((("normal", 1),), seed=seed, stream=stream, first=at, steps=1, lanes=1)[0, 0, 0])

    other = STREAM[:-1] + "e"
    assert len({first(1, STREAM, 0), first(2, STREAM, 0), first(1, other, 0), first(1, STREAM, 1)}) == 4


def test_it_is_distributed_as_it_says() -> None:
    drawn = noise.draw(ALL, seed=1, stream=STREAM, first=0, steps=1000, lanes=50).reshape(-1, 9).astype(np.float64)
    gumbel, uniform, logistic, normal = drawn[:, :3], drawn[:, 3], drawn[:, 4:6], drawn[:, 6:]
    assert abs(gumbel.mean() - 0.5772) < 0.02
    assert abs(gumbel.std() - math.pi / math.sqrt(6)) < 0.02
    assert abs(uniform.mean() - 0.5) < 0.01
    assert 0 < uniform.min() < uniform.max() < 1
    assert abs(logistic.mean()) < 0.03
    assert abs(logistic.std() - math.pi / math.sqrt(3)) < 0.03
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01
    assert abs(np.corrcoef(drawn.T) - np.eye(9)).max() < 0.02


def philox(key: tuple[int, int], counter: int) -> list[int]:
    """Philox4x64-10 as its authors define it, slow and obvious."""
    low = (1 << 64) - 1
    x, k = [counter & low, counter >> 64 & low, counter >> 128 & low, counter >> 192], list(key)
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
        x = [b >> 64 ^ x[1] ^ k[0], b & low, a >> 64 ^ x[3] ^ k[1], a & low]
        k = [(k[0] + 0x9E3779B97F4A7C15) & low, (k[1] + 0xBB67AE8584CAA73B) & low]
    return x


@pytest.mark.parametrize("first", [0, 1, 12345, 1 << 63])
def test_it_equals_the_written_definition(first: int) -> None:
    blocks = -(-(3 + 1 + 2 + 4) // 4)
    key = noise_key(3, STREAM)
    raw = [word for j in range(blocks) for word in philox(key, first * blocks + j)]
    u = [((word >> 12) + 0.5) * 2.0**-52 for word in raw]
    radius = [math.sqrt(-2 * math.log(u[6])), math.sqrt(-2 * math.log(u[8]))]
    expected = [
        *(-math.log(-math.log(value)) for value in u[:3]),
        u[3],
        *(math.log(value / (1 - value)) for value in u[4:6]),
        radius[0] * math.cos(2 * math.pi * u[7]),
        radius[0] * math.sin(2 * math.pi * u[7]),
        radius[1] * math.cos(2 * math.pi * u[9]),
    ]
    came = noise.draw(ALL, seed=3, stream=STREAM, first=first, steps=1, lanes=1)[0, 0]
    np.testing.assert_allclose(came, np.array(expected, np.float32), rtol=2e-7, atol=1e-7)


def test_golden_values_for_other_languages() -> None:
    assert noise_key(3, STREAM) == KEY
    assert philox(KEY, 0)[0] == WORD
    came = noise.draw(ALL, seed=3, stream=STREAM, first=7, steps=1, lanes=2)
    np.testing.assert_allclose(came[0], GOLDEN, rtol=2e-7)


def test_nothing_wanted_is_nothing_drawn_and_nonsense_is_refused() -> None:
    assert noise.draw((), seed=1, stream=STREAM, first=0, steps=3, lanes=2).shape == (3, 2, 0)
    assert noise.draw(ALL, seed=1, stream=STREAM, first=0, steps=0, lanes=2).shape == (0, 2, 9)
    with pytest.raises(ConfigError, match="32 lower-case hexadecimal"):
        noise.draw(ALL, seed=1, stream="main", first=0, steps=1, lanes=1)
    with pytest.raises(ConfigError, match="known: gumbel"):
        noise.draw((("cauchy", 1),), seed=1, stream=STREAM, first=0, steps=1, lanes=1)
