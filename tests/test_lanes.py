"""Lanes: equal ends on every backend, exact repetition, and one clear error for everything that can go wrong."""

from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from farfield.errors import ConfigError, EnvError, FarfieldError, MissingError, SpecError
from farfield.experience import lanes
from farfield.experience.lanes import Config
from farfield.experience.seeds import episode_seed, mix
from farfield.types import Columns, Tick

CARTPOLE = gymnasium.spec("CartPole-v1")


class Count(gymnasium.Env[Any, Any]):
    """Observation (steps, sum of actions); ends when the sum is 5, is cut off after 7 steps."""

    observation_space = spaces.Box(0, 10, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = np.zeros(2)
        return self.at.copy(), {}

    def step(self, action: Any) -> Any:
        self.at += (1, action)
        return self.at.copy(), self.at[0] + action / 4, bool(self.at[1] >= 5), False, {}


class CountVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The same, all at once, in each of the three ways to go on after an end."""

    def __init__(self, num_envs: int = 1, mode: AutoresetMode = AutoresetMode.NEXT_STEP, max_episode_steps: int = 7):
        self.metadata = {"autoreset_mode": mode}
        self.num_envs, self.mode, self.limit = num_envs, mode, max_episode_steps
        self.single_observation_space, self.single_action_space = Count.observation_space, Count.action_space
        self.at, self.ended = np.zeros((num_envs, 2)), np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at[options["reset_mask"] if options else slice(None)] = 0
        return self.at.copy(), {}

    def step(self, actions: Any) -> Any:
        before = self.ended & (self.mode is AutoresetMode.NEXT_STEP)
        self.at += np.stack((np.ones(self.num_envs), actions), 1)
        self.at[before] = 0
        reward = np.where(before, 0, self.at[:, 0] + actions / 4)
        terminated, truncated = self.at[:, 1] >= 5, self.at[:, 0] >= self.limit
        self.ended, info = terminated | truncated, {}
        if self.mode is AutoresetMode.SAME_STEP and self.ended.any():
            info = {"final_obs": np.full(self.num_envs, None, object)}
            for lane in np.flatnonzero(self.ended):
                info["final_obs"][lane] = self.at[lane].copy()
            self.at[self.ended] = 0
        return self.at.copy(), reward, terminated, truncated, info


gymnasium.register("Count-v0", Count, max_episode_steps=7)
for _mode in AutoresetMode:
    gymnasium.register(
        f"Count{_mode.name.title().replace('_', '')}-v0", Count, max_episode_steps=7, vector_entry_point=CountVector,
        kwargs={"mode": _mode},
    )  # fmt: skip


def transitions(made: lanes.Lanes, ticks: int) -> list[list[tuple[Any, ...]]]:
    """Per lane: (observation, action, reward, terminated, truncated, true next observation), pseudo-steps left out."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(made.count)]
    obs = made.reset()["obs"]
    for _ in range(ticks):
        action = np.where(np.arange(made.count) % 2 == 0, 1, (obs[:, 0] + 1) % 2).astype(np.int64)
        tick = made.step({"action": action})
        after = tick.obs["obs"].copy()
        if tick.final:
            after[tick.final[0]] = tick.final[1]["obs"]
        for lane in np.flatnonzero(tick.valid):
            row = (obs[lane], after[lane])
            ends = (bool(tick.terminated[lane]), bool(tick.truncated[lane]))
            found[lane].append((*row[0], int(action[lane]), float(tick.reward[lane]), *ends, *row[1]))
        obs = tick.obs["obs"].copy()
    return found


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_returns_ends_and_last_observations_are_equal_in_every_auto_reset_mode(mode: AutoresetMode) -> None:
    name = f"Count{mode.name.title().replace('_', '')}-v0"
    expected = transitions(lanes.make("Count-v0", 4, Config(), seed=1), 60)
    made = lanes.make(name, 4, Config(), seed=1)
    assert made.backend.endswith(" CountVector")
    came = transitions(made, 60)
    for want, have in zip(expected, came, strict=True):
        both = min(len(want), len(have))
        assert both > 45
        assert want[:both] == have[:both]
    assert any(row[4] and row[6:] == (5.0, 5.0) for row in came[0])  # terminated, with its last observation
    assert any(row[5] and not row[4] and row[6:] == (7.0, 4.0) for row in came[1])  # truncated, which is not an end


def test_lanes_that_reset_at_once_say_so_and_the_others_mark_the_reset() -> None:
    actions = {"action": np.ones(2, np.int64)}
    at_once, next_step = (lanes.make(f"Count{mode}-v0", 2, Config(), seed=1) for mode in ("SameStep", "NextStep"))
    for made in (at_once, next_step):
        made.reset()
    ticks: list[tuple[Tick, Tick]] = [(at_once.step(actions), next_step.step(actions)) for _ in range(6)]
    same, after = ticks[4]
    assert same.final is not None
    assert same.final[0].tolist() == [0, 1]
    assert same.obs["obs"].tolist() == [[0, 0], [0, 0]]
    assert after.final is None
    assert after.obs["obs"].tolist() == [[5, 5], [5, 5]]
    pseudo = ticks[5][1]
    assert not pseudo.valid.any()
    assert not pseudo.terminated.any()
    assert pseudo.reward.tolist() == [0, 0]
    assert pseudo.obs["obs"].tolist() == [[0, 0], [0, 0]]


def test_auto_takes_the_fastest_backend_that_honours_everything() -> None:
    def backend(env: str, replayable: bool = False, **settings: Any) -> str:
        return lanes.make(env, 2, Config(**settings), seed=1, replayable=replayable).backend

    assert backend("CartPole-v1") == "gymnasium CartPoleVectorEnv"
    assert backend("CartPole-v1", frame_skip=2) == "sync"
    assert backend("CartPole-v1", options={"sutton_barto_reward": True}) == "gymnasium CartPoleVectorEnv"
    assert backend("CartPole-v1", replayable=True) == "sync"
    assert backend("Pendulum-v1") == "sync"
    with pytest.raises(ConfigError, match="clipping"):
        backend("Pendulum-v1", backend="envpool")
    with pytest.raises(ConfigError, match="no vector class"):
        backend("Pendulum-v1", backend="vector")


@pytest.mark.parametrize("backend", ["vector", "envpool", "sync"])
def test_an_episode_limit_truncates_and_never_terminates(backend: Any) -> None:
    if backend == "envpool":
        pytest.importorskip("envpool")
    made = lanes.make("CartPole-v1", 3, Config(backend=backend, episode_limit=4), seed=1)
    made.reset()
    ticks = [made.step({"action": np.array([0, 1, 0])}) for _ in range(5)]
    assert [tick.truncated.all() for tick in ticks] == [False, False, False, True, False]
    assert not any(tick.terminated.any() for tick in ticks)
    assert [tick.valid.all() for tick in ticks] == [True, True, True, True, False]


def test_frame_skip_repeats_the_action_and_sums_rewards_up_to_the_end() -> None:
    made = lanes.make("Count-v0", 1, Config(frame_skip=3), seed=1)
    made.reset()
    first, second = (made.step({"action": np.array([1])}) for _ in range(2))
    assert first.reward.tolist() == [1 + 2 + 3 + 0.75]
    assert second.reward.tolist() == [4 + 5 + 0.5]
    assert second.terminated.tolist() == [True]
    made = lanes.make("Count-v0", 1, Config(frame_skip=3), seed=1)
    made.reset()
    ticks = [made.step({"action": np.array([0])}) for _ in range(3)]
    assert ticks[2].reward.tolist() == [7]
    assert ticks[2].truncated.tolist() == [True]


def run(made: lanes.Lanes, obs: Columns, ticks: int, seed: int) -> list[Any]:
    rng, log = np.random.default_rng(seed), []
    for _ in range(ticks):
        actions = {f.name: rng.integers(2, size=made.count) for f in made.spec.actions}
        tick = made.step(actions)
        log.append([tick.obs["obs"].tolist(), tick.reward.tolist(), tick.terminated.tolist(), tick.valid.tolist()])
    return log


@pytest.mark.parametrize("ticks", [0, 1, 37, 80])
def test_restored_lanes_continue_exactly(ticks: int) -> None:
    made = lanes.make("CartPole-v1", 3, Config(), seed=5, replayable=True)
    run(made, made.reset(), ticks, 1)
    state = {name: column.copy() for name, column in made.state().items()}
    expected = run(made, {}, 60, 2)
    again = lanes.make("CartPole-v1", 3, Config(), seed=5, replayable=True)
    obs = again.restore(state)
    assert (obs["obs"] == state["obs"]).all()
    assert {name: column.tolist() for name, column in again.state().items()} == {
        name: column.tolist() for name, column in state.items()
    }
    assert run(again, obs, 60, 2) == expected


def test_an_environment_that_is_not_reproducible_is_named() -> None:
    class Forgetful(Count):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.at[0] = np.random.default_rng().random()
            return self.at.copy(), {}

    gymnasium.register("Forgetful-v0", Forgetful, max_episode_steps=7)
    made = lanes.make("Forgetful-v0", 2, Config(), seed=1, replayable=True)
    made.reset()
    made.step({"action": np.array([0, 1])})
    with pytest.raises(EnvError, match=r"Forgetful-v0, lane 0, episode 0: .*np_random"):
        made.restore(made.state())


def test_what_cannot_be_repeated_says_so() -> None:
    made = lanes.make("CartPole-v1", 2, Config(), seed=1)
    made.reset()
    assert not made.replayable
    assert made.state() == {}
    exact = lanes.make("CartPole-v1", 2, Config(), seed=1, replayable=True)
    exact.reset()
    with pytest.raises(ConfigError, match="cannot be restored"):
        made.restore(exact.state())
    with pytest.raises(ConfigError, match="expected the state of 3"):
        lanes.make("CartPole-v1", 3, Config(), seed=1, replayable=True).restore(exact.state())


def test_seeds_of_episodes_stay_what_they_are() -> None:
    assert mix(0) == 0xE220A8397B1DCDAF  # SplitMix64's first number from seed 0
    assert [episode_seed(1, 0, 0), episode_seed(1, 0, 1), episode_seed(1, 1, 0), episode_seed(2, 0, 0)] == [
        1489305978,
        908839664,
        733647653,
        212563560,
    ]
    assert len({episode_seed(7, lane, k) for lane in range(50) for k in range(50)}) == 2500


class Broken(Count):
    """Does one wrong thing at its second step."""

    def __init__(self, how: str) -> None:
        self.how = how

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.at[0] == 2:
            match self.how:
                case "raise":
                    raise ZeroDivisionError("no ground")
                case "nan":
                    obs[1] = np.nan
                case "inf":
                    reward = np.inf
                case "shape":
                    obs = np.zeros(3)
                case "dtype":
                    obs = np.array(["a", "b"])
                case _:
                    return obs, reward, terminated
        return obs, reward, terminated, truncated, info


gymnasium.register("Broken-v0", Broken, max_episode_steps=7)


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ("raise", EnvError, r"Broken-v0, lane 0, episode 0, step\(\) raised ZeroDivisionError: no ground"),
        ("nan", EnvError, r"Broken-v0, lane 0: observation 'obs' is \[2.0, nan\]"),
        ("inf", EnvError, "Broken-v0, lane 0: reward is inf"),
        ("shape", SpecError, r"'obs': expected float32 of shape \(2,\), came float64 of shape \(3,\)"),
        ("dtype", SpecError, r"'obs': expected float32 of shape \(2,\), came <U1"),
        ("tuple", EnvError, "raised ValueError: not enough values"),
    ],
)
def test_a_broken_environment_is_named_with_its_lane_and_what_came(how: str, error: Any, says: str) -> None:
    made = lanes.make("Broken-v0", 2, Config(options={"how": how}), seed=1)
    made.reset()
    made.step({"action": np.array([0, 0])})
    with pytest.raises(error, match=says):
        made.step({"action": np.array([0, 0])})


@pytest.mark.parametrize(
    ("env", "error", "says"),
    [
        ("CartPole-v9", ConfigError, "did you mean CartPole-v1"),
        ("ALE/Pong-v5", ConfigError, "pip install 'ale-py'"),
        ("nowhere_to_be_found:Env-v0", ConfigError, "'nowhere_to_be_found' cannot be imported"),
        pytest.param(
            "Ant-v5",
            MissingError,
            r"pip install 'gymnasium\[mujoco\]'",
            marks=pytest.mark.skipif(find_spec("mujoco") is not None, reason="MuJoCo is installed"),
        ),
    ],
)
def test_an_unknown_environment_comes_with_a_cure(env: str, error: type[FarfieldError], says: str) -> None:
    with pytest.raises(error, match=says):
        lanes.make(env, 1, Config(), seed=1)


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match="gravitation"):
        lanes.make("CartPole-v1", 1, Config(options={"gravitation": 9.8}), seed=1)
    with pytest.raises(ConfigError, match="rendering"):
        lanes.make("CartPole-v1", 1, Config(backend="sync", options={"render_mode": "human"}), seed=1)
