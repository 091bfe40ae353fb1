"""The name of an environment in; environments of it side by side, stepped by the fastest that exists, out."""

import inspect
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode
from msgspec import Meta, Struct

from farfield.errors import ConfigError
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
    wanted: tuple[str, ...] = (config.backend,)
    if config.backend == "auto":
        wanted = ("sync",) if replayable or entry.entry_point is None else ("vector", "envpool", "sync")
        wanted = ("vector",) if entry.entry_point is None else wanted
    for backend in wanted[:-1]:
        try:
            return _open(backend, entry, count, config, seed=seed, replayable=replayable)
        except ConfigError:  # it cannot honour this id or these settings: the next one
            continue
    return _open(wanted[-1], entry, count, config, seed=seed, replayable=replayable)


def _open(backend: str, entry: EnvSpec, count: int, config: Config, *, seed: int, replayable: bool) -> Lanes:
    match backend:
        case "vector":
            return _vector(entry, count, config, seed=seed)
        case "envpool":
            return _pool(entry, count, config, seed=seed)
        case _:
            return _single(entry, count, config, seed=seed, replayable=replayable)


def _single(entry: EnvSpec, count: int, config: Config, *, seed: int, replayable: bool) -> SingleLanes:
    first = catalog.open_one(entry, config.options, config.episode_limit)
    layout = _layout(entry, first, seed)
    envs = [first, *(catalog.open_one(entry, config.options, config.episode_limit) for _ in range(count - 1))]
    return SingleLanes(
        envs, name=entry.id, layout=layout, skip=config.frame_skip, seed=seed, replayable=replayable
    )
