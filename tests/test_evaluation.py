"""Playing whole episodes: fair shares, allowed random actions, an end to what never ends, pictures in characters."""

import gymnasium
import numpy as np
import pytest

from farfield import config as configs
from farfield import evaluation, wiring
from farfield.errors import EnvError
from farfield.telemetry import halfblocks
from farfield.types import Field, Kind, Spec


class Endless(gymnasium.Env):
    """An environment whose episodes never end."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.fixture
def endless():
    gymnasium.register("Endless-v0", entry_point=Endless)
    yield
    del gymnasium.registry["Endless-v0"]


def test_an_episode_that_never_ends_is_given_up(endless):
    config = configs.decode({"run": "x", "env": "Endless-v0"})
    lanes = wiring.lanes_of(config, 2, seed=1, replayable=False)
    with pytest.raises(EnvError, match="within 50 steps"):
        evaluation.play(lanes, evaluation.at_random(lanes.spec, 1), episodes=1, limit=50)


def test_every_lane_plays_its_share():
    config = configs.decode({"run": "x", "env": "CartPole-v1"})
    lanes = wiring.lanes_of(config, 4, seed=3, replayable=False)
    returns, lengths = evaluation.play(lanes, evaluation.at_random(lanes.spec, 3), episodes=10)
    lanes.close()
    assert (len(returns), len(lengths)) == (10, 10)
    assert min(lengths) >= 8  # no policy can end CartPole sooner


def test_random_actions_keep_to_masks_and_bounds():
    spec = Spec(
        (Field("mask", Kind.MULTI_BINARY, "bool", (5,)),),
        (
            Field("action/a", Kind.MULTI_DISCRETE, "int64", (2,), (2, 3), mask="mask"),
            Field("action/b", Kind.BOX, "float32", (2,), low=(-2.0, 0.0), high=(-1.0, 0.5)),
            Field("action/c", Kind.MULTI_BINARY, "int8", (3,)),
            Field("action/d", Kind.DISCRETE, "int64", (), (4,)),
            Field("action/e", Kind.BOX, "float32", (1,)),
        ),
    )
    mask = np.tile(np.array([False, True, True, False, True]), (500, 1))
    action = evaluation.at_random(spec, 1)({"mask": mask}, np.zeros(500, bool))
    assert set(action["action/a"][:, 0]) == {1}
    assert set(action["action/a"][:, 1]) == {0, 2}
    assert (action["action/b"] >= (-2, 0)).all()
    assert (action["action/b"] <= (-1, 0.5)).all()
    assert set(action["action/d"]) == {0, 1, 2, 3}
    assert np.isfinite(action["action/e"]).all()
    for field in spec.actions:
        assert action[field.name].shape == (500, *field.shape)
        assert action[field.name].dtype == field.dtype


def test_half_blocks_show_two_pixels_in_each_character():
    picture = np.zeros((4, 2, 3), np.uint8)
    picture[:2] = (255, 0, 0)
    lines = halfblocks.lines(picture, width=1, height=10)
    assert lines == ["\x1b[38;2;255;0;0;48;2;0;0;0m▀\x1b[0m"]
    assert len(halfblocks.lines(np.zeros((400, 600, 3), np.uint8), width=80, height=10)) == 10
