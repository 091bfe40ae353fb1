"""Numbers in, well-mixed numbers out: the one place where seeds of episodes and keys of noise come from."""

_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """Scatter 64 bits over 64 bits, one to one (SplitMix64's step and finaliser)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def episode_seed(seed: int, lane: int, episode: int) -> int:
    """Name the seed of a lane's episode: 31 bits, since some environments keep it in a C int."""
    return mix(mix(mix(seed & _MASK) ^ lane) ^ episode) >> 33


def noise_key(seed: int, stream: str) -> tuple[int, int]:
    """Name the two key words of a stream's noise; `stream` is 32 hexadecimal digits."""
    first = mix(mix(seed & _MASK) ^ int(stream[:16], 16))
    return first, mix(first ^ int(stream[16:], 16))
