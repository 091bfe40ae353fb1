"""An environment of your own, trained and played: nothing of ours is in it but the last lines."""

from pathlib import Path
from tempfile import mkdtemp

import gymnasium
import numpy as np

import farfield


class Thermostat(gymnasium.Env):
    """Keep a room at 20 degrees while it is cold outside; heating costs."""

    observation_space = gymnasium.spaces.Dict(
        {"inside": gymnasium.spaces.Box(-20.0, 50.0, (1,), np.float32), "hour": gymnasium.spaces.Discrete(24)}
    )
    action_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.inside, self.hour = self.np_random.uniform(5.0, 30.0), 0
        return self._look(), {}

    def step(self, action):
        outside = 5.0 * np.sin(self.hour / 24 * 2 * np.pi)
        self.inside += 6.0 * float(action[0]) + 0.2 * (outside - self.inside)
        self.hour = (self.hour + 1) % 24
        return self._look(), -abs(self.inside - 20.0) - 0.1 * float(action[0]), False, False, {}

    def _look(self):
        return {"inside": np.array([self.inside], np.float32), "hour": self.hour}


gymnasium.register("Thermostat-v0", Thermostat, max_episode_steps=48)

if __name__ == "__main__":
    home = mkdtemp()
    settings = {"lanes": {"count": 16, "steps": 96}, "network": {"normalise": True}, "metrics": {"writers": []}}
    run = farfield.train("Thermostat-v0", home=home, actors=0, steps=150_000, **settings)
    before = farfield.play("Thermostat-v0", policy="random", home=home, episodes=20)["return_mean"]
    after = farfield.play(run.name, home=home, episodes=20)["return_mean"]
    print(f"random: {before:.0f}, trained: {after:.0f}, everything is in {Path(home)}")
    assert after > before / 2
