"""Spaces: every kind becomes columns and comes back; what cannot is named with a cure."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from farfield.errors import SpecError
from farfield.experience import lanes
from farfield.experience.lanes import Config
from farfield.types import Field, Kind, Spec


class Echo(gymnasium.Env[Any, Any]):
    """Shows what it is told to and keeps the actions that it gets."""

    def __init__(self, observation: Any, action: Any, show: Any = None, info: Any = None) -> None:
        self.observation_space, self.action_space = observation, action
        self.show, self.info, self.got = show, info or {}, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.show, dict(self.info)

    def step(self, action: Any) -> Any:
        self.got.append(action)
        return self.show, 0.0, False, False, dict(self.info)


class EchoVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The same for a batch."""

    def __init__(self, num_envs: int = 1, **given: Any) -> None:
        self.inner = gymnasium.vector.SyncVectorEnv([lambda: Echo(**given)] * num_envs, observation_mode="same")
        self.metadata, self.num_envs = self.inner.metadata, num_envs
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.inner.reset(seed=seed)

    def step(self, actions: Any) -> Any:
        return self.inner.step(actions)


gymnasium.register("Echo-v0", Echo, vector_entry_point=EchoVector)


def make(observation: Any, action: Any, show: Any, info: Any = None, backend: Any = "sync") -> lanes.Lanes:
    options = {"observation": observation, "action": action, "show": show, "info": info}
    return lanes.make("Echo-v0", 2, Config(options=options, backend=backend), seed=1)


def got(made: Any) -> Any:
    """The last action of lane 1."""
    envs = made._envs if hasattr(made, "_envs") else made._env.inner.envs
    return envs[1].unwrapped.got[-1]


NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
        "pose": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(3, start=-1))),
        "lights": spaces.MultiBinary((2, 2)),
        "gear": spaces.MultiDiscrete([3, 4], start=[1, 0]),
    }
)
SHOWN: Any = {
    "camera": np.full((4, 5, 3), 7, np.uint8),
    "pose": (np.array([0.5, -0.5]), np.int64(1)),
    "lights": np.array([[1, 0], [0, 1]], np.int8),
    "gear": np.array([3, 2]),
}


@pytest.mark.parametrize("backend", ["sync", "vector"])
def test_nested_observations_become_flat_columns(backend: str) -> None:
    made = make(NESTED, spaces.Discrete(2), SHOWN, backend=backend)
    assert made.spec.observations == (  # a Dict of Gymnasium's sorts its keys
        Field("obs/camera", Kind.BOX, "uint8", (4, 5, 3), (), (0.0,), (255.0,)),
        Field("obs/gear", Kind.MULTI_DISCRETE, "int64", (2,), (3, 4)),
        Field("obs/lights", Kind.MULTI_BINARY, "int8", (2, 2)),
        Field("obs/pose/0", Kind.BOX, "float32", (2,), (), (-1.0,), (1.0,)),
        Field("obs/pose/1", Kind.DISCRETE, "int64", (), (3,)),
    )
    for obs in (made.reset(), made.step({"action": np.array([0, 1])}).obs):
        assert obs["obs/camera"].shape == (2, 4, 5, 3)
        assert obs["obs/camera"].dtype == np.uint8
        assert obs["obs/pose/0"].dtype == np.float32
        assert obs["obs/pose/0"].tolist() == [[0.5, -0.5]] * 2
        assert obs["obs/pose/1"].tolist() == [2, 2]  # counted from 0
        assert obs["obs/gear"].tolist() == [[2, 2]] * 2
        assert obs["obs/lights"].dtype == np.int8
    assert next(field for field in made.spec.observations if field.name == "obs/camera").image


@pytest.mark.parametrize("backend", ["sync", "vector"])
def test_actions_reach_the_environment_clipped_and_counted_from_its_start(backend: str) -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    action = spaces.Dict({"arm": spaces.Box(-2, 2, (1,), np.float64), "turn": spaces.Discrete(3, start=-1)})
    made = make(box, action, np.zeros(2, np.float32), backend=backend)
    assert [(field.name, field.kind, field.dtype, field.sizes) for field in made.spec.actions] == [
        ("action/arm", Kind.BOX, "float32", ()),
        ("action/turn", Kind.DISCRETE, "int64", (3,)),
    ]
    made.reset()
    columns = {"action/arm": np.array([[0], [5]], np.float32), "action/turn": np.array([0, 2])}
    made.step(columns)
    assert got(made)["arm"].tolist() == [2]
    assert got(made)["arm"].dtype == np.float64
    assert got(made)["turn"] == 1
    assert columns["action/arm"].tolist() == [[0], [5]]  # the columns stay as the policy chose
    assert action.contains(got(made))


