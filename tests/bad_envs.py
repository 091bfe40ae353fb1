"""Environments that break their contract in one way each, for the tests of faults."""

import threading

import gymnasium
import numpy as np


class Bad(gymnasium.Env):
    """Goes well for 300 steps, then does what it is there for."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str) -> None:
        self.fault, self.steps = fault, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps > 300:
            if self.fault == "raises":
                raise RuntimeError("the pump is on fire")
            if self.fault == "nan":
                return np.array([np.nan, 0], np.float32), 0.0, False, False, {}
            if self.fault == "nan_reward":
                return np.zeros(2, np.float32), float("nan"), False, False, {}
            if self.fault == "shape":
                return np.zeros(3, np.float32), 0.0, False, False, {}
            if self.fault == "hangs":
                threading.Event().wait()
        ended = self.fault != "endless" and self.steps % 10 == 0
        return np.zeros(2, np.float32), 1.0, ended, False, {}


class Strange(gymnasium.Env):
    """Has a space that no policy can take."""

    observation_space = gymnasium.spaces.Text(5)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return "hello", {}


for fault in ("raises", "nan", "nan_reward", "shape", "hangs", "endless"):
    gymnasium.register(f"{fault}-v0", "bad_envs:Bad", kwargs={"fault": fault})
gymnasium.register("strange-v0", "bad_envs:Strange")
