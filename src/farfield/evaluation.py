"""A run, one of its versions and a number of episodes go in; returns, lengths and, when watched, frames come out."""

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct

from farfield import wiring
from farfield.codec import spec_hash
from farfield.config import RunConfig
from farfield.errors import EnvError, MissingError, SpecError, nearest
from farfield.experience.lanes import Lanes
from farfield.experience.noise import draw
from farfield.types import Array, Columns, Field, Kind, Spec, Version, noise_blocks

LANES = 16  # side by side at most
LIMIT = 200_000  # steps after which an episode is taken for endless
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Decide = Callable[[Columns, Array], Columns]  # observations [N, …] and where episodes begin [N] -> actions [N, …]
Watch = Callable[[Lanes], None]  # sees the lanes after every step and at the start


class Evaluation(Struct, frozen=True):
    """What came of some episodes, in the order of lanes and then of time."""

    run: str
    env: str
    policy: str
    version: int | None
    seed: int
    backend: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float

    def summary(self) -> dict[str, object]:
        """Give the figures that people compare."""
        returns, lengths = np.asarray(self.returns), np.asarray(self.lengths)
        return {
            "run": self.run,
            "env": self.env,
            "policy": self.policy,
            "version": self.version,
            "seed": self.seed,
            "backend": self.backend,
            "episodes": len(returns),
            "return_mean": float(returns.mean()),
            "return_deviation": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
            "return_min": float(returns.min()),
            "return_max": float(returns.max()),
            "return_quantiles": {
                f"{q:g}": float(value) for q, value in zip(QUANTILES, np.quantile(returns, QUANTILES), strict=True)
            },
            "length_mean": float(lengths.mean()),
            "length_max": int(lengths.max()),
            "steps": int(lengths.sum()),
            "seconds": self.seconds,
        }


def evaluate(
    config: RunConfig,
    folder: Path | None,
    *,
    episodes: int,
    number: int | None = None,
    policy: Literal["greedy", "explore", "random"] = "greedy",
    seed: int | None = None,
    watch: Watch | None = None,
) -> Evaluation:
    """Play whole episodes with a version of a run, the newest one unless `number` says another, or at random."""
    seed = config.seed + 1_000_003 if seed is None else seed  # other episodes than those it learned from
    lanes = wiring.lanes_of(config, 1 if watch else min(episodes, LANES), seed=seed, replayable=False)
    try:
        version = None
        if policy == "random" or folder is None:
            decide = at_random(lanes.spec, seed)
        else:
            version = version_of(config, folder, number)
            decide = _by_version(config, folder, version, lanes, explore=policy == "explore", seed=seed)
        begun = time.monotonic()
        returns, lengths = play(lanes, decide, episodes=episodes, watch=watch)
        return Evaluation(
            run=config.run,
            env=config.env,
            policy=policy,
            version=version.number if version else None,
            seed=seed,
            backend=lanes.backend,
            returns=tuple(returns),
            lengths=tuple(lengths),
            seconds=time.monotonic() - begun,
        )
    finally:
        lanes.close()


def version_of(config: RunConfig, folder: Path, number: int | None = None) -> Version:
    """Find a version of a run: the newest, or the one of this number."""
    registry = wiring.registry_of(config, folder)
    known = registry.numbers()
    if not known:
        raise MissingError(f"run {config.run!r} has no version yet; it publishes its first one when training begins")
    if number is None:
        head = registry.head()
        if head is not None:
            return head
    elif number in known or number in registry.orphans():
        return registry.version(number)
    raise MissingError(
        f"run {config.run!r} has no version {number}; it keeps {len(known)} of them, "
        f"from {known[0]} to {known[-1]}: {nearest(str(number), map(str, known))}"
    )


