"""Every id that EnvPool may step equals Gymnasium's: dynamics, rewards, ends, time limits, and what policies get."""

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from farfield.experience import lanes, pool
from farfield.types import Array

pytest.importorskip("envpool")
pytest.importorskip("Box2D")

Rule = Callable[[Array], Array]


def pendulum(obs: Array) -> Array:
    """Push along: it soon turns as fast as it may."""
    return np.where(obs[:, 2:] >= 0, 2.0, -2.0).astype(np.float32)


def heuristic(obs: Array) -> tuple[Array, Array]:
    """How far to turn and how much to rise, to land softly."""
    target = np.clip(obs[:, 0] * 0.5 + obs[:, 2], -0.4, 0.4)
    turn, rise = (target - obs[:, 4]) * 0.5 - obs[:, 5], (0.55 * abs(obs[:, 0]) - obs[:, 1]) * 0.5 - obs[:, 3] * 0.5
    landed = obs[:, 6] + obs[:, 7] > 0
    return np.where(landed, 0, turn), np.where(landed, -obs[:, 3] * 0.5, rise)


def land(obs: Array) -> Array:
    turn, rise = heuristic(obs)
    main = (rise > abs(turn)) & (rise > 0.05)
    return np.select([main, turn < -0.05, turn > 0.05], [2, 3, 1], 0).astype(np.int64)


def land_smoothly(obs: Array) -> Array:
    turn, rise = heuristic(obs)
    return np.clip(np.stack([rise * 20 - 1, -turn * 20], 1), -1, 1).astype(np.float32)


def at_random(env: str) -> Rule:
    rng, space = np.random.default_rng(0), gymnasium.make(gymnasium.registry[env]).action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return lambda obs: rng.integers(space.n, size=len(obs))
    assert isinstance(space, gymnasium.spaces.Box)
    return lambda obs: rng.uniform(space.low, space.high, (len(obs), *space.shape)).astype(np.float32)


PURPOSEFUL: dict[str, Rule] = {
    "Acrobot-v1": lambda obs: np.where(obs[:, 5] > 0, 2, 0),
    "CartPole-v0": lambda obs: (obs[:, 2] + 0.1 * obs[:, 3] > 0).astype(np.int64),
    "CartPole-v1": lambda obs: (obs[:, 2] + 0.1 * obs[:, 3] > 0).astype(np.int64),
    "LunarLander-v3": land,
    "LunarLanderContinuous-v3": land_smoothly,
    "MountainCar-v0": lambda obs: np.where(obs[:, 1] >= 0, 2, 0),
    "MountainCarContinuous-v0": lambda obs: np.where(obs[:, 1:] >= 0, 1.0, -1.0).astype(np.float32),
    "Pendulum-v1": pendulum,
}
CLASSIC = sorted(pool.EQUAL - {"LunarLander-v3", "LunarLanderContinuous-v3"})
LANDERS = ["LunarLander-v3", "LunarLanderContinuous-v3"]


def pooled(env: str, count: int, limit: int = 0, seed: int = 5) -> Any:
    """An EnvPool, also of ids that are not on the list."""
    import envpool

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limits = {"max_episode_steps": limit} if limit else {}
        return envpool.make(env, env_type="gymnasium", num_envs=count, num_threads=1, seed=seed, **limits)


def steps(env: str, rule: Rule, *, count: int, ticks: int) -> list[tuple[Any, ...]]:
    """Real steps of EnvPool: observation, action, next one, reward, terminated, truncated, steps since the reset."""
    made, found, ended = pooled(env, count), [], np.zeros(count, bool)
    obs = made.reset()[0]
    for _ in range(ticks):
        action = rule(obs)
        after, reward, terminated, truncated, info = made.step(action)
        assert info["env_id"].tolist() == list(range(count))
        assert not (ended & (terminated | truncated | (reward != 0))).any()  # the reset after an end is no step
        rows = (obs, action, after, reward, terminated, truncated, info["elapsed_step"])
        found += [tuple(column[lane] for column in rows) for lane in np.flatnonzero(~ended)]
        obs, ended = after, terminated | truncated
    return found


