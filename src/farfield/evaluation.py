"""A run, one of its versions and a number of episodes go in; returns and lengths come out, and pictures if watched."""

import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from farfield import config as configs
from farfield import wiring
from farfield.canonical import spec_hash
from farfield.config import RunConfig
from farfield.errors import EnvError, MissingError, SpecError
from farfield.experience import rendering
from farfield.experience.lanes import Lanes
from farfield.experience.noise import draw
from farfield.types import Array, Columns, Field, Kind, Spec, Version, noise_blocks

LANES = 16  # side by side at most
LIMIT = 200_000  # steps after which an episode is taken for endless
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Decide = Callable[[Columns, Array], Columns]  # observations [N, …] and where episodes begin [N] -> actions [N, …]
How = Literal["greedy", "explore", "random"]
Watch = Callable[[rendering.Stage], None]  # sees the environment at the start and after every step


def evaluate(
    run: str,
    *,
    episodes: int = 10,
    home: str = "",
    version: int | None = None,
    policy: How = "greedy",
    seed: int | None = None,
    watch: Watch | None = None,
    mode: rendering.Mode = "rgb_array",
) -> dict[str, Any]:
    """Play whole episodes with a run's newest version, or another one, or at random; give what came of them.

    A random policy needs no run: an environment's id does. Whoever watches sees one lane, rendered as `mode`.
    """
    folder, config = _named(run, home, bare=policy == "random")
    seed = config.seed + 1_000_003 if seed is None else seed  # other episodes than those it learned from
    stage = rendering.make(config.env, config.lanes, mode=mode, seed=seed) if watch else None
    lanes = stage.lanes if stage else wiring.lanes_of(config, min(episodes, LANES), seed=seed, replayable=False)
    try:
        found = None
        decide = at_random(lanes.spec, seed)
        if policy != "random" and folder:
            found = version_of(config, folder, version)
            decide = _by_version(config, folder, found, lanes, explore=policy == "explore", seed=seed)
        begun = time.monotonic()
        seen = (lambda: watch(stage)) if watch and stage else None
        returns, lengths = play(lanes, decide, episodes=episodes, watch=seen)
        facts = {"run": run if folder else None, "env": config.env, "policy": policy, "seed": seed}
        facts |= {"version": found.number if found else None, "backend": lanes.backend}
        return facts | summed(returns, lengths) | {"seconds": time.monotonic() - begun}
    finally:
        lanes.close()


def summed(returns: Sequence[float], lengths: Sequence[int]) -> dict[str, Any]:
    """Give the figures that people compare, and the episodes that they come from."""
    r = np.asarray(returns)
    quantiles = zip(QUANTILES, np.quantile(r, QUANTILES).tolist(), strict=True)
    return {
        "episodes": len(r),
        "return_mean": float(r.mean()),
        "return_deviation": float(r.std(ddof=1)) if len(r) > 1 else 0.0,
        "return_min": float(r.min()),
        "return_max": float(r.max()),
        "return_quantiles": {f"{q:g}": value for q, value in quantiles},
        "length_mean": float(np.mean(lengths)),
        "length_min": int(np.min(lengths)),
        "length_max": int(np.max(lengths)),
        "steps": int(np.sum(lengths)),
        "returns": list(returns),
        "lengths": list(lengths),
    }


def render_modes(run: str, home: str = "") -> tuple[str, ...]:
    """List the ways in which a run's environment can show itself; an environment's id may stand for a run."""
    config = _named(run, home, bare=True)[1]
    return rendering.modes(config.env, config.lanes)


def version_of(config: RunConfig, folder: Path, number: int | None = None) -> Version:
    """Find a version of a run: the newest, or the one of this number."""
    registry = wiring.registry_of(config, folder)
    known = registry.numbers()
    if not known:
        raise MissingError(f"run {config.run!r} has no version yet; it publishes its first one when training begins")
    if number is None:
        return registry.version(known[-1])
    if number in known or number in registry.orphans():
        return registry.version(number)
    raise MissingError(
        f"run {config.run!r} has no version {number}; it keeps {len(known)} of them, from {known[0]} to {known[-1]}; "
        f"the nearest is {min(known, key=lambda one: abs(one - number))}"
    )


def play(
    lanes: Lanes, decide: Decide, *, episodes: int, watch: Callable[[], None] | None = None, limit: int = LIMIT
) -> tuple[list[float], list[int]]:
    """Play until every lane has finished its share, so that short episodes do not come in the place of long ones."""
    count = lanes.count
    shares = [episodes // count + (lane < episodes % count) for lane in range(count)]
    returns: list[list[float]] = [[] for _ in shares]
    lengths: list[list[int]] = [[] for _ in shares]
    total, length = np.zeros(count), np.zeros(count, np.int64)
    obs, first = lanes.reset(), np.ones(count, bool)
    if watch:
        watch()
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
            watch()
    shared = list(zip(returns, lengths, shares, strict=True))
    return [r for rs, _, n in shared for r in rs[:n]], [s for _, ss, n in shared for s in ss[:n]]


def at_random(spec: Spec, seed: int) -> Decide:
    """Make what decides uniformly among all allowed actions: the baseline."""
    rng = np.random.default_rng(seed)

    def decide(obs: Columns, first: Array) -> Columns:
        return {field.name: _sample(field, obs.get(field.mask), len(first), rng) for field in spec.actions}

    return decide


def _named(run: str, home: str, *, bare: bool) -> tuple[Path | None, RunConfig]:
    """Find a run; where a `bare` environment will do, its id is taken too."""
    if bare and run not in wiring.run_names(home):
        return None, configs.decode({"run": "random", "env": run})
    folder = wiring.run_folder(home, run)
    return folder, wiring.read_config(folder)


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