def play(
    lanes: Lanes, decide: Decide, *, episodes: int, watch: Watch | None = None, limit: int = LIMIT
) -> tuple[list[float], list[int]]:
    """Play until every lane has finished its share, so that short episodes do not come in the place of long ones."""
    count = lanes.count
    shares = [episodes // count + (lane < episodes % count) for lane in range(count)]
    returns: list[list[float]] = [[] for _ in shares]
    lengths: list[list[int]] = [[] for _ in shares]
    total, length = np.zeros(count), np.zeros(count, np.int64)
    obs, first = lanes.reset(), np.ones(count, bool)
    if watch:
        watch(lanes)
    while any(len(done) < share for done, share in zip(returns, shares, strict=True)):
        tick = lanes.step(decide(obs, first))
        total += tick.reward
        length += tick.valid
        ended = tick.terminated | tick.truncated
        for lane in np.nonzero(ended)[0]:
            returns[lane].append(float(total[lane]))
            lengths[lane].append(int(length[lane]))
        total[ended], length[ended] = 0.0, 0
        if length.max() > limit:
            raise EnvError(f"an episode did not end within {limit} steps; give the environment a limit of its own")
        first = ~tick.valid
        if tick.final is not None:
            first[tick.final[0]] = True
        obs = tick.obs
        if watch:
            watch(lanes)
    shared = list(zip(returns, lengths, shares, strict=True))
    return [r for rs, _, n in shared for r in rs[:n]], [s for _, ss, n in shared for s in ss[:n]]


def at_random(spec: Spec, seed: int) -> Decide:
    """Make what decides uniformly among all allowed actions: the baseline."""
    rng = np.random.default_rng(seed)

    def decide(obs: Columns, first: Array) -> Columns:
        return {field.name: _sample(field, obs.get(field.mask), len(first), rng) for field in spec.actions}

    return decide


def _by_version(config: RunConfig, folder: Path, version: Version, lanes: Lanes, *, explore: bool, seed: int) -> Decide:
    """Make what decides as a version does, with the noise it learned with or greedily."""
    if version.spec != lanes.spec:
        raise SpecError(
            f"version {version.number} of {config.run!r} was made for spec {spec_hash(version.spec)}, {config.env} now "
            f"has {spec_hash(lanes.spec)}; install the environment as it was when the run began"
        )
    policy = wiring.policy_of(version)
    policy.load(version, wiring.registry_of(config, folder).fetch(version))
    memory = policy.memory(lanes.count)
    blocks = noise_blocks(version.spec, version.network)
    stream = sha256(f"farfield evaluation {seed}".encode()).hexdigest()[:32]
    decision = 0

    def decide(obs: Columns, first: Array) -> Columns:
        nonlocal memory, decision
        for state in memory.values():
            state[first] = 0
        noise = None
        if explore:
            noise = draw(blocks, seed=seed, stream=stream, first=decision, steps=1, lanes=lanes.count)[0]
            decision += lanes.count
        choice = policy.act(obs, noise=noise, memory=memory)
        memory = choice.memory
        return choice.action

    return decide


def _sample(field: Field, mask: Array | None, lanes: int, rng: np.random.Generator) -> Array:
    """Draw one action field [N, …]."""
    shape = (lanes, *field.shape)
    match field.kind:
        case Kind.DISCRETE | Kind.MULTI_DISCRETE:
            keys = rng.random((lanes, sum(field.sizes)))
            keys = keys if mask is None else np.where(mask, keys, -1.0)
            parts = np.split(keys, np.cumsum(field.sizes)[:-1], axis=1)
            return np.stack([part.argmax(axis=1) for part in parts], axis=-1).reshape(shape).astype(field.dtype)
        case Kind.MULTI_BINARY:
            return rng.integers(0, 2, shape).astype(field.dtype)
        case Kind.BOX:
            low, high = _bound(field.low, field.shape), _bound(field.high, field.shape)
            bounded = (low > -1e30) & (high < 1e30)
            width = np.where(bounded, high - low, 1.0)
            uniform = np.where(bounded, low, 0.0) + rng.random(shape) * width
            return np.where(bounded, uniform, rng.standard_normal(shape)).astype(field.dtype)


def _bound(values: tuple[float, ...], shape: tuple[int, ...]) -> Array:
    """Spread a field's bounds over its shape; none is out of reach, as infinite ones are in a spec."""
    return np.broadcast_to(values[0] if len(values) == 1 else np.reshape(values, shape) if values else 1e38, shape)