def place(env: str, one: Any, obs: Array) -> None:
    """Put a Gymnasium environment where an observation says."""
    at = obs.astype(np.float64)
    if env == "Acrobot-v1":
        at = np.array([np.arctan2(at[1], at[0]), np.arctan2(at[3], at[2]), at[4], at[5]])
    if env == "Pendulum-v1":
        at = np.array([np.arctan2(at[1], at[0]), at[2]])
    one.state = at
    if env.startswith("CartPole"):
        one.steps_beyond_terminated = None


def largest_difference(env: str, found: list[tuple[Any, ...]]) -> float:
    """Do every step again in Gymnasium; rewards and ends must agree, observations differ by what is returned."""
    one: Any = gymnasium.make(gymnasium.registry[env]).unwrapped
    one.reset(seed=0)
    worst = 0.0
    for obs, action, after, reward, terminated, *_ in found:
        place(env, one, obs)
        expected = one.step(action)
        worst = max(worst, float(abs(expected[0] - after).max()))
        assert abs(expected[1] - reward) < 1e-5
        assert expected[2] == terminated
    return worst


@pytest.mark.parametrize("env", CLASSIC)
def test_steps_from_equal_states_are_equal(env: str) -> None:
    limit = gymnasium.spec(env).max_episode_steps
    found = steps(env, PURPOSEFUL[env], count=8, ticks=250) + steps(env, at_random(env), count=4, ticks=150)
    assert any(row[4] for row in found)
    assert largest_difference(env, found) < 2e-6
    assert all(row[5] == (row[6] == limit) for row in found)


@pytest.mark.parametrize("env", sorted(pool.EQUAL))
def test_the_time_limit_is_gymnasiums(env: str) -> None:
    made: Any = pooled(env, 1)
    assert made.spec.config.max_episode_steps == gymnasium.spec(env).max_episode_steps
    found = steps_with_limit(env, 20)
    assert [truncated for truncated, _ in found] == [False] * 19 + [True, False]
    assert found[20][1] == 0  # the reset


def steps_with_limit(env: str, limit: int) -> list[tuple[bool, float]]:
    made = pooled(env, 1, limit=limit, seed=6)
    rule, obs, found = PURPOSEFUL[env], made.reset()[0], []
    for _ in range(limit + 1):
        obs, reward, terminated, truncated, _ = made.step(rule(obs))
        assert not terminated[0]
        found.append((bool(truncated[0]), float(reward[0])))
    return found


def test_pendulum_is_left_out_because_its_dynamics_differ() -> None:
    assert "Pendulum-v1" in pool.UNEQUAL
    assert largest_difference("Pendulum-v1", steps("Pendulum-v1", pendulum, count=8, ticks=60)) > 0.01


class Told:
    """Random numbers told beforehand: flat ground, a push at the start, engines that do not scatter."""

    def __init__(self, push: Array) -> None:
        self.left = [*push]

    def uniform(self, low: float, high: float, size: Any = None) -> Any:
        if size is not None:
            return np.zeros(size)
        return self.left.pop(0) if self.left else 0.0


def launch(one: Any, push: Array) -> Array:
    one._np_random = Told(push)
    return one.reset()[0].astype(np.float64)


@pytest.mark.parametrize("env", LANDERS)
def test_a_lander_falls_and_is_paid_as_in_gymnasium(env: str) -> None:
    made, one = pooled(env, 8, seed=11), gymnasium.make(gymnasium.registry[env]).unwrapped
    idle: Any = np.zeros((8, 2), np.float32) if "Continuous" in env else np.zeros(8, np.int64)
    path, paid = [made.reset()[0]], []
    for _ in range(40):
        obs, reward, *_ = made.step(idle)
        path.append(obs)
        paid.append(reward)
    for lane in range(8):
        push = np.zeros(2)
        for _ in range(3):  # find the push that gives the first speed (it is linear)
            here = launch(one, push)
            slope = np.stack([launch(one, push + step) - here for step in np.eye(2)], 1)[2:4]
            push = push + np.linalg.solve(slope, (path[0][lane] - here)[2:4])
        assert abs(launch(one, push) - path[0][lane]).max() < 1e-6
        for t in range(40):
            after, reward, *_ = one.step(idle[lane])
            assert abs(after - path[t + 1][lane]).max() < 1e-5
            assert abs(reward - paid[t][lane]) < 2e-4


