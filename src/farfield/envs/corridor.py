"""A corridor with a door at its right end: the smallest task with a value that is known everywhere."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env[np.int64, np.int64]):
    """Start at the left end of `size` places; 1 goes right, 0 goes left; the door at the right end pays 1 and ends it.

    From a place d steps from the door the best value is gamma ** (d - 1). Who dawdles is cut off by the time limit
    (truncated), which is not an end: the value there is still the place's.
    """

    def __init__(self, size: int = 6) -> None:
        self.observation_space = spaces.Discrete(size)
        self.action_space = spaces.Discrete(2)
        self._last, self._place = size - 1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Go back to the left end."""
        super().reset(seed=seed)
        self._place = 0
        return np.int64(0), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Go one place; the left end is a wall."""
        self._place = max(0, self._place + (1 if action == 1 else -1))
        there = self._place == self._last
        return np.int64(self._place), float(there), there, False, {}