@pytest.mark.parametrize(
    ("action", "column", "expected"),
    [
        (spaces.MultiDiscrete([3, 2]), [[0, 0], [2, 1]], [2, 1]),
        (spaces.MultiBinary(3), np.array([[0, 0, 0], [1, 0, 1]], np.int8), [1, 0, 1]),
        (spaces.Box(-1, 1, (2,)), np.array([[0, 0], [3, -0.5]], np.float32), [1, -0.5]),
        (spaces.Box(-np.inf, np.inf, (1,)), np.array([[0], [30]], np.float32), [30]),
        (spaces.Discrete(5, start=3), [0, 4], 7),
    ],
)
def test_each_kind_of_action_arrives(action: Any, column: Any, expected: Any) -> None:
    made = make(spaces.Discrete(2), action, 1)
    made.reset()
    made.step({"action": np.asarray(column)})
    assert np.asarray(got(made)).tolist() == expected
    assert action.contains(got(made))


@pytest.mark.parametrize("backend", ["sync", "vector"])
def test_a_mask_in_the_observation_becomes_a_column_that_the_action_names(backend: str) -> None:
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "seen": spaces.Box(0, 1, (1,))})
    shown = {"action_mask": np.array([1, 0, 1], np.int8), "seen": np.zeros(1, np.float32)}
    made = make(space, spaces.Discrete(3), shown, backend=backend)
    assert made.spec == Spec(
        (
            Field("obs/seen", Kind.BOX, "float32", (1,), (), (0.0,), (1.0,)),
            Field("mask", Kind.MULTI_BINARY, "bool", (3,)),
        ),
        (Field("action", Kind.DISCRETE, "int64", (), (3,), mask="mask"),),
    )
    mask = made.reset()["mask"]
    assert mask.dtype == np.bool_
    assert mask.tolist() == [[True, False, True]] * 2


@pytest.mark.parametrize("backend", ["sync", "vector"])
def test_a_mask_in_info_is_found_at_the_first_reset(backend: str) -> None:
    info = {"action_mask": np.array([1, 0, 1, 1, 1], np.int8)}
    made = make(spaces.Discrete(2), spaces.MultiDiscrete([3, 2]), 1, info, backend=backend)
    assert made.spec.actions[0].mask == "mask"
    assert made.spec.observations[1] == Field("mask", Kind.MULTI_BINARY, "bool", (5,))
    assert (
        made.step({"action": np.zeros((2, 2), np.int64)}).obs["mask"].tolist() == [[True, False, True, True, True]] * 2
    )


def test_masks_of_several_choices_may_come_one_by_one() -> None:
    info = {"action_mask": (np.array([1, 0, 1]), np.array([0, 1]))}
    made = make(spaces.Discrete(2), spaces.MultiDiscrete([3, 2]), 1, info)
    assert made.reset()["mask"].tolist() == [[True, False, True, False, True]] * 2
    info = {"action_mask": {"turn": np.array([0, 1])}}
    action = spaces.Dict({"arm": spaces.Box(-1, 1, (1,)), "turn": spaces.Discrete(2)})
    made = make(spaces.Discrete(2), action, 1, info)
    assert [field.mask for field in made.spec.actions] == ["", "mask/turn"]
    assert made.reset()["mask/turn"].tolist() == [[False, True]] * 2


def test_bounds_are_short_and_finite() -> None:
    def bounds(space: Any) -> tuple[Any, Any]:
        field = make(space, spaces.Discrete(2), np.zeros(space.shape, space.dtype)).spec.observations[0]
        return field.low, field.high

    most = float(np.finfo(np.float32).max)
    assert bounds(spaces.Box(-np.inf, np.inf, (3,))) == ((), ())
    assert bounds(spaces.Box(np.array([-1, -np.inf], np.float32), np.inf)) == ((-1.0, -most), ())


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Text(5), r"'obs' is Text\(.*\); expected Box, .* FlattenObservation"),
        (spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), "'obs/a' is Sequence"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "MultiDiscrete in one dimension"),
        (spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}), "both named 'obs/a/b'"),
    ],
)
def test_a_space_that_fits_no_column_is_named_with_a_cure(space: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        make(space, spaces.Discrete(2), None)


@pytest.mark.parametrize(
    ("space", "show", "says"),
    [
        (spaces.Discrete(3), 3, r"expected values below \(3,\)"),
        (spaces.Discrete(3), 1.5, "expected int64 of shape"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([-1, 2]), "expected uint8"),
        (spaces.MultiDiscrete([2, 2]), [1, 2], r"expected values below \(2, 2\)"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}, "raised KeyError"),
    ],
)
def test_an_observation_outside_of_its_space_is_refused(space: Any, show: Any, says: str) -> None:
    with pytest.raises(Exception, match=says) as caught:
        make(space, spaces.Discrete(2), show).reset()
    assert "Echo-v0, lane 0, episode 0" in str(caught.value)
