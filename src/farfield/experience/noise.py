"""A seed, a stream and a range of decisions in; the same noise out, whoever draws it and however much at once.

Word w of decision n is word w % 4 of the Philox4x64-10 block with counter (n * blocks + w // 4, 0, 0, 0), where
`blocks` is the words of one decision divided by four, rounded up.
"""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from farfield.errors import ConfigError
from farfield.experience.seeds import noise_key
from farfield.types import Noise

Doubles = npt.NDArray[np.float64]
_STREAM = re.compile("[0-9a-f]{32}")
_BELOW_ONE = np.float32(1) - np.float32(2.0**-24)


def words(distribution: str, width: int) -> int:
    """Say how many 64-bit words a block of noise takes: one each, for normals two a pair."""
    return width + width % 2 if distribution == "normal" else width


def draw(blocks: Sequence[tuple[str, int]], *, seed: int, stream: str, first: int, steps: int, lanes: int) -> Noise:
    """Draw noise [T, N, K] of decisions first + t * lanes + lane; `blocks` are (distribution, width) in order."""
    if not _STREAM.fullmatch(stream):
        raise ConfigError(f"noise: stream must be 32 lower-case hexadecimal digits, got {stream!r}")
    count, used = steps * lanes, sum(words(*block) for block in blocks)
    noise = np.empty((steps, lanes, sum(width for _, width in blocks)), np.float32)
    if noise.size == 0:
        return noise
    flat = noise.reshape(count, -1)
    each = -(-used // 4)
    # NumPy counts up before it draws, so it starts one block earlier.
    counter = (first * each - 1) % (1 << 256)
    generator = np.random.Philox(key=np.array(noise_key(seed, stream), np.uint64), counter=counter)
    raw = generator.random_raw(count * each * 4).reshape(count, each * 4)[:, :used]
    # 52 bits and a half: never 0, never 1, and exact in a double.
    uniform: Doubles = ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    taken = filled = 0
    for distribution, width in blocks:
        end = taken + words(distribution, width)
        flat[:, filled : filled + width] = _shape(distribution, uniform[:, taken:end], width)
        taken, filled = end, filled + width
    return noise


def _shape(distribution: str, uniform: Doubles, width: int) -> Doubles | Noise:
    match distribution:
        case "gumbel":
            return -np.log(-np.log(uniform))
        case "logistic":
            return np.log(uniform / (1.0 - uniform))
        case "uniform":  # must stay below one in 32 bits too
            return np.minimum(uniform.astype(np.float32), _BELOW_ONE)
        case "normal":
            radius, angle = np.sqrt(-2.0 * np.log(uniform[:, 0::2])), 2.0 * np.pi * uniform[:, 1::2]
            pairs = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=-1)
            return pairs.reshape(len(uniform), -1)[:, :width]
        case _:
            raise ConfigError(f"noise: unknown distribution {distribution!r}; known: gumbel, logistic, normal, uniform")
