"""Tasks of a few steps in which the right action is what was just seen, one for each kind of space."""

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import Space, spaces

LENGTH = 8  # steps of an episode
CHOICES = 6  # of the masked task, of which 3 are allowed at a time
_SPACES: dict[str, Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "masked": spaces.Discrete(CHOICES),
}


class Identity(gymnasium.Env[Any, Any]):
    """Repeat what is shown: a step pays at most 1, the part of it that is right, for numbers 1 - mean squared error.

    `masked` shows a Dict with an action mask; an action that the mask forbids pays -1.
    """

    def __init__(self, kind: Literal["discrete", "multi_discrete", "multi_binary", "box", "masked"]) -> None:
        self.action_space = self.observation_space = _SPACES[kind]
        if kind == "masked":
            parts: dict[str, Space[Any]] = {"shown": _SPACES[kind], "action_mask": spaces.MultiBinary(CHOICES)}
            self.observation_space = spaces.Dict(parts)
        self._kind, self._shown, self._steps = kind, np.zeros(()), 0
        self._allowed = np.ones(CHOICES, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Show the first one."""
        super().reset(seed=seed)
        self._steps = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pay for the answer and show the next one."""
        reward = self._score(np.asarray(action))
        self._steps += 1
        return self._show(), reward, self._steps == LENGTH, False, {}

    def _score(self, action: Any) -> float:
        if self._kind == "box":
            return float(1.0 - np.square(action - self._shown).mean())
        if self._kind == "masked" and not self._allowed[action]:
            return -1.0
        return float((action == self._shown).mean())

    def _show(self) -> Any:
        match self._kind:
            case "box":
                self._shown = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
            case "multi_discrete":
                self._shown = self.np_random.integers([3, 2])
            case "multi_binary":
                self._shown = self.np_random.integers(2, size=3, dtype=np.int8)
            case "discrete":
                self._shown = self.np_random.integers(4)
            case _:
                allowed = self.np_random.permutation(CHOICES)[:3]
                self._shown = allowed[0]
                self._allowed = np.zeros(CHOICES, np.int8)
                self._allowed[allowed] = 1
                return {"shown": self._shown, "action_mask": self._allowed}
        return self._shown