@pytest.mark.parametrize("env", LANDERS)
def test_a_landers_reward_and_end_follow_gymnasiums_rule(env: str) -> None:
    def shaping(obs: Array) -> float:
        return float(-100 * (np.hypot(obs[0], obs[1]) + np.hypot(obs[2], obs[3]) + abs(obs[4])) + 10 * obs[6:].sum())

    found = [row for rule in (PURPOSEFUL[env], at_random(env)) for row in steps(env, rule, count=16, ticks=300)]
    ends = 0
    for obs, action, after, reward, terminated, *_ in found:
        if "Continuous" in env:
            main = (min(action[0], 1.0) + 1) / 2 if action[0] > 0 else 0.0
            side = abs(action[1]) if abs(action[1]) > 0.5 else 0.0
        else:
            main, side = float(action == 2), float(action in (1, 3))
        if terminated:
            ends += 1
            assert abs(reward) == 100
        else:
            assert abs(after[0]) < 1
            assert abs(reward - (shaping(after) - shaping(obs) - 0.3 * main - 0.03 * side)) < 2e-3
    assert ends > 20


def in_gymnasium(env: str, rule: Rule, episodes: int) -> Array:
    """Return, length, terminated, and the first change of speed, of some episodes."""
    one, found = gymnasium.make(gymnasium.registry[env], disable_env_checker=True), []
    for episode in range(episodes):
        obs, total, length, over, cut = one.reset(seed=1000 + episode)[0], 0.0, 0, False, False
        while not (over or cut):
            obs, reward, over, cut, _ = one.step(rule(obs[None])[0])
            total, length = total + float(reward), length + 1
        found.append((total, length, over))
    return np.array(found, np.float64)


def in_envpool(env: str, rule: Rule, episodes: int) -> Array:
    """The same; each lane's first one, so that short episodes do not count more often."""
    made, total, length = pooled(env, episodes, seed=21), np.zeros(episodes), np.zeros(episodes)
    obs, over, ended = made.reset()[0], np.zeros(episodes, bool), np.zeros(episodes, bool)
    while not ended.all():
        obs, reward, terminated, truncated, _ = made.step(rule(obs))
        total, length = total + reward * ~ended, length + ~ended
        over |= terminated & ~ended
        ended |= terminated | truncated
    return np.stack((total, length, over), 1)


@pytest.mark.parametrize("env", sorted(pool.EQUAL))
def test_policies_get_the_same_returns(env: str) -> None:
    for rule in (PURPOSEFUL[env], at_random(env)):
        if not env.startswith(("LunarLander", "CartPole")) and rule is not PURPOSEFUL[env]:
            continue  # never gets anywhere: nothing to compare
        ours, theirs = in_envpool(env, rule, 60), in_gymnasium(env, rule, 60)
        spread = np.sqrt(ours.var(0) / len(ours) + theirs.var(0) / len(theirs))
        assert (abs(ours.mean(0) - theirs.mean(0)) <= 3.5 * spread + 1e-9).all()


@pytest.mark.parametrize("policy", ["idle", "main", "side"])
def test_engines_push_a_lander_as_in_gymnasium(policy: str) -> None:
    action = {"idle": 0, "main": 2, "side": 3}[policy]
    one = gymnasium.make("LunarLander-v3", disable_env_checker=True)
    theirs = []
    for episode in range(300):
        before = one.reset(seed=episode)[0]
        theirs.append((one.step(action)[0] - before)[2:6])
    made = pooled("LunarLander-v3", 300)
    before = made.reset()[0]
    ours = (made.step(np.full(300, action))[0] - before)[:, 2:6]
    expected = np.array(theirs)
    spread = np.sqrt((ours.var(0) + expected.var(0)) / 300)
    assert (abs(ours.mean(0) - expected.mean(0)) <= 3.5 * spread + 1e-6).all()
    np.testing.assert_allclose(ours.std(0), expected.std(0), rtol=0.3, atol=1e-5)


def test_what_is_on_the_list_is_stepped_by_envpool() -> None:
    for env in sorted(pool.EQUAL - {"CartPole-v0", "CartPole-v1"}):
        made = lanes.make(env, 2, lanes.Config(), seed=1)
        assert made.backend == "envpool"
        one = gymnasium.make(gymnasium.registry[env])
        assert made.reset()["obs"].shape == (2, *(one.observation_space.shape or ()))
