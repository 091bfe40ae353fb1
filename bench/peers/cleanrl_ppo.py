"""CleanRL's own ppo.py, unchanged, with the settings of equal work; prints its rate and true returns.

The script of CleanRL 1.2.0 speaks the interface of Gym 0.21. `OldGym` gives it that interface on today's Gymnasium;
not a line of the script is edited. It is run from the installed package as `python ppo.py` would.
"""

import argparse
import importlib.metadata
import runpy
import sys
import types
from typing import Any

from peers import episodes


class Lanes:
    """A synchronous vector of Gymnasium's as Gym 0.21 showed it; each rollout's first step ends the update before."""

    def __init__(self, envs: list[Any], *, settings: dict[str, Any], clock: episodes.Clock) -> None:
        import gymnasium

        same = gymnasium.vector.AutoresetMode.SAME_STEP
        self._env = gymnasium.vector.SyncVectorEnv(envs, autoreset_mode=same)
        self.single_observation_space = self._env.single_observation_space
        self.single_action_space = self._env.single_action_space
        self._lanes, self._rollout, self._clock = len(envs), settings["steps"], clock
        self._ticks, self._totals, self._lengths = 0, [0.0] * len(envs), [0] * len(envs)

    def reset(self) -> Any:
        """Begin; the seeds were given to each environment before."""
        return self._env.reset()[0]

    def step(self, actions: Any) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        """Step all lanes; Gym 0.21 gave one `done` and a list of infos."""
        if self._ticks and self._ticks % self._rollout == 0 and self._clock.updated(self._ticks * self._lanes):
            raise episodes.TimeIsUpError
        self._ticks += 1
        obs, reward, terminated, truncated, _ = self._env.step(actions)
        done = terminated | truncated
        return obs, reward, done, [self._info(i, float(reward[i]), bool(done[i])) for i in range(self._lanes)]

    def _info(self, lane: int, reward: float, done: bool) -> dict[str, Any]:
        self._totals[lane] += reward
        self._lengths[lane] += 1
        if not done:
            return {}
        ended = {"episode": {"r": self._totals[lane], "l": self._lengths[lane]}}
        self._totals[lane], self._lengths[lane] = 0.0, 0
        return ended


def old_gym(arguments: argparse.Namespace, settings: dict[str, Any], clock: episodes.Clock) -> types.ModuleType:
    """Make a module `gym` with what the script uses of Gym 0.21."""
    import gymnasium

    class Seeded(gymnasium.Wrapper):
        def seed(self, seed: int) -> None:
            self.env.reset(seed=seed)

    gym = types.ModuleType("gym")
    gym.spaces = gymnasium.spaces
    gym.make = lambda env: Seeded(episodes.make(env, str(clock.log)))
    gym.wrappers = types.SimpleNamespace(RecordEpisodeStatistics=lambda env: env)
    gym.vector = types.SimpleNamespace(SyncVectorEnv=lambda envs: Lanes(envs, settings=settings, clock=clock))
    return gym


def train(arguments: argparse.Namespace, settings: dict[str, Any], clock: episodes.Clock) -> dict[str, Any]:
    """Run the script until the clock stops it."""
    import torch

    torch.set_num_threads(1)
    options = {
        "env-id": arguments.env, "seed": arguments.seed, "total-timesteps": 10**9, "cuda": False,
        "learning-rate": settings["rate"], "anneal-lr": False, "num-envs": settings["lanes"],
        "num-steps": settings["steps"], "gamma": settings["gamma"], "gae-lambda": settings["lam"],
        "num-minibatches": settings["lanes"] * settings["steps"] // settings["minibatch"],
        "update-epochs": settings["epochs"], "clip-coef": settings["clip"], "clip-vloss": False,
        "ent-coef": settings["entropy"], "max-grad-norm": settings["norm"],
    }  # fmt: skip
    facts = {"library": f"cleanrl {importlib.metadata.version('cleanrl')} ppo.py, torch {torch.__version__}"}
    sys.modules["gym"] = old_gym(arguments, settings, clock)
    script = str(importlib.metadata.distribution("cleanrl").locate_file("cleanrl/ppo.py"))
    sys.argv = [script, *[f"--{name}={value}" for name, value in options.items()]]
    sys.stdout = sys.stderr  # the script prints a line per episode; ours go to the real one
    try:
        runpy.run_path(script, run_name="__main__")
    except episodes.TimeIsUpError:
        return facts
    return facts


if __name__ == "__main__":
    episodes.run("cleanrl", train)
