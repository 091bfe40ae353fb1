"""Environments that we ship: they keep Gymnasium's rules, and each can only be solved by what it is there for."""

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import farfield.envs
from farfield.experience import lanes
from farfield.experience.lanes import Config


@pytest.mark.parametrize("env", sorted(farfield.envs.IDS))
def test_they_keep_gymnasiums_rules(env: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about bounds that are as they are meant
        check_env(gymnasium.make(env).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("env", sorted(farfield.envs.IDS))
def test_equal_seeds_give_equal_episodes_also_after_others(env: str) -> None:
    made = lanes.make(env, 3, Config(), seed=4, replayable=True)
    space = gymnasium.make(env).action_space
    space.seed(1)
    made.reset()
    for _ in range(30):
        made.step({"action": np.array([space.sample() for _ in range(3)])})
    state = made.state()
    restored = lanes.make(env, 3, Config(), seed=4, replayable=True).restore(state)
    assert all((restored[name] == state[name]).all() for name in restored)


def play(env: str, rule: Any, episodes: int = 50) -> list[float]:
    """Returns of a rule from observations to actions."""
    made, found = gymnasium.make(env), []
    for episode in range(episodes):
        obs, _ = made.reset(seed=episode)
        total, over, cut = 0.0, False, False
        while not (over or cut):
            obs, reward, over, cut, _ = made.step(rule(obs))
            total += float(reward)
        found.append(total)
    return found


@pytest.mark.parametrize("kind", ["Box", "Discrete", "MultiBinary", "MultiDiscrete"])
def test_repeating_what_is_shown_is_right_at_every_step(kind: str) -> None:
    env = f"farfield/Identity{kind}-v0"
    assert play(env, lambda obs: obs) == [8.0] * 50
    space = gymnasium.make(env).action_space
    assert np.mean(play(env, lambda _: space.sample())) < 6


def test_the_mask_forbids_what_costs() -> None:
    env = "farfield/IdentityMasked-v0"
    assert play(env, lambda obs: obs["shown"]) == [8.0] * 50
    allowed = play(env, lambda obs: np.flatnonzero(obs["action_mask"])[0])
    assert min(allowed) >= 0
    assert 0 < np.mean(allowed) < 5
    assert np.mean(play(env, lambda obs: np.flatnonzero(1 - obs["action_mask"])[0])) == -8


def test_only_who_remembers_the_sign_turns_right() -> None:
    env = "farfield/MemoryCorridor-v0"
    kept: dict[str, Any] = {}

    def remembering(obs: Any) -> int:
        if obs[0]:
            kept["sign"] = obs[0]
        return int(kept["sign"] > 0)

    assert play(env, remembering) == [1.0] * 50
    made = gymnasium.make(env)
    ends = {tuple(run_to_the_end(made, seed)) for seed in range(20)}
    assert ends == {(0.0, 1.0)}  # the observation at which it counts says nothing
    assert abs(np.mean(play(env, lambda obs: int(obs[0] > 0), 200))) < 0.3


def run_to_the_end(made: Any, seed: int) -> Any:
    obs, _ = made.reset(seed=seed)
    while not obs[1]:
        obs, *_ = made.step(0)
    return obs


def test_the_corridor_ends_at_its_door_and_is_cut_off_by_its_limit() -> None:
    made = gymnasium.make("farfield/Corridor-v0")
    made.reset(seed=0)
    walked = [made.step(np.int64(1))[:4] for _ in range(5)]
    assert walked == [(place, 0.0, False, False) for place in range(1, 5)] + [(5, 1.0, True, False)]
    made.reset(seed=0)
    stood = [made.step(np.int64(0))[:4] for _ in range(20)]
    assert stood == [(0, 0.0, False, False)] * 19 + [(0, 0.0, False, True)]
