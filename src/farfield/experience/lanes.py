"""The name of an environment in; environments of it side by side, stepped by the fastest that exists, out."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode
from msgspec import Meta, Struct

from farfield.errors import ConfigError, EnvError
from farfield.experience import catalog, pool, spaces, vector
from farfield.experience.seeds import episode_seed
from farfield.experience.single import SingleLanes
from farfield.experience.vector import VectorLanes

Lanes = SingleLanes | VectorLanes
Whole = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Backend = Literal["auto", "vector", "envpool", "sync"]


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How environments are stepped."""

    count: Positive = 8
    steps: Positive = 128  # of one fragment
    backend: Backend = "auto"
    frame_skip: Positive = 1  # how often an action is repeated; rewards are summed
    episode_limit: Whole = 0  # environment steps after which an episode is truncated; 0: the environment's own limit
    options: dict[str, Any] = {}  # keyword arguments of gymnasium.make
    threads: Positive = 1  # of EnvPool


def make(env: str, count: int, config: Config, *, seed: int, replayable: bool = False) -> Lanes:
    """Make `count` lanes of an environment; replayable ones can be brought back to any step of theirs."""
    entry = catalog.find(env)
    ways: dict[str, Callable[[], Lanes]] = {
        "vector": lambda: _vector(entry, count, config, seed=seed),
        "envpool": lambda: _pool(entry, count, config, seed=seed),
        "sync": lambda: _single(entry, count, config, seed=seed, replayable=replayable),
    }
    if replayable and config.backend in ("vector", "envpool"):
        raise ConfigError(
            f'lanes.backend = "{config.backend}" cannot be brought back to where it was, as actors = 0 promises; set '
            'lanes.backend = "auto", or step in a process of its own with --actors 1'
        )
    if config.backend != "auto":
        return ways[config.backend]()
    for backend in () if replayable else ("vector", "envpool"):
        try:
            return ways[backend]()
        except ConfigError:  # it cannot honour this id or these settings: the next one
            continue
    return ways["sync"]()


def _single(entry: EnvSpec, count: int, config: Config, *, seed: int, replayable: bool) -> SingleLanes:
    """Make environments that we step one after another."""
    if entry.entry_point is None:
        raise ConfigError(
            f"{entry.id} exists as a vector class only, and cannot be brought back to where it was as actors = 0 "
            'promises; set lanes.backend = "vector" and actors = 1'
        )
    envs = [catalog.open_one(entry, config.options, config.episode_limit) for _ in range(count)]
    first = envs[0]
    info = _first_info(entry.id, first, seed)
    layout = spaces.layout(entry.id, first.observation_space, first.action_space, info)
    return SingleLanes(envs, name=entry.id, layout=layout, skip=config.frame_skip, seed=seed, replayable=replayable)


def _vector(entry: EnvSpec, count: int, config: Config, *, seed: int) -> VectorLanes:
    """Make the environment's own vector class."""
    if entry.vector_entry_point is None or "phys2d" in entry.id or entry.additional_wrappers or config.frame_skip > 1:
        raise ConfigError(
            f'lanes.backend = "vector": {entry.id} has no vector class of its own in NumPy that can be used with its '
            'wrappers and lanes.frame_skip; set lanes.backend = "auto"'
        )
    limit = config.episode_limit or entry.max_episode_steps
    settings = entry.kwargs | config.options | ({"max_episode_steps": limit} if limit else {})
    target = entry.vector_entry_point
    cure = 'repair it, or set lanes.backend = "sync"'
    try:
        creator: Any = load_env_creator(target) if isinstance(target, str) else target
        inspect.signature(creator).bind(num_envs=count, **settings)
        env = creator(num_envs=count, **settings)
    except Exception as error:
        raise ConfigError(
            f"{entry.id}: its vector class cannot be made with {settings}: {type(error).__name__}: {error}; {cure}"
        ) from error
    info = _first_info(entry.id, env, seed)
    if spaces.MASK_KEY in info and vector.mode(env, entry.id) is not AutoresetMode.NEXT_STEP:
        raise ConfigError(
            f"{entry.id}: info['action_mask'] of a vector class that resets at once says nothing of last observations; "
            'put the mask into the observation, or set lanes.backend = "sync"'
        )
    layout = spaces.layout(entry.id, env.single_observation_space, env.single_action_space, _one(info))
    name = f"{type(env).__module__.partition('.')[0]} {type(env).__name__}"
    return VectorLanes(env, name=entry.id, backend=name, layout=layout, seed=seed, seeded=True)


def _pool(entry: EnvSpec, count: int, config: Config, *, seed: int) -> VectorLanes:
    """Make an EnvPool; the spaces are Gymnasium's, since EnvPool states some bounds differently."""
    if config.frame_skip > 1 or config.options:
        raise ConfigError(
            'lanes.backend = "envpool" takes neither lanes.frame_skip nor lanes.options; leave them out, or set '
            'lanes.backend = "auto"'
        )
    start = episode_seed(seed, 0, 0)
    env = pool.make(entry.id, count, threads=config.threads, limit=config.episode_limit, seed=start)
    model = catalog.open_one(entry, {}, 0)
    layout = spaces.layout(entry.id, model.observation_space, model.action_space, {})
    model.close()
    return VectorLanes(env, name=entry.id, backend="envpool", layout=layout, seed=seed, seeded=False)


def _first_info(name: str, env: Any, seed: int) -> dict[str, Any]:
    """Reset once to see what comes with an observation."""
    try:
        return env.reset(seed=episode_seed(seed, 0, 0))[1]
    except Exception as error:
        raise EnvError(f"{name}, reset() raised {type(error).__name__}: {error}; repair the environment") from error


def _one(info: dict[str, Any]) -> dict[str, Any]:
    """Take the first lane's mask from a batch."""
    mask = info.get(spaces.MASK_KEY)
    return {} if mask is None else {spaces.MASK_KEY: mask[0]}
